"""Protocols of early exit: a score, computed after each layer, and an exit rule with one threshold for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from unembed.early_exit.example_prefixes import Examples
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder


@runtime_checkable
class Score(Protocol):
    """A score computed after each layer; a token exits where it is above the threshold."""

    @property
    def name(self) -> str:
        """The method's name, as in `fit`."""
        ...

    @property
    def points(self) -> tuple[str, ...]:
        """The tensors of a layer that it reads."""
        ...

    def scores(self, found: Examples) -> np.ndarray:
        """(example, layer), without the last layer."""
        ...

    def is_above(self, threshold: float, lm: Decoder, layer: int, seen: Mapping[str, Tensor]) -> bool:
        """Whether the current token scores above a threshold, from its own tensors; cheaper than the score."""
        ...

    def state(self) -> dict[str, Any]:
        """Arrays to save."""
        ...


@runtime_checkable
class Exit(Protocol):
    """Decides after which layer a token exits."""

    @property
    def lm(self) -> Decoder:
        """The model."""
        ...

    @property
    def score(self) -> Score:
        """The score computed after each layer."""
        ...

    @property
    def thresholds(self) -> np.ndarray:
        """One for each layer but the last."""
        ...

    def at(self, threshold: float) -> Exit:
        """The same rule with one threshold for all layers."""
        ...


def require_exit(rule: Any) -> Exit:
    """The same object, checked to be an exit rule.

    Raises:
        InvalidInput: the object is not an exit rule, for instance the path of a saved one.
    """
    if not isinstance(rule, Exit):
        raise InvalidInput(f"rule {rule!r:.60}", why="it is not an exit rule", instead="Fit one, or load a saved one")
    return rule
