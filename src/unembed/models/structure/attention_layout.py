"""How one attention module lays out its heads and forms its scores, found by rebuilding its pattern.

Candidates for the fused layout are judged by z = pattern @ V, candidates for the score by softmax(score) = pattern,
both on the tensors of a dry run: a wrong split returns plausible numbers, so nothing is taken from a name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.models.structure.dry_run import Recording
from unembed.models.structure.probe import is_linear
from unembed.models.structure.rotary import Rotary
from unembed.models.structure.structure import HeadLayout, ValueSource

Heads = Float[Tensor, "head pos d_head"]


@dataclass(frozen=True)
class Projected:
    """Queries, keys and values as one layout reads them off the projections' outputs, each (pos, heads * d_head)."""

    layout: HeadLayout
    q: Tensor
    k: Tensor
    v: Tensor
    n_kv_heads: int


@dataclass(frozen=True)
class Scores:
    """How the pattern follows from q and k."""

    scale: float
    rotary: Rotary | None
    softcap: float | None
    alibi_slopes: Tensor | None


def relative(a: Tensor, b: Tensor) -> float:
    """The size of the difference in units of the second tensor's size; infinite when shapes differ."""
    if a.shape != b.shape:
        return math.inf
    a, b = a.double(), b.double()
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def heads_of(t: Tensor, n: int) -> Heads:
    """(pos, n * d_head) as (n, pos, d_head)."""
    return t.reshape(t.shape[0], n, -1).transpose(0, 1)


