"""A name that no model has is answered with the names that there are, a like one first."""

from __future__ import annotations

import pytest

import unembed
from unembed.errors import ModelUnavailable
from unembed.models.known_names import did_you_mean, known_names


@pytest.mark.parametrize(
    ("name", "meant"), [("smolm2", "smollm2"), ("SmolLM2", "smollm2"), ("atn-2l", "attn-2l"), ("gpt2", ""), ("x", "")]
)
def test_a_like_name_is_asked_for(name: str, meant: str) -> None:
    assert did_you_mean(name) == (f"Did you mean {meant}? " if meant else "")


def test_a_name_of_no_model_is_refused_with_a_like_one_and_all_that_can_be_opened() -> None:
    with pytest.raises(ModelUnavailable) as caught:
        unembed.load("smolm2", offline=True)
    assert "Did you mean smollm2? Check" in str(caught.value)
    assert all(name in str(caught.value) for name in ("wren", "attn-2l", "smollm2"))
    assert known_names()[0] == "wren"
