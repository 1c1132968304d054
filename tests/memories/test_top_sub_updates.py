"""Sub-updates of several layers at once against those of each layer."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny
from tests.families import WITH_MEMORIES


@pytest.mark.parametrize("name", WITH_MEMORIES)
def test_sub_updates_of_all_layers_are_those_of_each(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name)
    trace, layers = lm.trace(tokens[0], show_unlearned=True), range(lm.n_layers)
    for n, rows in zip(layers, trace.sub_updates_of(layers, 3, 4, 11), strict=True):
        assert [r.index for r in rows] == [r.index for r in trace.sub_updates(n, 3, 4, 11)]
        for row in rows:
            assert row.top_tokens == lm.values.top_tokens(n, row.index, 10, show_unlearned=True)
            assert row.bottom_tokens == lm.values.top_tokens(n, row.index, 10, bottom=True, show_unlearned=True)


def test_a_sub_update_that_lowers_a_token_is_told_by_what_it_suppresses() -> None:
    from dataclasses import replace

    from unembed.memories.top_sub_updates import SubUpdate

    row = SubUpdate(0, 1, -2.0, 1.0, 2.0, 0.5, -0.3, ["high"], ["low"])
    assert (row.promoted, row.suppressed, row.lowers) == (["low"], ["high"], True)
    other = replace(row, coefficient=2.0, score=0.3)
    assert (other.promoted, other.suppressed, other.lowers) == (["high"], ["low"], False)
    assert not replace(row, score=None).lowers
