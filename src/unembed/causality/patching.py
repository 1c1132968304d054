"""Activation patching: activations of one run replace another's, one at a time, and the prediction is measured.

Source: Vig et al. 2020 and Meng et al. 2022 (causal tracing); Wang et al. 2022 (denoising and noising by head).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.causality.metrics import Metric, MetricFunction, bound
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import Rerun, layers_with, n_heads_of
from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.names import PATCH_POINTS, STREAM_POINTS, PatchPoint
from unembed.results import Displayed, Provenance, Table
from unembed.stream.interventions import Edits
from unembed.stream.run import Tokens
from unembed.validation import positive_int, valid_seed

Direction = Literal["denoising", "noising"]
Alignment = Literal["auto"] | Sequence[tuple[int, int]]
_BY_POSITION = (*STREAM_POINTS, "attn_out", "mlp_out")


@dataclass(frozen=True)
class GaussianNoise:
    """A corrupted run: the clean prompt with noise added to the embeddings of chosen tokens, as in causal tracing.

    Attributes:
        positions: tokens whose embeddings are corrupted.
        scale: standard deviation of the noise, in standard deviations of the prompt's embeddings.

    Source: Meng et al. 2022, section 2.1 (three standard deviations).
    """

    positions: tuple[int, ...]
    scale: float = 3.0
    seed: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Patching(Displayed):
    """The metric when one activation of the other run replaces the run's own.

    Attributes:
        values: the metric, by (layer, pos) for points of the stream, attn_out and mlp_out; by (layer, head) or
            (layer, head, pos) for z and pattern; by (layer, pos, k) for coefficients.
        indices: for coefficients, the memory of each value.
        clean: the metric of the clean run.
        corrupted: the metric of the corrupted run.
        positions: positions (of the patched run) that the `pos` axis counts.
        direction: "denoising" puts clean activations into the corrupted run, "noising" the reverse.
    """

    point: str
    metric: str
    values: Float[Tensor, "layer ..."]
    indices: Int[Tensor, "layer pos k"] | None
    clean: float
    corrupted: float
    layers: tuple[int, ...]
    """The layers that the first axis counts: those that have the point."""
    positions: tuple[int, ...]
    tokens: tuple[str, ...]
    """Text of the tokens at `positions` in the patched run."""
    direction: Direction
    alignment: str
    """How the prompts were aligned, in words."""
    provenance: Provenance

    @property
    def by_position(self) -> bool:
        """Whether the values have an axis of positions."""
        return self.point not in ("z", "pattern") or self.values.dim() == 3

    @property
    def recovered(self) -> Float[Tensor, "layer ..."]:
        """The fraction of the way from the patched run's metric to the other run's: 0 no effect, 1 all of it."""
        start, end = (self.corrupted, self.clean) if self.direction == "denoising" else (self.clean, self.corrupted)
        return (self.values - start) / (end - start)

    def to_table(self) -> Table:
        """One row for each patched activation, the largest effect first."""
        recovered = self.recovered.flatten()
        order = recovered.abs().argsort(descending=True)
        places = torch.unravel_index(order, self.values.shape)
        columns: dict[str, Any] = {"layer": [self.layers[i] for i in places[0].tolist()]}
        if self.point in _BY_POSITION or self.indices is not None:
            columns["position"] = [self.positions[i] for i in places[1].tolist()]
            columns["token"] = [self.tokens[i] for i in places[1].tolist()]
        else:
            columns["head"] = places[1].tolist()
            if self.values.dim() == 3:
                columns["position"] = [self.positions[i] for i in places[2].tolist()]
                columns["token"] = [self.tokens[i] for i in places[2].tolist()]
        if self.indices is not None:
            columns["index"] = self.indices.flatten()[order].tolist()
        columns |= {"metric": self.values.flatten()[order].tolist(), "recovered": recovered[order].tolist()}
        title = (
            f"Patching {self.point} ({self.direction}): {self.metric}, clean {self.clean:+.4g}, "
            f"corrupted {self.corrupted:+.4g}"
        )
        return Table(title, columns, self.provenance)


def align(
    lm: Decoder, clean: Int[Tensor, " clean"], corrupted: Int[Tensor, " corrupted"], alignment: Alignment | None
) -> tuple[list[tuple[int, int]], str]:
    """Pairs (position in clean, position in corrupted) of corresponding tokens, and how they were found.

    Raises:
        InvalidInput: unequal lengths without an alignment, or pairs out of range.
    """
    if alignment is None:
        if len(clean) != len(corrupted):
            raise InvalidInput(
                f"prompts of {len(clean)} and {len(corrupted)} tokens",
                why="activations are patched between corresponding tokens",
                instead='Give prompts of equal length, pairs of positions, or alignment="auto" (--align)',
            )
        return [(i, i) for i in range(len(clean))], f"token by token ({len(clean)} tokens)"
    if alignment == "auto":
        matcher = SequenceMatcher(None, clean.tolist(), corrupted.tolist(), autojunk=False)
        pairs: list[tuple[int, int]] = []
        for tag, a, b, c, d in matcher.get_opcodes():
            if tag == "equal" or (tag == "replace" and b - a == d - c):
                pairs += zip(range(a, b), range(c, d), strict=True)
        if not pairs:
            raise InvalidInput("the two prompts", why="no token of one corresponds to one of the other")
        equal = sum(int(clean[a]) == int(corrupted[c]) for a, c in pairs)
        left = max(len(clean), len(corrupted)) - len(pairs)
        return pairs, f"found: {len(pairs)} pairs of tokens, {equal} of them equal, {left} tokens left out"
    pairs = [(int(a), int(c)) for a, c in alignment]  # type: ignore[union-attr]
    for a, c in pairs:
        if not (0 <= a < len(clean) and 0 <= c < len(corrupted)):
            raise InvalidInput(f"alignment {(a, c)}", why=f"the prompts have {len(clean)} and {len(corrupted)} tokens")
    if not pairs:
        raise InvalidInput("an empty alignment", why="nothing would be patched")
    return pairs, f"given: {len(pairs)} pairs of tokens"


@torch.no_grad()
def patch(
    lm: Decoder,
    clean: Tokens,
    corrupted: Tokens | GaussianNoise,
    points: PatchPoint = "resid_pre",
    metric: Metric | MetricFunction | None = None,
    *,
    positions: Sequence[int] | None = None,
    alignment: Alignment | None = None,
    direction: Direction = "denoising",
    top: int = 10,
    edits: Edits = (),
    batch: int | None = None,
) -> Patching:
    """Replace one activation at a time by the other run's, and measure the prediction after the last token.

    Args:
        clean: the prompt with the behaviour.
        corrupted: the prompt without it, or `GaussianNoise` on the clean prompt's embeddings.
        points: resid_pre, resid_mid, resid_post, attn_out or mlp_out (by layer and position), z or pattern (by head),
            coefficients (by memory: at each layer and position the `top` whose sub-updates differ most).
        metric: of the logits after the last token; by default, the logit of the clean run's prediction minus that of
            the corrupted run's (of the runner-up where both predict the same token).
        positions: positions of the patched run to patch; all of them if not given. With z and pattern, heads are
            patched at all positions together unless positions are given, and then at each of them.
        alignment: pairs (position in clean, position in corrupted), or "auto"; needed where lengths differ.
        direction: "denoising": clean activations into the corrupted run; "noising": the reverse.
        top: memories at each layer and position, for coefficients.
        edits: changes that hold in all runs.
        batch: rows in memory at once.

    Raises:
        InvalidInput: no such point, unequal prompts without an alignment, or a metric that does not differ.
        PointMissing: the model has no such point.

    Memory: both runs' activations at the point and the stream, and one batch of rows.

    Source: Meng et al. 2022; Wang et al. 2022.
    """
    plan = plan_patching(
        lm,
        clean,
        corrupted,
        points,
        metric,
        positions=positions,
        alignment=alignment,
        direction=direction,
        top=top,
        edits=edits,
    )
    return plan.result(plan.pair.target.measured(plan.rows, plan.function, batch))


@dataclass(frozen=True, eq=False)
class Pair:
    """The two runs of a patching: activations of the source replace those of the target."""

    clean: Rerun
    corrupted: Rerun
    direction: Direction
    pairs: list[tuple[int, int]]
    """Positions (in the source, in the target) of corresponding tokens."""
    alignment: str

    @property
    def source(self) -> Rerun:
        """Where activations are taken from."""
        return self.clean if self.direction == "denoising" else self.corrupted

    @property
    def target(self) -> Rerun:
        """The run that is patched."""
        return self.corrupted if self.direction == "denoising" else self.clean

    def ends(self, function: MetricFunction, label: str) -> tuple[float, float]:
        """The metric of the clean and of the corrupted run.

        Raises:
            InvalidInput: they are equal.
        """
        clean, corrupted = function(torch.stack([self.clean.reference, self.corrupted.reference])).double().tolist()
        if clean == corrupted:
            raise InvalidInput(
                f"metric {label}",
                why=f"it is {clean:.4g} in both runs",
                instead="Give prompts between which it differs",
            )
        return clean, corrupted


@dataclass(frozen=True, eq=False)
class Plan:
    """What a patching runs: a row of replacements for each value, and the metric of the patched runs."""

    lm: Decoder
    point: PatchPoint
    pair: Pair
    rows: list[list[Replacement]]
    shape: tuple[int, ...]
    indices: Int[Tensor, "layer pos k"] | None
    function: MetricFunction
    label: str
    ends: tuple[float, float]
    seed: int | None

    def result(self, values: Float[Tensor, " row"]) -> Patching:
        """The patching, from the metric of each row."""
        lm, pair = self.lm, self.pair
        columns, ids = tuple(c for _, c in pair.pairs), pair.target.ids[0]
        return Patching(
            self.point,
            self.label,
            values.view(self.shape),
            self.indices,
            *self.ends,
            layers_with(lm, self.point),
            columns,
            tuple(lm.token_strings([int(ids[c]) for c in columns])),
            pair.direction,
            pair.alignment,
            lm.provenance(seed=self.seed, notes={"alignment": pair.alignment}),
        )


@torch.no_grad()
def plan_patching(
    lm: Decoder,
    clean: Tokens,
    corrupted: Tokens | GaussianNoise,
    points: PatchPoint,
    metric: Metric | MetricFunction | None,
    *,
    positions: Sequence[int] | None = None,
    alignment: Alignment | None = None,
    direction: Direction = "denoising",
    top: int = 10,
    edits: Edits = (),
) -> Plan:
    """Both runs of a patching and what it replaces; arguments and errors as in `patch`."""
    if points not in PATCH_POINTS:
        raise InvalidInput(f"point {points!r}", why="it cannot be patched", instead=f"Use {', '.join(PATCH_POINTS)}")
    pair = patched_pair(lm, clean, corrupted, (points,), alignment, direction, positions, edits)
    function, label = bound(lm, metric, pair.clean.reference, pair.corrupted.reference)
    ends = pair.ends(function, label)
    each, top = positions is not None, positive_int("top", top)
    rows, shape, indices = _rows(lm, pair.source, pair.target, points, pair.pairs, each, top)
    seed = corrupted.seed if isinstance(corrupted, GaussianNoise) else None
    return Plan(lm, points, pair, rows, shape, indices, function, label, ends, seed)


def patched_pair(
    lm: Decoder,
    clean: Tokens,
    corrupted: Tokens | GaussianNoise,
    points: Sequence[str],
    alignment: Alignment | None,
    direction: Direction,
    positions: Sequence[int] | None,
    edits: Edits,
) -> Pair:
    """Both runs with the activations at some points, and the positions that are patched; arguments as in `patch`."""
    if direction not in ("denoising", "noising"):
        raise InvalidInput(f"direction {direction!r}", why='it is "denoising" or "noising"')
    first = Rerun(lm, clean, points, edits)
    second = _corrupted(lm, first, corrupted, points, edits)
    pairs, how = align(lm, first.ids[0], second.ids[0], alignment)
    pairs = pairs if direction == "denoising" else [(c, a) for a, c in pairs]
    if positions is not None:
        n_pos = (second if direction == "denoising" else first).n_pos
        wanted = {int(p) if int(p) >= 0 else int(p) + n_pos for p in positions}
        if unknown := wanted - {c for _, c in pairs}:
            raise InvalidInput(
                f"position {min(unknown)}",
                why="it has no corresponding token",
                instead=f"Use {sorted(c for _, c in pairs)}",
            )
        pairs = [(a, c) for a, c in pairs if c in wanted]
    return Pair(first, second, direction, pairs, how)


def taken_from(
    run: Rerun, point: str, layer: int, pairs: Sequence[tuple[int, int]], index: int | None = None
) -> Replacement:
    """An activation of a run as the replacement of another's, at (position in the run, position in the other)."""
    given = run.activation(point, layer)[torch.tensor([a for a, _ in pairs])]
    chosen: int | Tensor | None = index
    if index is not None and point == "z":
        given = given[:, index]
    elif index is not None:
        given, chosen = given[:, [index]], torch.tensor([index])
    return Replacement(point, layer, torch.tensor([c for _, c in pairs]), chosen, given)


