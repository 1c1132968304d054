"""Activation patching over several pairs of prompts: the mean of the fraction recovered, and its spread.

Every pair is run by itself, without padding, so each has the numbers that it has alone; texts may differ in length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.causality.metrics import Metric, MetricFunction
from unembed.causality.patching import Patching, patch
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import PatchPoint
from unembed.results import Table
from unembed.results.display import Displayed
from unembed.stream.run import Tokens


@dataclass(frozen=True, eq=False, repr=False)
class PatchingPairs(Displayed):
    """The patchings of several pairs of prompts, in their order."""

    each: tuple[Patching, ...]

    @property
    def all_recovered(self) -> Float[Tensor, "pair layer ..."]:
        """The fraction recovered in every pair.

        Raises:
            InvalidInput: the pairs differ in length, so that their positions do not correspond.
        """
        shapes = {tuple(one.values.shape) for one in self.each}
        if len(shapes) > 1 or len({one.positions for one in self.each if one.by_position}) > 1:
            raise InvalidInput(
                "the mean over these pairs",
                why="they differ in length, so their positions do not correspond",
                instead="Use points='z' without positions, or prompts of equal length; `each` has every pair",
            )
        return torch.stack([one.recovered for one in self.each])

    @property
    def recovered(self) -> Float[Tensor, "layer ..."]:
        """The mean fraction recovered."""
        return self.all_recovered.mean(dim=0)

    @property
    def spread(self) -> Float[Tensor, "layer ..."]:
        """The standard deviation over pairs; NaN with one pair."""
        each = self.all_recovered
        return each.std(dim=0) if len(each) > 1 else torch.full_like(each[0], float("nan"))

    def to_table(self) -> Table:
        """One row for each patched activation, the largest mean effect first."""
        first, mean, spread = self.each[0], self.recovered, self.spread
        order = mean.flatten().abs().argsort(descending=True)
        places = torch.unravel_index(order, mean.shape)
        columns: dict[str, list[Any]] = {"layer": [first.layers[i] for i in places[0].tolist()]}
        axes = ["position"] if first.by_position and first.point not in ("z", "pattern") else ["head", "position"]
        for name, axis in zip(axes, places[1:], strict=False):
            columns[name] = axis.tolist() if name == "head" else [first.positions[i] for i in axis.tolist()]
        columns["recovered"] = mean.flatten()[order].tolist()
        if len(self.each) > 1:
            columns["spread"] = spread.flatten()[order].tolist()
        title = f"Patching {first.point} ({first.direction}): mean fraction recovered over {len(self.each)} pairs"
        return Table(title, columns, first.provenance)


def patch_pairs(
    lm: Decoder,
    clean: Sequence[Tokens],
    corrupted: Sequence[Tokens],
    points: PatchPoint = "z",
    metric: Metric | MetricFunction | Sequence[Metric | MetricFunction | None] | None = None,
    **options: Any,
) -> PatchingPairs:
    """`patch` for each of several pairs of prompts.

    Args:
        lm: the model.
        clean: the prompts with the behaviour.
        corrupted: the prompts without it, in the same order.
        points: as in `patch`, but for coefficients, whose memories differ between pairs.
        metric: one for all pairs, or one for each.
        options: as in `patch`.

    Raises:
        InvalidInput: as many clean as corrupted prompts and metrics are needed; or a pair that `patch` refuses.
    """
    if isinstance(clean, str) or isinstance(corrupted, str) or len(clean) != len(corrupted) or not len(clean):
        raise InvalidInput("pairs of prompts", why="as many clean as corrupted ones are needed")
    if points == "coefficients":
        raise InvalidInput("coefficients over pairs", why="each pair patches its own memories", instead="Use patch")
    metrics = list(metric) if isinstance(metric, Sequence) else [metric] * len(clean)
    if len(metrics) != len(clean):
        raise InvalidInput(
            f"{len(metrics)} metrics", why=f"there are {len(clean)} pairs", instead="Give one, or as many"
        )
    each = [patch(lm, a, b, points, one, **options) for a, b, one in zip(clean, corrupted, metrics, strict=True)]
    return PatchingPairs(tuple(each))
