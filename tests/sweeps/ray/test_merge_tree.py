"""Shards done in any order are joined by one and the same tree, and give the local result."""

from __future__ import annotations

from random import Random

import pytest
import torch

from tests.sweeps.recorder import lettered, texts
from tests.sweeps.test_checkpoint import same
from unembed.corpus import open_corpus
from unembed.sweeps import ActiveFraction, MeanVariance, Reducer, TopTriggers, sweep
from unembed.sweeps.ray.merge_tree import MergeTree, Part, contiguous_parts
from unembed.sweeps.ray.shards import Coverage, cut_shards, merge_states, reduce_shard, restore_reducers


def reducers() -> list[Reducer]:
    return [TopTriggers(6), ActiveFraction(), MeanVariance()]


def test_any_order_gives_the_same_bits() -> None:
    lm, corpus = lettered("gpt2"), open_corpus(texts(25))
    parts = [reduce_shard(lm, reducers(), s) for s in cut_shards(corpus.batches(lm, 150), 2)]
    assert len(parts) > 6
    found = []
    for seed in range(3):
        tree, random = MergeTree(), Random(seed)
        tree.n_shards = len(parts)
        order = list(range(len(parts)))
        random.shuffle(order)
        for n in order:
            seen, states = parts[n]
            tree.put(Part(n, n + 1, seen, states=states))
            while (pair := tree.pair()) and random.random() < 0.7:
                a, b = pair
                tree.put(
                    Part(
                        a.first,
                        b.end,
                        a.coverage.then(b.coverage),
                        states=merge_states(lm, reducers(), a.states, b.states),
                    )
                )
            for part in pair or ():
                tree.put(part)
        while pair := tree.pair():
            a, b = pair
            tree.put(
                Part(
                    a.first, b.end, a.coverage.then(b.coverage), states=merge_states(lm, reducers(), a.states, b.states)
                )
            )
        whole = tree.root()
        assert whole is not None and whole.states is not None and whole.coverage.share == 1.0
        found.append([r.result() for r in restore_reducers(lm, reducers(), whole.states)])
    assert same(tuple(found[0]), tuple(found[1])) and same(tuple(found[0]), tuple(found[2]))
    local = sweep(lm, corpus, reducers(), tokens_per_batch=150)
    assert same(local[0], found[0][0]) and same(local[1], found[0][1])
    torch.testing.assert_close(local[2].variance[1], found[0][2].variance[1], rtol=1e-9, atol=1e-12)


def joins(total: int, order: list[int], known_at: int) -> set[tuple[int, int, int]]:
    """Which parts were joined when shards came in this order and their number was known after so many."""
    tree, made = MergeTree(), set()
    for n, shard in enumerate(order):
        if n == known_at:
            tree.n_shards = total
        tree.put(Part(shard, shard + 1, Coverage(1, 1, 0.0)))
        while (pair := tree.pair()) is not None:
            made.add((pair[0].first, pair[0].end, pair[1].end))
            tree.put(Part(pair[0].first, pair[1].end, Coverage(1, 1, 0.0)))
    tree.n_shards = total
    while (pair := tree.pair()) is not None:
        made.add((pair[0].first, pair[0].end, pair[1].end))
        tree.put(Part(pair[0].first, pair[1].end, Coverage(1, 1, 0.0)))
    assert tree.root() is not None
    return made


@pytest.mark.parametrize("total", [1, 2, 3, 5, 7, 8, 13, 31])
def test_the_tree_depends_on_the_number_of_shards_alone(total: int) -> None:
    in_order = joins(total, list(range(total)), total)
    assert len(in_order) == total - 1
    for seed in range(10):
        order = list(range(total))
        Random(seed).shuffle(order)
        assert joins(total, order, seed % total) == in_order


def test_parts_without_a_gap() -> None:
    parts = [Part(f, e, Coverage(1, 1, 0.0)) for f, e in ((4, 6), (0, 4), (7, 8))]
    assert [(p.first, p.end) for p in contiguous_parts(parts)] == [(0, 4), (4, 6)]
    assert contiguous_parts(parts[2:]) == []
