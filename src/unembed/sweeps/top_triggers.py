"""The top-t prefixes of every key of every layer at once, exactly, in (keys, t) values and positions.

Geva et al. 2021, section 3: for each key the prefixes of a corpus with the highest memory coefficient.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.models.decoder import Decoder
from unembed.sweeps.reducer import Need, Reducer

EMPTY = torch.iinfo(torch.int64).max
"""Position of a slot that holds nothing; its value is -inf."""


@dataclass(frozen=True, eq=False)
class Triggers:
    """The top-t list of every key, best first; equal values by earlier position.

    Attributes:
        layers: which layers, in order.
        values: per layer (keys, t), float32; -inf where a key has fewer triggers (at the negative pole +inf).
        positions: per layer (keys, t), places on the corpus axis; -1 where a key has fewer triggers.
        negative_values: the most negative coefficients, lowest first, where both poles were asked.
        negative_positions: their places.
        tokens_seen: how many positions were counted.
    """

    layers: tuple[int, ...]
    values: tuple[Float[Tensor, "key t"], ...]
    positions: tuple[Int[Tensor, "key t"], ...]
    negative_values: tuple[Float[Tensor, "key t"], ...] | None
    negative_positions: tuple[Int[Tensor, "key t"], ...] | None
    tokens_seen: int

    def of(self, layer: int, index: int, pole: str = "positive") -> list[tuple[float, int]]:
        """(coefficient, position) of one key's triggers, best first."""
        row = self.layers.index(layer)
        values, positions = (
            (self.values, self.positions)
            if pole == "positive" or self.negative_values is None or self.negative_positions is None
            else (self.negative_values, self.negative_positions)
        )
        found = zip(values[row][index].tolist(), positions[row][index].tolist(), strict=True)
        return [(value, position) for value, position in found if position >= 0]


class TopTriggers(Reducer):
    """The top-t prefixes of all keys of all layers.

    A coefficient of exactly 0 adds nothing to the stream and is never a trigger.

    Args:
        top: how many per key.
        layers: which layers; all when None.
        poles: "positive", "both", or "auto": both in gated layers, where coefficients are signed.
        min_prefix: least tokens of text in a prefix.
        skip_first: leave out column 0, where many models put very large activations.
    """

    def __init__(
        self,
        top: int = 25,
        layers: Sequence[int] | None = None,
        *,
        poles: str = "auto",
        min_prefix: int = 1,
        skip_first: bool = False,
    ) -> None:
        """Settings only; sizes come with `start`."""
        self.top, self.layers, self.poles = top, None if layers is None else tuple(layers), poles
        self.min_prefix, self.skip_first = min_prefix, skip_first

    def start(self, lm: Decoder) -> None:
        """Empty lists for every key."""
        self._layers = tuple(range(lm.n_layers)) if self.layers is None else tuple(lm.layer(n) for n in self.layers)
        self._signs: dict[int, tuple[int, ...]] = {}
        self._lists: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._seen = 0
        for layer in self._layers:
            site = lm.feed_forward(layer)
            both = self.poles == "both" or (self.poles == "auto" and site.is_gated)
            self._signs[layer] = (1, -1) if both else (1,)
            keys = lm.weights.W_out[layer].shape[0]
            for sign in self._signs[layer]:
                self._lists[layer, sign] = (
                    torch.full((keys, self.top), -torch.inf),
                    torch.full((keys, self.top), EMPTY),
                )

    @property
    def needs(self) -> Collection[Need]:
        """The coefficients of every layer asked."""
        return [("coefficients", layer) for layer in self._layers]

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Merge a layer's coefficients into its lists."""
        counted = self._counted(batch)
        values, positions = tensor[counted].T.float(), batch.positions[counted]
        for sign in self._signs[layer]:
            signed = values * sign
            self._merge(layer, sign, signed.masked_fill(values == 0, -torch.inf), positions.expand_as(values))

    def _counted(self, batch: Batch) -> Tensor:
        counted = batch.counted & (batch.prefix_lengths >= self.min_prefix)
        return counted & (batch.columns > 0) if self.skip_first else counted

    def update(self, batch: Batch) -> None:
        """Count what was seen."""
        self._seen += int(self._counted(batch).sum())

    def _merge(self, layer: int, sign: int, values: Tensor, positions: Tensor) -> None:
        kept = self._lists[layer, sign]
        positions = torch.where(values == -torch.inf, EMPTY, positions)
        v, p = torch.cat([kept[0], values], dim=1), torch.cat([kept[1], positions], dim=1)
        p, order = p.sort(dim=1, stable=True)
        v = v.gather(1, order)
        v, order = v.sort(dim=1, descending=True, stable=True)
        self._lists[layer, sign] = (v[:, : self.top].contiguous(), p.gather(1, order)[:, : self.top].contiguous())

    def merge(self, other: Self) -> None:
        """Join two parts; no place may be in both."""
        for (layer, sign), (values, positions) in other._lists.items():
            self._merge(layer, sign, values, positions)
        self._seen += other._seen

    def result(self) -> Triggers:
        """All lists."""

        def lists(sign: int, part: int) -> tuple[Tensor, ...]:
            found = []
            for layer in self._layers:
                held = self._lists.get((layer, sign))
                if held is None:
                    keys = self._lists[layer, 1][0].shape[0]
                    held = (torch.full((keys, self.top), -torch.inf), torch.full((keys, self.top), EMPTY))
                found.append(held[0] * sign if part == 0 else torch.where(held[1] == EMPTY, -1, held[1]))
            return tuple(found)

        negative = any(sign == -1 for _, sign in self._lists)
        return Triggers(
            self._layers,
            lists(1, 0),
            lists(1, 1),
            lists(-1, 0) if negative else None,
            lists(-1, 1) if negative else None,
            self._seen,
        )

    def state(self) -> dict[str, Any]:
        """The lists, per layer and sign."""
        held: dict[str, Any] = {"seen": self._seen}
        for (layer, sign), (values, positions) in self._lists.items():
            held[f"values.{layer}.{sign}"], held[f"positions.{layer}.{sign}"] = values, positions
        return held

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take saved lists back."""
        self._seen = int(state["seen"])
        for layer, sign in self._lists:
            self._lists[layer, sign] = (state[f"values.{layer}.{sign}"], state[f"positions.{layer}.{sign}"])
