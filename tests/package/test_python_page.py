"""The page of public names is what `python -m tools.python_reference` writes, and the names are few."""

from __future__ import annotations

import importlib
import warnings

import pytest

import unembed
from tests.package.shown import README
from tools import python_reference

PAGE = README.parent / "docs" / "python.md"


def test_the_page_lists_the_public_names_as_they_are() -> None:
    """`python -m tools.python_reference` writes it anew."""
    page = PAGE.read_text(encoding="utf-8")
    assert python_reference.written(page) == page


def test_there_are_at_most_150_public_names() -> None:
    counts = {place: len(names) for place, names in python_reference.names().items()}
    assert sum(counts.values()) <= python_reference.MOST, counts


def test_every_name_that_is_offered_exists() -> None:
    lm = unembed.load("attn-1l")
    for offered in (lm, lm.values, lm.circuits):
        assert [name for name in dir(offered) if not hasattr(offered, name)] == []
    trace = unembed.load().trace("A month")
    assert [name for name in dir(trace) if not hasattr(trace, name)] == []
    for name in ("build", "open", "triggers", "memories", "labels"):
        assert name in unembed.Index.__dir__(object.__new__(unembed.Index))


@pytest.mark.parametrize("written", python_reference.SPELLINGS)
def test_other_spellings_stay_callable_without_a_warning_and_are_not_offered(written: str) -> None:
    name = written.partition("(")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert callable(getattr(unembed, name))
    assert name not in dir(unembed)


def test_a_name_of_the_last_release_says_what_it_is_called_now() -> None:
    with pytest.warns(DeprecationWarning, match=r"unembed\.examine is now check_environment"):
        assert unembed.examine is importlib.import_module("unembed.environment").check_environment
