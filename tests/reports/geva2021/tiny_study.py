"""A tiny model with a text and its triggers, for the tests of this study."""

from __future__ import annotations

import torch

from tests.sweeps.recorder import lettered, texts
from unembed.corpus import open_corpus
from unembed.corpus.token_stream import TokenStream
from unembed.reports.geva2021.triggers import KeyTriggers, reducer
from unembed.sweeps import sweep


def tiny_study(family: str = "opt", how: str = "prefixes", top: int = 4, bos: bool = False, n: int = 8):
    """A tiny model, its text and triggers."""
    lm = lettered(family, torch.float64, bos)
    corpus = open_corpus(texts(n))
    (lists,) = sweep(lm, corpus, [reducer(how, top)], tokens_per_batch=300)
    return lm, corpus, TokenStream.of(corpus.segments(lm)), KeyTriggers.of_lists(lists.values, lists.positions)
