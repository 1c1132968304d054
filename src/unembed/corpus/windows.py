"""Open a corpus in long windows, because induction and skip-trigrams need more context than a sentence has."""

from __future__ import annotations

from dataclasses import replace

from unembed.corpus.corpus import Corpus, CorpusSource, open_corpus


def windows_of(corpus: CorpusSource, window: int | None = None, overlap: int | None = None) -> Corpus:
    """Open a corpus, from anything that `open_corpus` takes, with segmentation "windows"."""
    opened = open_corpus(corpus, segmentation="windows", window=window, overlap=overlap)
    return replace(opened, segmentation="windows", window=window, overlap=overlap)