def _corrupted(
    lm: Decoder, clean: Rerun, corrupted: Tokens | GaussianNoise, points: Sequence[str], edits: Edits
) -> Rerun:
    if not isinstance(corrupted, GaussianNoise):
        return Rerun(lm, corrupted, points, edits)
    entering = clean.activation("resid_pre", 0)
    chosen = [p if p >= 0 else p + clean.n_pos for p in corrupted.positions]
    if not chosen or not all(0 <= p < clean.n_pos for p in chosen):
        raise InvalidInput(f"noise at {list(corrupted.positions)}", why=f"the prompt has {clean.n_pos} tokens, from 0")
    generator = torch.Generator().manual_seed(valid_seed(corrupted.seed))
    noise = torch.randn(len(chosen), entering.shape[-1], generator=generator).to(entering)
    noisy = entering.clone()
    noisy[chosen] += corrupted.scale * entering.float().std().to(entering) * noise
    return Rerun(lm, clean.ids, points, edits, stream=noisy)


def _rows(
    lm: Decoder, source: Rerun, target: Rerun, point: str, pairs: Sequence[tuple[int, int]], each: bool, top: int
) -> tuple[list[list[Replacement]], tuple[int, ...], Int[Tensor, "layer pos k"] | None]:
    """A row for each patched activation, the shape of the result, and the memories of `coefficients`."""
    rows: list[list[Replacement]] = []
    layers, n = layers_with(lm, point), len(pairs)
    into = torch.tensor([c for _, c in pairs])
    from_ = torch.tensor([a for a, _ in pairs])
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
    """How many heads each of some layers has."""
    counts = {n_heads_of(lm, layer) for layer in layers}
    if len(counts) > 1:
        raise Unsupported(
            f"a grid of {lm.name}'s heads",
            why=f"its layers have {', '.join(map(str, sorted(counts)))} heads",
            instead="Patch attn_out, or ablate pairs (layer, head)",
        )
    return counts.pop()


def _pattern(
    given: Float[Tensor, "dst src"], own: Float[Tensor, "dst src"], from_: Tensor, into: Tensor, i: int
) -> Float[Tensor, " src"]:
    """The other run's attention of one position, each weight at the token that corresponds."""
    row = torch.zeros_like(own[0])
    row[into] = given[from_[i], from_].to(row)
    return row
