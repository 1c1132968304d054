"""Activation patching: replace activations of one run by those of another, one at a time, and measure the prediction.

Source: Vig et al. 2020 and Meng et al. 2022 (causal tracing); Wang et al. 2022 (denoising and noising by head, paths).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack, cast, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.causality.effect_order import ranked
from unembed.causality.metrics import Metric, MetricFunction, metric_of_each
from unembed.causality.paths import Paths, patch_paths
from unembed.causality.prompt_pair import Alignment, Direction, GaussianNoise, PromptPair, prompt_pair, recovered
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import layers_with, measured_together, n_heads_of
from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.names import PATCH_POINTS, STREAM_POINTS, PatchPoint
from unembed.results import Displayed, Provenance, Table, format_signed
from unembed.stream.capture_points import require_point
from unembed.stream.interventions import Edits
from unembed.stream.run import OnePrompt, Run, SeveralPrompts, are_several, unpadded
from unembed.validation import as_tuple, positive_int

_BY_POSITION = (*STREAM_POINTS, "attn_out", "mlp_out")
PAIRS_AT_ONCE = 32
"""Number of pairs whose activations are in memory at once."""


@dataclass(frozen=True, eq=False, repr=False)
class Patching(Displayed):
    """The metric when one activation at a time is replaced by the other run's.

    Attributes:
        values: the metric after each replacement: (layer, pos) for the residual stream, attn_out and mlp_out; (layer,
            head) or (layer, head, pos) for z and pattern; (layer, pos, k) for coefficients, if k memories were patched
            at each position.
        indices: for coefficients, the index of the memory (FFN neuron) that was patched, for each of `values`.
        clean: the metric of the clean run.
        corrupted: the metric of the corrupted run.
        positions: the positions in the patched run along the `pos` axis.
        direction: "denoising" puts clean activations into the corrupted run, "noising" the reverse.
    """

    point: str
    metric: str
    values: Float[Tensor, "layer ..."]
    indices: Int[Tensor, "layer pos k"] | None
    clean: float
    corrupted: float
    layers: tuple[int, ...]
    """The layers along the first axis of `values`: those that have the activation."""
    positions: tuple[int, ...]
    tokens: tuple[str, ...]
    """The texts of the tokens at `positions` in the patched run."""
    direction: Direction
    alignment: str
    """How the prompts were aligned, in words."""
    provenance: Provenance

    @property
    def by_position(self) -> bool:
        """True if the values have an axis of positions."""
        return self.point not in ("z", "pattern") or self.values.dim() == 3

    def _places(self) -> dict[str, list[int]]:
        """Return the columns that say which activation was replaced for each of `values`: layer, head, position."""
        layers, *axes = (i.tolist() for i in torch.unravel_index(torch.arange(self.values.numel()), self.values.shape))
        columns = {"layer": [self.layers[i] for i in layers]}
        if self.point in ("z", "pattern"):
            columns["head"] = axes.pop(0)
        if self.by_position:
            columns["position"] = [self.positions[i] for i in axes[0]]
        return columns

    @property
    def recovered(self) -> Float[Tensor, "layer ..."]:
        """How far each replacement moves the metric: 0 is that of the run before patching, 1 that of the other run."""
        return recovered(self.values, self.clean, self.corrupted, self.direction)

    def to_table(self) -> Table:
        """Return a table with one row for each replaced activation, the largest effect first."""
        columns: dict[str, Any] = self._places()
        if self.by_position:
            texts = dict(zip(self.positions, self.tokens, strict=True))
            columns["token"] = [texts[position] for position in columns["position"]]
        columns |= {"index": self.indices, "metric": self.values, "recovered": self.recovered}
        title = (
            f"Patching {self.point} ({self.direction}): {self.metric}, clean {format_signed(self.clean)}, "
            f"corrupted {format_signed(self.corrupted)}"
        )
        return ranked(title, columns, self.recovered, self.provenance)


@dataclass(frozen=True, eq=False, repr=False)
class PatchingPairs(Displayed):
    """The results of patching several pairs of prompts, in the order of the pairs."""

    each: tuple[Patching, ...]

    @property
    def all_recovered(self) -> Float[Tensor, "pair layer ..."]:
        """The fraction recovered in each pair.

        Raises:
            InvalidInput: the prompts of the pairs differ in length, so their positions do not correspond.
        """
        shapes = {tuple(one.values.shape) for one in self.each}
        if len(shapes) > 1 or len({one.positions for one in self.each if one.by_position}) > 1:
            raise InvalidInput(
                "the mean over these pairs",
                why="they differ in length, so their positions do not correspond",
                instead="Use points='z' without positions, or prompts of equal length, or each pair's result in `each`",
            )
        return torch.stack([one.recovered for one in self.each])

    @property
    def recovered(self) -> Float[Tensor, "layer ..."]:
        """The mean over pairs of the fraction recovered."""
        return self.all_recovered.mean(dim=0)

    @property
    def spread(self) -> Float[Tensor, "layer ..."]:
        """The standard deviation over pairs of the fraction recovered; NaN if there is only one pair."""
        each = self.all_recovered
        return each.std(dim=0) if len(each) > 1 else torch.full_like(each[0], float("nan"))

    def to_table(self) -> Table:
        """Return a table with one row for each replaced activation, the largest mean effect first."""
        first, mean = self.each[0], self.recovered
        spread = self.spread if len(self.each) > 1 else None
        columns: dict[str, Any] = {**first._places(), "recovered": mean, "spread": spread}
        title = f"Patching {first.point} ({first.direction}): mean fraction recovered over {len(self.each)} pairs"
        return ranked(title, columns, mean, first.provenance)


class _Options(TypedDict, total=False):
    layers: Sequence[int] | None
    positions: Sequence[int] | None
    alignment: Alignment | None
    direction: Direction
    edits: Edits
    batch: int | None


@overload
def patch(
    lm: Decoder,
    clean: OnePrompt | Run,
    corrupted: OnePrompt | Run | GaussianNoise,
    points: PatchPoint = "resid_pre",
    metric: Metric | MetricFunction | None = None,
    *,
    top: int = 10,
    **options: Unpack[_Options],
) -> Patching: ...
@overload
def patch(
    lm: Decoder,
    clean: OnePrompt,
    corrupted: OnePrompt | GaussianNoise,
    points: str | Sequence[str],
    metric: Metric | MetricFunction | None = None,
    *,
    through: str | Sequence[str],
    **options: Unpack[_Options],
) -> Paths: ...
@overload
def patch(
    lm: Decoder,
    clean: SeveralPrompts,
    corrupted: SeveralPrompts,
    points: PatchPoint = "resid_pre",
    metric: Metric | MetricFunction | Sequence[Metric | MetricFunction | None] | None = None,
    *,
    attention_mask: tuple[Tensor, Tensor] | None = None,
    **options: Unpack[_Options],
) -> PatchingPairs: ...
@torch.no_grad()
def patch(
    lm: Decoder,
    clean: OnePrompt | Run | SeveralPrompts,
    corrupted: OnePrompt | Run | SeveralPrompts | GaussianNoise,
    points: PatchPoint | str | Sequence[str] = "resid_pre",
    metric: Metric | MetricFunction | Sequence[Metric | MetricFunction | None] | None = None,
    *,
    through: str | Sequence[str] | None = None,
    attention_mask: tuple[Tensor, Tensor] | None = None,
    layers: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    alignment: Alignment | None = None,
    direction: Direction = "denoising",
    top: int = 10,
    edits: Edits = (),
    batch: int | None = None,
) -> Patching | PatchingPairs | Paths:
    """Replace one activation at a time by the other run's, and measure the prediction after the last token.

    Args:
        clean: the prompt with the behaviour; for several pairs, a list of prompts of any lengths. A `Run` of the prompt
            can be given instead, if it was made with the same `edits` and captured resid_pre; the prompt is then not
            run again.
        corrupted: the prompt without the behaviour, or such a `Run` of it, or `GaussianNoise` on the clean prompt's
            embeddings; for several pairs, a list in the same order.
        points: the activations to replace: resid_pre, resid_mid, resid_post, attn_out or mlp_out (by layer and
            position), z or pattern (by head), or coefficients (at each layer and position, those of the `top` memories
            whose contribution differs most). With `through`, the components whose output is replaced: "L0H3" (a head),
            "L5M278" (a memory), "attn_out 2", "mlp_out 2", "layer 2"; "heads" for all heads.
        metric: a metric of the logits after the last token. By default, it is the logit of the clean run's prediction
            minus the logit of the corrupted run's prediction (or of the second most probable token, if both predict the
            same). For several pairs, one metric or a list of one for each.
        through: for path patching, the components that receive the change, each of them alone: "L1H4.q", "L1H4.k",
            "L1H4.v", "L1H4" (the three), "attn_out 2", "mlp_out 2", "layer 2", "logits"; "heads" for queries, keys and
            values of all heads.
        attention_mask: if clean and corrupted are token ids (pair, pos), a mask for each of the two with 1 at real
            tokens; padding may be on either side.
        layers: the layers to patch; by default, all that have the activation. Not with `through`.
        positions: the positions to patch in the patched run, counted from a prompt's first real token; by default, all.
            For z and pattern, a head is patched at all positions together by default, and at each of `positions`
            separately if they are given.
        alignment: pairs (position in clean, position in corrupted), or "auto"; needed if lengths differ.
        direction: "denoising" puts clean activations into the corrupted run, "noising" the reverse.
        top: for coefficients, the number of memories (FFN neurons) to patch at each layer and position.
        edits: changes to make in all runs.
        batch: number of copies of a prompt in memory at once.

    Returns:
        A `Patching`; for several pairs `PatchingPairs`; with `through` the `Paths`.

    Raises:
        InvalidInput: an activation or component has no such name, prompts of unequal length have no alignment, or the
            metric is the same in both runs.
        OutOfRange: the model does not have a layer, head or memory that is named.
        PointMissing: the model does not have such activations.
        Unsupported: for path patching, the model normalises its residual stream or has several streams.

    Memory: the activations to replace and the stream in both runs (of `PAIRS_AT_ONCE` pairs), and one batch.

    Pairs run in padded batches. In float64 this changes a pair's results by less than 1e-9 (1e-6 if the model's norms
    compute in float32). In half precision, rounding changes them by up to 2e-2 of the largest logit in bfloat16 and
    2e-3 in float16.

    Source: Meng et al. 2022; Wang et al. 2022 (section 3.1 for paths).
    """
    if through is not None:
        if layers is not None:
            raise InvalidInput(
                "layers together with through", why="with `through`, the names of the components state the layers"
            )
        chosen = (positions, alignment, direction, edits, batch)
        return patch_paths(lm, cast(Any, clean), cast(Any, corrupted), points, through, cast(Any, metric), *chosen)
    if points not in PATCH_POINTS:
        raise InvalidInput(f"point {points!r}", why="it cannot be patched", instead=f"Use {', '.join(PATCH_POINTS)}")
    point = cast(PatchPoint, points)
    chosen = (point, _chosen(lm, point, layers), positions, alignment, direction, positive_int("top", top), edits)
    if attention_mask is None and not (are_several(clean) and are_several(corrupted)):
        return _patch_each(lm, [(clean, corrupted)], [cast(Any, metric)], chosen, batch)[0]
    if points == "coefficients":
        raise InvalidInput(
            "patching coefficients in several pairs",
            why="other memories are patched in each pair, so results cannot be averaged",
            instead="Give one pair",
        )
    masks = attention_mask or (None, None)
    first, second = (unpadded(lm, cast(Any, one), mask) for one, mask in zip((clean, corrupted), masks, strict=True))
    if len(first) != len(second):
        raise InvalidInput("pairs of prompts", why="the numbers of clean and corrupted prompts differ")
    metrics = metric_of_each(metric, len(first), "pairs")
    each: list[Patching] = []
    for start in range(0, len(first), PAIRS_AT_ONCE):
        some = slice(start, start + PAIRS_AT_ONCE)
        pairs = list(zip(first, second, strict=True))[some]
        each += _patch_each(lm, pairs, metrics[some], chosen, batch)
    return PatchingPairs(tuple(each))


def _patch_each(
    lm: Decoder,
    prompts: Sequence[tuple[Any, Any]],
    metrics: Sequence[Metric | MetricFunction | None],
    chosen: tuple[PatchPoint, tuple[int, ...], Sequence[int] | None, Alignment | None, Direction, int, Edits],
    batch: int | None,
) -> list[Patching]:
    """Patch each pair of prompts, with shared batches, and return the result of each pair."""
    point, layers, positions, alignment, direction, top, edits = chosen
    pairs = [
        prompt_pair(lm, clean, corrupted, (point,), metric, alignment, direction, positions, edits)
        for (clean, corrupted), metric in zip(prompts, metrics, strict=True)
    ]
    plans = [_rows(lm, pair, point, layers, positions is not None, top) for pair in pairs]
    parts = [(pair.target, rows, pair.function) for pair, (rows, _, _) in zip(pairs, plans, strict=True)]
    found = []
    for pair, (_, shape, indices), values in zip(pairs, plans, measured_together(parts, batch), strict=True):
        columns, ids = tuple(c for _, c in pair.positions), pair.target.ids[0]
        found.append(
            Patching(
                point,
                pair.label,
                values.view(shape),
                indices,
                *pair.ends,
                layers,
                columns,
                tuple(lm.token_strings([int(ids[c]) for c in columns])),
                direction,
                pair.alignment,
                lm.provenance(seed=pair.seed, notes={"alignment": pair.alignment}),
            )
        )
    return found


def _chosen(lm: Decoder, point: PatchPoint, layers: Sequence[int] | None) -> tuple[int, ...]:
    """Return the layers to patch, in order."""
    having = layers_with(lm, point)
    if layers is None:
        return having
    chosen = sorted({lm.layer(layer) for layer in as_tuple("layers", layers)})
    for layer in chosen:
        require_point(lm, point, layer)
    return tuple(layer for layer in having if layer in chosen)


def _rows(
    lm: Decoder, pair: PromptPair, point: str, layers: Sequence[int], each: bool, top: int
) -> tuple[list[list[Replacement]], tuple[int, ...], Int[Tensor, "layer pos k"] | None]:
    """Return the replacements to make in each row, the shape of the result, and the memories for `coefficients`."""
    rows: list[list[Replacement]] = []
    source, target = pair.source, pair.target
    from_, into = pair.columns()
    n = len(into)
    if point in _BY_POSITION:
        for layer in layers:
            given = source.activation(point, layer)
            rows += [[Replacement(point, layer, into[[i]], None, given[from_[[i]]])] for i in range(n)]
        return rows, (len(layers), n), None
    if point == "coefficients":
        chosen = []
        for layer in layers:
            given, own = source.activation(point, layer)[from_], target.activation(point, layer)[into]
            size = (given - own).abs().float() * lm.weights.W_out[layer].float().norm(dim=-1)
            ids = size.topk(min(top, size.shape[-1]), dim=-1).indices.cpu()
            chosen.append(ids)
            for i in range(n):
                rows += [
                    [Replacement(point, layer, into[[i]], torch.tensor([m]), given[i, [m]][None])]
                    for m in ids[i].tolist()
                ]
        return rows, (len(layers), n, chosen[0].shape[-1]), torch.stack(chosen)
    n_heads = _heads_of(lm, layers)
    for layer in layers:
        given = source.activation(point, layer)
        for head in range(n_heads):
            if point == "pattern":
                parts = [_pattern(given[head], target.activation(point, layer)[head], from_, into, i) for i in range(n)]
                stacked = [Replacement(point, layer, into[[i]], head, parts[i][None]) for i in range(n)]
            else:
                stacked = [Replacement(point, layer, into[[i]], head, given[from_[[i]], head]) for i in range(n)]
            rows += [[one] for one in stacked] if each else [stacked]
    return rows, (len(layers), n_heads, n) if each else (len(layers), n_heads), None


def _heads_of(lm: Decoder, layers: Sequence[int]) -> int:
    """Return the number of heads in each of some layers, which must all have the same number."""
    counts = {n_heads_of(lm, layer) for layer in layers}
    if len(counts) > 1:
        raise Unsupported(
            f"a grid of {lm.name}'s heads by layer",
            why=f"its layers have different numbers of heads: {', '.join(map(str, sorted(counts)))}",
            instead="Patch attn_out, or ablate pairs (layer, head)",
        )
    return counts.pop()


def _pattern(
    given: Float[Tensor, "dst src"], own: Float[Tensor, "dst src"], from_: Tensor, into: Tensor, i: int
) -> Float[Tensor, " src"]:
    """Return the other run's attention weights at one position, with each weight moved to the corresponding token."""
    row = torch.zeros_like(own[0])
    row[into] = given[from_[i], from_].to(row)
    return row
