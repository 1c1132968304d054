"""The interfaces of early exit: a score for each layer, and a rule that compares it with a threshold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from unembed.early_exit.example_prefixes import Examples
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import Basis


@runtime_checkable
class Score(Protocol):
    """A score computed after each layer; a token exits if the score is above the threshold."""

    @property
    def name(self) -> str:
        """The name of the exit method, as passed to `fit`."""
        ...

    @property
    def points(self) -> tuple[str, ...]:
        """Names of the activations of a layer that the score reads."""
        ...

    def scores(self, found: Examples) -> np.ndarray:
        """Return the scores of examples at every layer but the last, (example, layer)."""
        ...

    def is_above(self, threshold: float, lm: Decoder, layer: int, seen: Mapping[str, Tensor]) -> bool:
        """Return whether the current token's score is above a threshold; may be faster than computing the score."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the arrays to save."""
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
        """The score that is computed after each layer."""
        ...

    @property
    def basis(self) -> Basis:
        """How a layer's stream becomes a prediction: "final" (the logit lens) or "jacobian" (the fitted lens)."""
        ...

    @property
    def thresholds(self) -> np.ndarray:
        """The thresholds, one for each layer but the last; with infinity, no decision is made."""
        ...

    def at(self, threshold: float) -> Exit:
        """Return the same rule with one threshold for all layers."""
        ...


def require_exit(rule: Any) -> Exit:
    """Return the object after checking that it is an exit rule.

    Raises:
        InvalidInput: the object is not an exit rule, for instance the path of a saved one.
    """
    if not isinstance(rule, Exit):
        raise InvalidInput(f"rule {rule!r:.60}", why="it is not an exit rule", instead="Fit one, or load a saved one")
    return rule
