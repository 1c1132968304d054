"""The settings of an index, which determine what it stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unembed.names import Poles, TriggersBy
from unembed.validation import as_tuple, positive_int

if TYPE_CHECKING:  # so that an index can be read without importing torch
    from unembed.sweeps import Fast, TopTriggers

BuildProgress = Callable[[str, int, int | None], None]
"""A function called with the name of a part of the index, the amount done, and the total (None if unknown)."""


@dataclass(frozen=True)
class IndexSettings:
    """What an index stores: for every memory (FFN neuron), mainly the texts on which it fires most (triggers).

    Attributes:
        top: number of triggers for each memory and sign of its coefficient.
        top_tokens: number of promoted, and of suppressed, tokens for each value vector.
        poles: signs of coefficients to store triggers for: "positive", "both", or "auto" (both in gated layers only).
        by: in gated layers, what triggers are sorted by: the coefficient ("product") or the gate ("gate").
        min_prefix: smallest number of text tokens in a trigger.
        skip_first: ignore the first position of every segment.
        per_document: largest number of triggers of a memory from one document.
        distinct: store only one of several triggers with the same text.
        fast: run the model faster: "float32" (faster kernels, which round differently) or "bfloat16" (matrix products
            in bfloat16). The provenance then gives the largest change of a coefficient in the first batch, relative to
            the largest coefficient of its layer.
        layers: the layers to store, counted from 0; all that have memories when None.

    Raises:
        InvalidInput: a setting has an invalid value.
    """

    top: int = 25
    top_tokens: int = 30
    poles: Poles = "auto"
    by: TriggersBy = "product"
    min_prefix: int = 0
    skip_first: bool = False
    per_document: int | None = None
    distinct: bool = False
    fast: Fast | None = None
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Convert counts to plain ints, so that the manifest can store them."""
        least = {"top": 1, "top_tokens": 1, "min_prefix": 0, "per_document": 1}
        for name, bound in least.items():
            if (number := getattr(self, name)) is not None:
                object.__setattr__(self, name, positive_int(name, number, bound))
        if self.layers is not None:
            chosen = sorted({positive_int("layer", n, 0) for n in as_tuple("layers", self.layers)})
            object.__setattr__(self, "layers", tuple(chosen))

    def top_triggers(self) -> TopTriggers:
        """Return the reducer that collects the largest coefficients of every memory during a pass over the corpus."""
        from unembed.sweeps import TopTriggers

        return TopTriggers(
            self.top,
            self.layers,
            poles=self.poles,
            by=self.by,
            min_prefix=self.min_prefix,
            skip_first=self.skip_first,
            per_document=self.per_document,
            distinct=self.distinct,
        )
