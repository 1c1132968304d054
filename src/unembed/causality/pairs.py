"""Activation patching over several pairs of prompts: the mean of the fraction recovered, and its spread.

Pairs share batches. They may differ in length: the batches are padded, and each pair gives the numbers that it gives
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.causality.metrics import Metric, MetricFunction
from unembed.causality.patching import Alignment, Direction, Patching, plan_patching
from unembed.causality.rerun import measured_together
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import PatchPoint
from unembed.results import Displayed, Table
from unembed.stream.interventions import Edits
from unembed.stream.run import Tokens, unpadded

PAIRS_AT_ONCE = 32
"""Pairs whose activations are in memory at once."""


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
    clean: Sequence[Tokens] | Tensor,
    corrupted: Sequence[Tokens] | Tensor,
    points: PatchPoint = "z",
    metric: Metric | MetricFunction | Sequence[Metric | MetricFunction | None] | None = None,
    *,
    attention_mask: tuple[Tensor, Tensor] | None = None,
    positions: Sequence[int] | None = None,
    alignment: Alignment | None = None,
    direction: Direction = "denoising",
    edits: Edits = (),
    batch: int | None = None,
) -> PatchingPairs:
    """`patch` for each of several pairs of prompts, in padded batches.

    Args:
        clean: the prompts with the behaviour: texts, tokens of each, or ids (pair, pos) with a mask.
        corrupted: the prompts without it, in the same order.
        points: as in `patch`, but for coefficients, whose memories differ between pairs.
        metric: one for all pairs, or one for each.
        attention_mask: of the clean and of the corrupted ids, 1 at real tokens; padding may be on either side.
        positions: as in `patch`; they count from each prompt's first real token.
        alignment: as in `patch`, for every pair.
        direction: as in `patch`.
        edits: changes that hold in all runs.
        batch: rows in memory at once, of all pairs together.

    Raises:
        InvalidInput: the numbers of clean prompts, corrupted prompts and metrics differ; or a pair that `patch`
            refuses.

    Memory: both runs' activations of `PAIRS_AT_ONCE` pairs, and one batch of rows.

    In float64 the numbers are those of `patch` to 1e-9 (1e-6 where the model's norms compute in float32); in half
    precision they differ by rounding, up to 2e-2 of the largest logit in bfloat16 and 2e-3 in float16.
    """
    masks = attention_mask or (None, None)
    pairs = tuple(unpadded(lm, one, mask) for one, mask in zip((clean, corrupted), masks, strict=True))
    n_pairs = len(pairs[0])
    if len(pairs[1]) != n_pairs:
        raise InvalidInput("pairs of prompts", why="the numbers of clean and corrupted prompts differ")
    if points == "coefficients":
        raise InvalidInput("coefficients over pairs", why="each pair patches its own memories", instead="Use patch")
    metrics = list(metric) if isinstance(metric, Sequence) else [metric] * n_pairs
    if len(metrics) != n_pairs:
        raise InvalidInput(
            f"{len(metrics)} metrics", why=f"there are {n_pairs} pairs", instead="Give one, or one for each pair"
        )
    each: list[Patching] = []
    for start in range(0, n_pairs, PAIRS_AT_ONCE):
        plans = [
            plan_patching(
                lm, a, b, points, one, positions=positions, alignment=alignment, direction=direction, edits=edits
            )
            for a, b, one in list(zip(*pairs, metrics, strict=True))[start : start + PAIRS_AT_ONCE]
        ]
        values = measured_together([(plan.pair.target, plan.rows, plan.function) for plan in plans], batch)
        each += [plan.result(of) for plan, of in zip(plans, values, strict=True)]
    return PatchingPairs(tuple(each))
