"""Events on rank sequences made by hand."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from unembed.memories.events import elimination_layer, events_of, saturation_layer


def test_saturation_is_the_start_of_the_last_unbroken_run_of_firsts() -> None:
    ranks = torch.tensor([[5, 0, 3, 0], [0, 0, 2, 4], [3, 0, 1, 0], [0, 0, 0, 0]])
    assert saturation_layer(ranks).tolist() == [3, 0, 3, 2]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_saturation_equals_the_plain_walk_back(ranks: list[int]) -> None:
    ranks[-1] = 0
    layer = len(ranks) - 1
    while layer > 0 and ranks[layer - 1] == 0:
        layer -= 1
    assert int(saturation_layer(torch.tensor(ranks))) == layer


def test_elimination_is_the_deepest_fall_and_the_earliest_of_equals() -> None:
    layer, rank = elimination_layer(torch.tensor([[0, 2, 0], [7, 9, 0], [7, 1, 0]]))
    assert layer.tolist() == [1, 1, 0] and rank.tolist() == [7, 9, 0]


def test_events_name_cause_and_candidate() -> None:
    events = events_of(
        final=torch.tensor([4, 6]),
        final_ranks_before=torch.tensor([[3, 0], [2, 0]]),
        final_ranks_after=torch.tensor([[1, 0], [0, 0]]),
        candidates=torch.tensor([[9, 6], [8, 6]]),
        candidate_ranks_after=torch.tensor([[0, 0], [5, 0]]),
    )
    assert [(e.kind, e.position, e.layer, e.token, e.rank_before, e.rank_after, e.cause) for e in events] == [
        ("saturation", 0, 1, 4, 2, 0, "ffn"),
        ("elimination", 0, 1, 8, 0, 5, "ffn"),
        ("saturation", 1, 0, 6, 0, 0, "attention"),
    ]
