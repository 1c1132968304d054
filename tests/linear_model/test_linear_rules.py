"""The linear rules of parts."""

from __future__ import annotations

import pytest

from unembed.linear_model.linear_rules import slope_at_zero


def test_activations_have_their_slope_at_zero() -> None:
    assert slope_at_zero("gelu") == pytest.approx(0.5, abs=1e-4)
    assert slope_at_zero("relu") == pytest.approx(0.5)  # between the two sides, 0 and 1
    assert slope_at_zero("something else") == 0.0