def find_layout(
    projections: dict[str, tuple[nn.Module, Tensor, Tensor]],
    pattern: Float[Tensor, "head dst src"],
    z: Float[Tensor, "pos width"],
    values_of: Any,
) -> tuple[Projected, float] | None:
    """The layout under which pattern @ V gives z best, and its relative error.

    Args:
        projections: by name, the modules that read the stream, with what they were given and returned (pos, width).
        pattern: attention weights of the dry run.
        z: what the out-projection received.
        values_of: a function that applies to V what the module does after projecting (clamping).
    """
    n_heads, pos = pattern.shape[0], pattern.shape[1]
    d_head = z.shape[-1] // n_heads
    best: tuple[Projected, float] | None = None
    for candidate in _candidates(projections, n_heads, d_head, pos):
        values = heads_of(values_of(candidate.v), candidate.n_kv_heads)
        values = values.repeat_interleave(n_heads // candidate.n_kv_heads, 0)
        error = relative(pattern.to(values.dtype) @ values, heads_of(z, n_heads))
        if best is None or error < best[1]:
            best = (candidate, error)
    return best


_FORMS = ("heads", "latent", "qkv_blocks", "head_axis", "head_axis_first", "halves")
_GATES = (torch.sigmoid, torch.nn.functional.silu, torch.nn.functional.softplus, lambda t: 2 * torch.sigmoid(t))


Output = tuple[nn.Module, int, Tensor]
"""A tensor that a module returned, with its number among those that the module returned."""


def find_values(
    outputs: Sequence[Output],
    pattern: Float[Tensor, "head dst src"],
    z: Float[Tensor, "pos width"],
    norms: Iterable[tuple[Tensor, Tensor]],
    tolerance: float,
) -> ValueSource | None:
    """Where values can be captured that give z, up to a number or a gate, when no layout of Q, K and V was found.

    Args:
        outputs: of the modules inside the attention.
        pattern: attention weights of the dry run.
        z: what the out-projection received.
        norms: what the norms inside the attention were given and returned, each (1, pos, ...).
        tolerance: the largest relative error.
    """
    n_heads, pos = pattern.shape[0], pattern.shape[1]
    d_head = z.shape[-1] // n_heads
    alike = [(g, out.reshape(pos, -1)) for g, out in norms if g.numel() == out.numel() == z.numel()]
    goals = [(g.reshape(pos, -1), "norm") for g, out in alike if relative(_factor(out, z) * out, z) <= tolerance / 10]
    goals.append((z, ""))  # last: where a norm's scale varies little, its output is nearly proportional to its input
    mixed: list[tuple[ValueSource, Tensor]] = []
    for module, item, out in outputs:
        for form in _FORMS:
            for n_kv in (k for k in range(1, n_heads + 1) if n_heads % k == 0):
                source = ValueSource(module, form, n_heads, n_kv, d_head, 1.0, None, "", item)
                if not _fits(source, out, pos):
                    continue
                values = source.split(out)[0].repeat_interleave(n_heads // n_kv, 0)
                mixed.append((source, (pattern.to(values.dtype) @ values).transpose(0, 1).reshape(pos, -1)))
    for goal, normed in goals:
        for source, total in mixed:
            factor = _factor(total, goal)
            if relative(factor * total, goal) <= tolerance:
                return replace(source, factor=1.0 if abs(factor - 1) <= tolerance else factor, gate=normed)
    gates = list(_gate_candidates(outputs, n_heads, d_head, pos))
    for source, total in mixed:
        # A factor per head and position (a sink's share) is one number for d_head channels, so it can be checked.
        by_head, goal = (t.double().view(pos, n_heads, d_head) for t in (total, z))
        per_head = (by_head * goal).sum(-1, keepdim=True) / by_head.square().sum(-1, keepdim=True).clamp_min(1e-30)
        if relative(per_head * by_head, goal) <= tolerance:
            return replace(source, gate="head")
        if any(relative(total * g, z) <= tolerance for g in gates):
            return replace(source, gate="channel")
    return None


def _factor(t: Tensor, goal: Tensor) -> float:
    """The factor that makes a tensor closest to another."""
    return float((t * goal).double().sum() / t.double().square().sum().clamp_min(1e-30))


def _fits(source: ValueSource, out: Tensor, pos: int) -> bool:
    kv, d, n = source.n_kv_heads, source.d_head, source.n_heads
    if source.form == "head_axis":
        return out.shape == (1, pos, kv, d)
    if source.form == "head_axis_first":
        return out.shape == (1, kv, pos, d)
    if out.dim() == 4 and out.shape[1] == 1:
        out = out.squeeze(1)
    if out.dim() != 3 or out.shape[:2] != (1, pos):
        return False
    width = out.shape[-1]
    if source.form == "latent":
        return kv == n and width % n == 0 and width // n > d
    if source.form == "halves":
        return width == kv * d and d % 2 == 0
    return width == kv * d if source.form == "heads" else kv == n and n % 4 == 0 and width == 3 * n * d


def _gate_candidates(
    outputs: Sequence[Output], n_heads: int, d_head: int, pos: int
) -> Iterator[Float[Tensor, "pos width"]]:
    """Every projection's output that could be a gate of z, through every activation: per channel or per head."""
    for _, _, out in outputs:
        if out.dim() != 3 or out.shape[:2] != (1, pos):
            continue
        t, raw = out[0], []
        if t.shape[-1] == n_heads * d_head:
            raw.append(t)
        elif t.shape[-1] == n_heads:
            raw.append(t.repeat_interleave(d_head, -1))
        elif t.shape[-1] > 2 * n_heads * d_head and t.shape[-1] % n_heads == 0:  # queries, then a gate, for each head
            raw.append(t.view(pos, n_heads, -1)[..., -d_head:].reshape(pos, -1))
        elif t.shape[-1] == 2 * n_heads * d_head:  # the second half of each head's slice, or of the whole
            raw += [t.view(pos, n_heads, 2, d_head)[:, :, 1].reshape(pos, -1), t[:, n_heads * d_head :]]
        for gate in raw:
            yield from (activation(gate) for activation in _GATES)


def _candidates(
    projections: dict[str, tuple[nn.Module, Tensor, Tensor]], n_heads: int, d_head: int, pos: int
) -> Iterator[Projected]:
    if len(projections) >= 3:
        named = {letter: hit for letter in "qkv" if (hit := _starting_with(projections, letter)) is not None}
        if len(named) == 3:
            (qm, q), (km, k), (vm, v) = (named[c] for c in "qkv")
            if q.shape[-1] == n_heads * d_head and v.shape[-1] % d_head == 0 and k.shape == v.shape:
                yield Projected(HeadLayout("split", qm, km, vm), q, k, v, v.shape[-1] // d_head)
    for module, _, fused in projections.values():
        n_kv = (fused.shape[-1] // d_head - n_heads) // 2
        if n_kv < 1 or (n_heads + 2 * n_kv) * d_head != fused.shape[-1] or n_heads % n_kv:
            continue
        q, k, v = fused.split([n_heads * d_head, n_kv * d_head, n_kv * d_head], dim=-1)
        yield Projected(HeadLayout("stacked", module, module, module), q, k, v, n_kv)
        grouped = fused.view(pos, n_kv, n_heads // n_kv + 2, d_head)
        q, k, v = grouped[:, :, :-2], grouped[:, :, -2], grouped[:, :, -1]
        yield Projected(
            HeadLayout("per_group", module, module, module),
            q.reshape(pos, -1),
            k.reshape(pos, -1),
            v.reshape(pos, -1),
            n_kv,
        )


def _starting_with(
    projections: dict[str, tuple[nn.Module, Tensor, Tensor]], letter: str
) -> tuple[nn.Module, Tensor] | None:
    hits = [(part, out) for name, (part, _, out) in projections.items() if name.lower().lstrip("w_").startswith(letter)]
    return hits[0] if len(hits) == 1 else None


def find_scores(
    pattern: Float[Tensor, "head dst src"],
    q: Heads,
    k: Float[Tensor, "kv_head pos d_head"],
    *,
    rotaries: list[Rotary],
    scales: list[float],
    softcap: float | None,
    window: int | None,
    tolerance: float,
) -> Scores | None:
    """The score formula that reproduces the pattern; None if no known one does.

    A sink takes a share of every row, so that its weights add up to less than 1: scores are those of the rest.
    """
    pattern = pattern / pattern.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(pattern.dtype).tiny)
    n_heads, pos, d_head = q.shape
    q, k = q.double(), k.double().repeat_interleave(n_heads // k.shape[0], 0)
    where = torch.arange(pos, device=q.device)
    mask = torch.full((pos, pos), -math.inf, dtype=torch.float64, device=q.device).triu(1)
    if window is not None:
        mask = mask + mask.new_full((pos, pos), -math.inf).tril(-window)
    fits: list[tuple[float, Scores]] = []
    for rotary in [*(r for r in rotaries if 2 * r.frequencies.numel() <= d_head), None]:
        rotated_q = q if rotary is None else rotary.rotate(q, where)
        rotated_k = k if rotary is None else rotary.rotate(k, where)
        for scale in scales:
            scores = scale * rotated_q @ rotated_k.transpose(-1, -2)
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            if relative((scores + mask).softmax(-1), pattern) <= tolerance:
                fits.append((_score_error(scores, pattern, mask), Scores(scale, rotary, softcap, None)))
    if fits:
        return _best(fits)
    for scale in scales:
        scores = scale * q @ k.transpose(-1, -2)
        left = pattern.double()[:, -1].log() - scores[:, -1]
        steps = left[:, 1:] - left[:, :-1]
        if bool(torch.isfinite(steps).all()) and float(steps.std(-1).max()) < max(1e-4, 100 * tolerance):
            slopes = steps.mean(-1)
            if relative((scores + slopes[:, None, None] * where + mask).softmax(-1), pattern) <= 10 * tolerance:
                return Scores(scale, None, None, slopes)
    return None


def _score_error(
    scores: Float[Tensor, "head dst src"], pattern: Float[Tensor, "head dst src"], mask: Float[Tensor, "dst src"]
) -> float:
    """How far scores miss the logarithm of a pattern, each row above its mean, in units of the latter's size.

    Patterns of weak attention are all nearly uniform; their logarithms still differ as the scores do.
    """
    visible = ((mask == 0) & (pattern > 1e-4)).to(scores.dtype)
    n = visible.sum(dim=-1, keepdim=True).clamp_min(1)

    def centred(t: Tensor) -> Tensor:
        return (t - (t * visible).sum(dim=-1, keepdim=True) / n) * visible

    return relative(centred(scores), centred(pattern.double().clamp_min(1e-30).log()))


def _best(fits: list[tuple[float, Scores]]) -> Scores:
    """The first formula with at most twice the error of the best one; those with a rotation come before those without.

    Where another rotation, or none, fits as well, the rotation is marked as uncertain.
    """
    least = min(error for error, _ in fits)
    close = [scores for error, scores in fits if error <= 2 * least + 1e-9]
    first = close[0]
    if first.rotary is not None and any(scores.rotary is not first.rotary for scores in close):
        return replace(first, rotary=replace(first.rotary, certain=False))
    return first


def projections_of(
    recording: Recording, attention_path: str, module: nn.Module, out_proj: nn.Module, d_model: int
) -> dict[str, tuple[nn.Module, Tensor, Tensor]]:
    """The projections inside an attention module that read a vector of the stream's width.

    Returns:
        By the module's own name: the module, what it was given and what it returned, both (pos, width).
    """
    found = {}
    for name, part in module.named_modules():
        if not name or part is out_proj or not is_linear(part):
            continue
        given, returned = (f(f"{attention_path}.{name}") for f in (recording.given, recording.returned))
        if given is not None and returned is not None and given.shape[-1] == d_model:
            found[name.rsplit(".", 1)[-1]] = (part, given[0], returned[0])
    return found
