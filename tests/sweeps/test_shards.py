"""Shards done in any order give one result, the local one."""

from __future__ import annotations

from random import Random

import torch

from tests.sweeps.recorder import lettered, texts
from tests.sweeps.test_checkpoint import same
from unembed.corpus import open_corpus
from unembed.sweeps import ActiveFraction, MeanVariance, Reducer, TopTriggers, sweep
from unembed.sweeps.shards import Joining, reduce_shard, shards


def reducers() -> list[Reducer]:
    return [TopTriggers(6), ActiveFraction(), MeanVariance()]


def started() -> list[Reducer]:
    fresh = reducers()
    for reducer in fresh:
        reducer.start(lettered("gpt2"))
    return fresh


def test_any_order_and_a_saved_tree_give_the_same_bits() -> None:
    lm, corpus = lettered("gpt2"), open_corpus(texts(25))
    parts = [reduce_shard(lm, reducers(), s) for s in shards(corpus.batches(lm, 150), 2)]
    assert len(parts) > 6
    found = []
    for seed in range(3):
        order = list(parts)
        Random(seed).shuffle(order)
        joined = Joining(started)
        for n, part in enumerate(order):
            joined.take(part)
            if n == 4 and seed == 2:
                late, waiting = Joining(started), joined._early
                late.load_state(joined.state(), joined.batches, joined.tokens)
                joined = late
                for early in waiting.values():
                    joined.take(early)
        assert joined.shards == len(parts) and joined.share == 1.0
        found.append(joined.results())
    assert same(tuple(found[0]), tuple(found[1])) and same(tuple(found[0]), tuple(found[2]))
    local = sweep(lm, corpus, reducers(), tokens_per_batch=150)
    assert same(local[0], found[0][0]) and same(local[1], found[0][1])
    torch.testing.assert_close(local[2].variance[1], found[0][2].variance[1], rtol=1e-9, atol=1e-12)


def test_no_shard_at_all() -> None:
    assert Joining(started).results()[1].count == 0
