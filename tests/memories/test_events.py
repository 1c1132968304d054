"""Events on rank sequences made by hand."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from unembed.memories.events import elimination_layer, events_of, saturation_layer


def test_saturation_is_the_start_of_the_last_unbroken_run_of_firsts() -> None:
    ranks = torch.tensor([[6, 1, 4, 1], [1, 1, 3, 5], [4, 1, 2, 1], [1, 1, 1, 1]])
    assert saturation_layer(ranks).tolist() == [3, 0, 3, 2]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8))
def test_saturation_equals_the_plain_walk_back(ranks: list[int]) -> None:
    ranks[-1] = 1
    layer = len(ranks) - 1
    while layer > 0 and ranks[layer - 1] == 1:
        layer -= 1
    assert int(saturation_layer(torch.tensor(ranks))) == layer


def test_elimination_is_the_deepest_fall_and_the_earliest_of_equals() -> None:
    layer, rank = elimination_layer(torch.tensor([[1, 3, 1], [8, 10, 1], [8, 2, 1]]))
    assert layer.tolist() == [1, 1, 0] and rank.tolist() == [8, 10, 1]


def test_events_name_cause_and_candidate() -> None:
    events = events_of(
        final=torch.tensor([4, 6, 7]),
        final_ranks_entering=torch.tensor([[9, 5, 1], [2, 1, 1]]),
        final_ranks_before=torch.tensor([[4, 1, 1], [3, 1, 1]]),
        final_ranks_after=torch.tensor([[2, 1, 1], [1, 1, 1]]),
        candidates=torch.tensor([[9, 6, 7], [8, 6, 7]]),
        candidate_ranks_after=torch.tensor([[1, 1, 1], [6, 1, 1]]),
    )
    assert [(e.kind, e.position, e.layer, e.token, e.rank_before, e.rank_after, e.cause) for e in events] == [
        ("saturation", 0, 1, 4, 3, 1, "ffn"),
        ("elimination", 0, 1, 8, 1, 6, "ffn"),
        ("saturation", 1, 0, 6, 5, 1, "attention"),
        ("saturation", 2, 0, 7, 1, 1, "embedding"),
    ]
