"""What generation needs of an exit: a score, asked after each layer, and a threshold for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from unembed.control.early_exit.examples import Examples
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder


@runtime_checkable
class Score(Protocol):
    """What an exit asks after each layer; a token leaves where it is above the threshold."""

    @property
    def name(self) -> str:
        """As `fit` takes it."""
        ...

    @property
    def points(self) -> tuple[str, ...]:
        """What it reads of a layer."""
        ...

    def scores(self, found: Examples) -> np.ndarray:
        """(example, layer), without the last layer."""
        ...

    def is_above(self, threshold: float, lm: Decoder, layer: int, seen: Mapping[str, Tensor]) -> bool:
        """Whether the token under way scores above a threshold, from its own tensors; cheaper than the score."""
        ...

    def state(self) -> dict[str, Any]:
        """Arrays to save."""
        ...


@runtime_checkable
class Exit(Protocol):
    """When a token may leave a model."""

    @property
    def lm(self) -> Decoder:
        """The model that is left."""
        ...

    @property
    def score(self) -> Score:
        """What is asked after each layer."""
        ...

    @property
    def thresholds(self) -> np.ndarray:
        """One for each layer but the last."""
        ...

    def at(self, threshold: float) -> Exit:
        """The same with one threshold for all layers."""
        ...


def require_exit(rule: Any) -> Exit:
    """The rule, if it is one, and not the path of one that was saved.

    Raises:
        InvalidInput: it is something else.
    """
    if not isinstance(rule, Exit):
        raise InvalidInput(f"rule {rule!r:.60}", why="it is no exit", instead="Fit one, or give what load returns")
    return rule
