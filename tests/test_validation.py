"""Checks of arguments: what passes, and the sentence for what does not."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from unembed.errors import InvalidInput
from unembed.validation import as_int, as_tuple, finite_float, one_of, positive_int, valid_seed


def test_a_value_outside_the_list_is_refused_with_the_list() -> None:
    one_of("basis", "raw", ("raw", "final"))
    with pytest.raises(InvalidInput, match=re.escape("basis 'frozen': it is not one of raw, final")):
        one_of("basis", "frozen", ("raw", "final"))
    with pytest.raises(InvalidInput, match="it is not one of raw, final"):
        one_of("basis", None, iter(["raw", "final"]))


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3)])
def test_integers_of_every_library_are_whole_numbers(value) -> None:
    assert as_int("top", value) == 3 and type(as_int("top", value)) is int


@pytest.mark.parametrize("value", [True, 3.0, "3", torch.tensor([1, 2]), None])
def test_other_values_are_not_whole_numbers(value) -> None:
    with pytest.raises(InvalidInput, match="it is not a whole number"):
        as_int("top", value)


def test_a_number_outside_its_range_is_refused_with_the_bound_it_breaks() -> None:
    assert (positive_int("top", 1), positive_int("top", 0, 0), valid_seed(2**32 - 1)) == (1, 0, 2**32 - 1)
    with pytest.raises(InvalidInput, match="top 0: it must be at least 1"):
        positive_int("top", 0)
    with pytest.raises(InvalidInput, match="seed 4294967296: it must be at most 4294967295"):
        valid_seed(2**32)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", None, 10**400])
def test_a_number_that_is_not_finite_is_refused(value) -> None:
    assert finite_float("value", torch.tensor(0.5)) == 0.5
    with pytest.raises(InvalidInput, match="it is not a finite number"):
        finite_float("value", value)


def test_a_string_is_not_a_list_of_letters() -> None:
    assert as_tuple("prompts", np.array([1, 2])) == (1, 2)
    for value in ("abc", b"abc", {"a": 1}, 3, np.array(3)):
        with pytest.raises(InvalidInput, match="it is not a list"):
            as_tuple("prompts", value)
