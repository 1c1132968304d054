"""Text as a model reads it: documents, sentences or windows, prefixes, batches, and the position of every token.

Public names are imported on first use: an index is read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unembed.corpus.corpus import Corpus as Corpus
    from unembed.corpus.corpus import open_corpus as open_corpus
    from unembed.corpus.segments import Batch as Batch
    from unembed.corpus.segments import Document as Document
    from unembed.corpus.segments import Segment as Segment
    from unembed.corpus.token_stream import TokenizedCorpus as TokenizedCorpus
    from unembed.corpus.token_stream import TokenStream as TokenStream
else:
    _MODULES = {
        "Corpus": "corpus",
        "open_corpus": "corpus",
        "Batch": "segments",
        "Document": "segments",
        "Segment": "segments",
        "TokenizedCorpus": "token_stream",
        "TokenStream": "token_stream",
    }

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
