"""Corpora: documents are split into sentences or windows, tokenised, and grouped into batches for the model.

Public names are imported at their first use, so that an index can be read without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.corpus.corpus import Corpus as Corpus
    from unembed.corpus.corpus import CorpusSource as CorpusSource
    from unembed.corpus.corpus import open_corpus as open_corpus
    from unembed.corpus.segments import Batch as Batch
    from unembed.corpus.segments import Document as Document
    from unembed.corpus.segments import Segment as Segment
    from unembed.corpus.text_pieces import TextPieces as TextPieces
    from unembed.corpus.token_stream import TokenizedCorpus as TokenizedCorpus
    from unembed.corpus.token_stream import TokenStream as TokenStream
    from unembed.corpus.whole_windows import WholeWindows as WholeWindows
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "corpus": "Corpus CorpusSource open_corpus",
            "segments": "Batch Document Segment",
            "text_pieces": "TextPieces",
            "token_stream": "TokenizedCorpus TokenStream",
            "whole_windows": "WholeWindows",
        },
    )
