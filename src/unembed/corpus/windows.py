"""Read text in long windows, because induction and skip-trigrams need more context than a sentence holds."""

from __future__ import annotations

from dataclasses import replace

from unembed.corpus.corpus import Corpus, CorpusSource, open_corpus


def windows_of(corpus: CorpusSource, window: int | None = None, overlap: int | None = None) -> Corpus:
    """Open a corpus in windows, from anything that `open_corpus` takes; an open corpus is cut anew."""
    opened = open_corpus(corpus, segmentation="windows", window=window, overlap=overlap)
    return replace(opened, segmentation="windows", window=window, overlap=overlap)
