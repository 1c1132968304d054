"""Total effects of an attribution's writers."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import tiny

import unembed
from unembed.errors import Unsupported
from unembed.logit_attribution.result import EffectRow

TOKENS = torch.tensor([5, 17, 23, 42, 11, 8])


def test_total_effects_by_source_token_are_refused() -> None:
    with pytest.raises(Unsupported, match="by source token"):
        tiny("llama").trace(TOKENS).attribution(7, by="source").with_effects()


def test_writers_of_the_last_layer_have_equal_effects_where_no_norm_follows() -> None:
    lm = unembed.load("attn-1l")
    trace = lm.trace("Once upon a time there was a little")
    rows = trace.attribution(" girl", by="head").with_effects(8).rows
    assert all(row.total == pytest.approx(row.direct, rel=1e-3, abs=1e-4) for row in rows if row.total is not None)
    assert all(row.note in ("", "not ablated") for row in rows)


@pytest.mark.parametrize(
    ("direct", "total", "is_last", "note"),
    [
        (0.0, 0.5, False, "acts through later layers"),
        (0.0, 0.0, False, ""),
        (0.5, 0.0, False, "later layers compensate"),
        (0.5, -0.2, False, "opposite sign: later layers reverse it"),
        (0.5, -0.2, True, "opposite sign: what follows in this layer and the final norm reverse it"),
        (0.5, 0.4, False, ""),
    ],
)
def test_a_direct_and_a_total_effect_are_compared_in_words(direct, total, is_last, note):
    assert EffectRow("L3", 3, None, direct, total, is_last).note == note
