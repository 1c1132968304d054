"""The tests check every signature of the package at run time: its shapes and its types."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.run_time_checks import install

CODE = """
from __future__ import annotations
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from jaxtyping import Float
from torch import Tensor
if TYPE_CHECKING:
    from nowhere import Nothing

Rows = Float[Tensor, "row d"]

def equal_sizes(a: Rows, b: Rows) -> None: ...
def text(one: str, other: Nothing = None) -> int: return one
def by_local(a: Tensor) -> None:
    def rows(x: Rows) -> None: ...
    def number(x: int) -> None: ...
    number(1)
    rows(a)

def parts(a: Rows, b: Rows) -> Iterator[Rows]:
    yield a
def columns(a: Float[Tensor, "d row"]) -> Rows:
    return [part.T for part in parts(a, a)][0]

@dataclass
class Point:
    at: Float[Tensor, " d"]
    name: str = ""
    def moved(self, by: Float[Tensor, " d"]) -> Point: return Point(self.at + by)

@dataclass
class Named:
    name: str
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "checked_example.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    install("checked_example")
    yield importlib.import_module("checked_example")
    del sys.modules["checked_example"]


def test_what_fits_passes(module: ModuleType) -> None:
    module.equal_sizes(torch.zeros(2, 3), torch.zeros(2, 3))
    module.by_local(torch.zeros(2, 3))
    assert module.Point(torch.zeros(3)).moved(torch.ones(3)).at.tolist() == [1, 1, 1]
    assert module.Named("a").name == "a"
    assert module.columns(torch.zeros(2, 3)).shape == (3, 2), "a part's letters are its own"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("equal_sizes", (torch.zeros(2, 3), torch.zeros(2, 4))),
        ("equal_sizes", (torch.zeros(3), torch.zeros(3))),
        ("by_local", (torch.zeros(3),)),
        ("parts", (torch.zeros(2, 3), torch.zeros(2, 4))),
        ("text", (1,)),
        ("text", ("not an integer",)),
        ("Point", (torch.zeros(2, 3),)),
        ("Point", (torch.zeros(3), 1)),
        ("Named", (1,)),
    ],
)
def test_what_does_not_fit_fails(module: ModuleType, name: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError, match=r"violates type hint|ype-check"):
        getattr(module, name)(*arguments)


def test_a_method_is_checked(module: ModuleType) -> None:
    with pytest.raises(TypeError, match="violates type hint"):
        module.Point(torch.zeros(3)).moved(torch.zeros(2, 3))
