"""A tiny model with a text and its triggers, for the tests of this study."""

from __future__ import annotations

from dataclasses import replace

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
    only_positive = replace(lists, negative_values=None, negative_positions=None)
    return lm, corpus, TokenStream.of(corpus.segments(lm)), KeyTriggers.of_sweep(only_positive)
