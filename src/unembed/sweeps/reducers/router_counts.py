"""Count how often the router of a mixture of experts chooses each expert in a corpus, and for which tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.errors import InvalidInput, OutOfRange
from unembed.models.decoder import Decoder
from unembed.models.structure.experts import RoutedCoefficients
from unembed.sweeps.reducers.pointwise import Pointwise
from unembed.sweeps.reducers.reducer import Summed


@dataclass(frozen=True, eq=False)
class Routing:
    """How often each routed expert was chosen, by layer."""

    layers: tuple[int, ...]
    count: int
    """Number of positions that were counted."""
    chosen: tuple[Int[Tensor, " _"], ...]
    """By layer, the number of positions at which each expert was chosen."""
    tokens: tuple[Int[Tensor, "_ d_vocab"], ...] | None
    """By layer, how often each expert read each token; None where tokens were not counted."""
    all_tokens: Int[Tensor, " d_vocab"] | None

    def share(self, layer: int) -> Float[Tensor, " expert"]:
        """Return the share of positions at which each expert of a layer was chosen."""
        return self.chosen[self._row(layer)].double() / max(self.count, 1)

    def top_tokens(self, layer: int, expert: int, top: int = 10, *, least: int = 5) -> list[tuple[int, int, float]]:
        """Return the tokens for which an expert is chosen most often, relative to how often the token occurs.

        Args:
            layer: a layer in which choices were counted.
            expert: the number of the expert in the layer.
            least: the smallest number of occurrences of a token in the result.

        Returns:
            For each token its id, how often the expert was chosen for it, and the share of its occurrences. The largest
            shares come first, equal shares by count.
        """
        if self.tokens is None or self.all_tokens is None:
            raise InvalidInput(
                "the tokens that an expert reads", why="they were not counted", instead="Use the reducer RoutedTokens"
            )
        counts = self.tokens[self._row(layer)][expert].double()
        share = torch.where(self.all_tokens >= least, counts / self.all_tokens.clamp_min(1), -1.0)
        order = (share + counts / (1e6 * max(float(counts.max()), 1.0))).argsort(descending=True, stable=True)[:top]
        return [(t, int(counts[t]), float(share[t])) for t in order.tolist() if counts[t] > 0 and share[t] > 0]

    def _row(self, layer: int) -> int:
        if layer not in self.layers:
            raise OutOfRange(f"layer {layer}", why=f"routing was counted only in layers {list(self.layers)}")
        return self.layers.index(layer)


class RoutedShare(Summed, Pointwise):
    """Counts the positions at which each routed expert of each layer is chosen.

    Args:
        layers: the layers to count in, which must have experts; by default, all that have them.

    Memory: 8 bytes for each expert.
    """

    counts_tokens = False

    def __init__(self, layers: Sequence[int] | None = None) -> None:
        super().__init__("coefficients", layers)

    def start(self, lm: Decoder) -> None:
        """Start with counts of 0.

        Raises:
            InvalidInput: a chosen layer has no experts.
        """
        super().start(lm)
        experts = {n: lm.experts_of(n) for n in self._layers}
        if self.layers is not None and None in experts.values():
            raise InvalidInput(f"routing in layers {list(self._layers)}", why="some of these layers have no experts")
        sizes = {n: e[0] for n, e in experts.items() if e is not None}
        self._layers = tuple(sizes)
        vocabulary = lm.d_vocab if self.counts_tokens else 0
        self._sums = {"count": torch.zeros((), dtype=torch.long), "all": torch.zeros(vocabulary, dtype=torch.long)}
        for n, size in sizes.items():
            self._sums[f"chosen.{n}"] = torch.zeros(size, dtype=torch.long)
            if self.counts_tokens:
                self._sums[f"tokens.{n}"] = torch.zeros(size, vocabulary, dtype=torch.int32)

    def see_routed(self, layer: int, routed: RoutedCoefficients, batch: Batch) -> None:
        """Count how often each expert of a layer was chosen."""
        position, expert = routed.position.cpu(), routed.expert.cpu()
        counted = batch.counted.flatten()[position]
        position, expert = position[counted], expert[counted]
        chosen = self._sums[f"chosen.{layer}"]
        chosen += torch.bincount(expert, minlength=len(chosen))
        if self.counts_tokens:
            table = self._sums[f"tokens.{layer}"]
            cells = expert * table.shape[1] + batch.tokens.flatten()[position]
            cell, n = cells.unique(return_counts=True)
            table.view(-1)[cell] += n.to(torch.int32)

    def update(self, batch: Batch) -> None:
        """Count the positions of a batch."""
        self._sums["count"] += batch.n_counted
        if self.counts_tokens:
            self._sums["all"] += torch.bincount(batch.tokens[batch.counted], minlength=len(self._sums["all"]))

    def result(self) -> Routing:
        """Return the counts so far."""
        chosen = tuple(self._sums[f"chosen.{n}"].clone() for n in self._layers)
        count, tokens, everywhere = int(self._sums["count"]), None, None
        if self.counts_tokens:
            tokens = tuple(self._sums[f"tokens.{n}"].clone() for n in self._layers)
            everywhere = self._sums["all"].clone()
        return Routing(self._layers, count, chosen, tokens, everywhere)


class RoutedTokens(RoutedShare):
    """Counts the positions at which each routed expert is chosen, and the tokens at these positions.

    Memory: 4 bytes for each token of the vocabulary and each expert of the chosen layers. In a large model, choose a
    few layers.
    """

    counts_tokens = True
