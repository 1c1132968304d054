"""Find which modules add to the residual stream inside a block, by solving a linear system.

Inside a block the stream changes from one tensor (the base) to another (the target). The difference must be the sum of
some modules' outputs, each times one number; the smallest set of such modules is searched. A module that is not in this
set adds nothing to the stream, whatever its name is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from unembed.models.structure.probe import Probe, holds_weights, relative, same

_MOST_WRITERS = 4
_ENOUGH = 3.0
"""A further module is accepted only if the error without it is at least this many times as large.

Rounding alone can make the error a little smaller with any further module."""


@dataclass(frozen=True, eq=False)
class BlockSum:
    """target = gain * norm(base) + sum of multiplier * output + constant, with the relative error of this equation."""

    paths: tuple[str, ...]
    multipliers: tuple[float, ...]
    gain: float | Tensor
    constant: Tensor | None
    error: float
    norm: str | None = None
    """The path of the norm that is applied to the base, if any."""
    channels: tuple[Tensor, Tensor] | None = None
    """For a sum with only one output: its factor and shift for each channel. None if outputs have one factor each."""


def find_sum(probe: Probe, base: Tensor, target: Tensor, paths: Sequence[str]) -> BlockSum | None:
    """Return the smallest set of modules among `paths` whose outputs turn `base` into `target`.

    If no set does so exactly, the set that comes closest is returned.

    Returns:
        The sum with the smallest error; None where there is no candidate. The caller compares the error with its
        tolerance.
    """
    candidates: list[tuple[str, Tensor]] = []
    for path in paths:
        t = probe.recording.returned(path)
        module = probe.hf.get_submodule(path)
        if path not in probe.norms and not holds_weights(module):
            continue  # such as dropout, which returns the output of attention or FFN unchanged
        if t is None or t.numel() != base.numel() or t.shape[-1] != base.shape[-1]:
            continue
        t = t.reshape(base.shape)
        if not any(same(t, other) for other in (base, target, *(c for _, c in candidates))):
            candidates.append((path, t))
    if not candidates:
        return None
    best = _plain(probe, base, target, candidates)
    if best.error > probe.tolerance:
        for other in (
            _with_constant(probe, base, target, candidates),
            _with_gains(probe, base, target, candidates),
            _with_channels(base, target, candidates)
            if probe.tolerance < 1e-3
            else None,  # in half precision, factors for each channel would fit rounding errors
        ):
            if other is not None and other.error <= probe.tolerance:
                return other
    return best


def _plain(probe: Probe, base: Tensor, target: Tensor, candidates: list[tuple[str, Tensor]]) -> BlockSum:
    names = [path for path, _ in candidates]
    vectors = torch.stack([t.double().flatten().cpu() for t in (base, *(t for _, t in candidates))])
    goal = target.double().flatten().cpu()
    chosen, solution, error = _fewest(vectors, goal)
    rows = vectors[[0, *chosen]]
    gain, *multipliers = _snapped(probe, solution, rows, goal, _scalars(probe, names[0]))
    error = _error([gain, *multipliers], rows, goal)
    return BlockSum(tuple(names[i - 1] for i in chosen), tuple(multipliers), gain, None, error)


def _fewest(vectors: Tensor, goal: Tensor) -> tuple[list[int], list[float], float]:
    """Return the fewest vectors whose linear combination is `goal`, as indices, factors and relative error.

    The first vector is always used; the indices name the other vectors.
    """
    gram, against, size = vectors @ vectors.T, vectors @ goal, float(goal @ goal)
    best: tuple[list[int], list[float], float] = ([], [1.0], float("inf"))
    for count in range(_MOST_WRITERS + 1):
        sets = list(combinations(range(1, len(vectors)), count))
        if not sets or len(sets) > 20_000:
            break
        rows = torch.tensor([[0, *s] for s in sets])
        grams = gram[rows[:, :, None], rows[:, None, :]]
        # Vectors are scaled to unit length, so that 1e-13 on the diagonal, which keeps the system solvable, is small
        # relative to every vector.
        scale = grams.diagonal(dim1=1, dim2=2).clamp_min(1e-30).sqrt()
        grams = grams / scale[:, :, None] / scale[:, None, :] + 1e-13 * torch.eye(count + 1, dtype=grams.dtype)
        solutions = torch.linalg.solve(grams, against[rows] / scale) / scale
        left = (size - (solutions * against[rows]).sum(1)).clamp_min(0) / max(size, 1e-30)
        i = int(left.argmin())
        error = relative(solutions[i] @ vectors[rows[i]], goal)
        if error * _ENOUGH < best[2]:
            best = (list(sets[i]), solutions[i].tolist(), error)
        elif best[2] < 1e-3:
            break
    return best


def _error(numbers: Sequence[float], rows: Tensor, goal: Tensor) -> float:
    return relative(torch.tensor(list(numbers), dtype=torch.float64) @ rows, goal)


def _scalars(probe: Probe, path: str) -> list[float]:
    """Return the single-element weights of the block that contains `path` (such as Gemma 4's layer scalar)."""
    parts = path.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    block = probe.hf.get_submodule(".".join(parts[: at + 1]))
    single = [*block.parameters(recurse=False), *block.buffers(recurse=False)]
    return [float(t) for t in single if t.numel() == 1 and t.is_floating_point() and not t.is_meta]


def _snapped(
    probe: Probe, numbers: Sequence[float], rows: Tensor, goal: Tensor, scalars: Sequence[float]
) -> list[float]:
    """Replace fitted factors by nearby exact ones: 1, a multiplier in the config, or a scalar weight of the block.

    A factor is replaced only if the sum fits as well with the exact one. In half precision, a fitted factor can be near
    an exact one by chance.
    """
    names = ("residual_multiplier", "attention_out_multiplier", "ssm_out_multiplier")
    configured = [getattr(probe.config, name, None) for name in names]
    known = [1.0, *scalars, *(float(v) for v in configured if isinstance(v, int | float))]
    near = max(100 * probe.tolerance, 1e-3)
    found = list(numbers)
    for i, number in enumerate(numbers):
        allowed = 1.5 * _error(found, rows, goal) + 1e-7
        for exact in sorted(known, key=lambda k, n=number: abs(k - n)):
            tried = [*found[:i], exact, *found[i + 1 :]]
            if abs(exact - number) <= near and _error(tried, rows, goal) <= allowed:
                found = tried
                break
    return found


def _with_constant(probe: Probe, base: Tensor, target: Tensor, candidates: list[tuple[str, Tensor]]) -> BlockSum | None:
    """Find a sum that also adds a vector that is the same at every position."""
    centred = [(p, t - t.mean(dim=1, keepdim=True)) for p, t in candidates]
    found = _plain(probe, base - base.mean(dim=1, keepdim=True), target - target.mean(dim=1, keepdim=True), centred)
    by_path = dict(candidates)
    total = found.gain * base.double()
    for path, multiplier in zip(found.paths, found.multipliers, strict=True):
        total = total + multiplier * by_path[path].double()
    constant = (target.double() - total).mean(dim=1).flatten()
    error = relative(total + constant, target)
    return BlockSum(found.paths, found.multipliers, found.gain, constant.to(base.dtype), error)


def _with_gains(probe: Probe, base: Tensor, target: Tensor, candidates: list[tuple[str, Tensor]]) -> BlockSum | None:
    """Find a sum of one module's output and the base, in which each channel of the base has its own factor (Doge)."""
    best = None
    for path, t in candidates:
        left, x = (target - t).double()[0], base.double()[0]
        gain = (left * x).sum(0) / x.square().sum(0).clamp_min(1e-30)
        error = float((left - gain * x).norm() / target.double().norm().clamp_min(1e-30))
        if best is None or error < best.error:
            best = BlockSum((path,), (1.0,), gain.to(base.dtype), None, error)
    return best


def _with_channels(base: Tensor, target: Tensor, candidates: list[tuple[str, Tensor]]) -> BlockSum | None:
    """Find a sum of one output, the base and a vector, in which each channel has factors of its own (ZAYA).

    Each channel has three unknowns and six equations, one for each position, so that a block which computes something
    else leaves an error.
    """
    best = None
    goal = target.double()[0].T[..., None]  # (channel, pos, 1)
    for path, t in candidates:
        columns = torch.stack([base.double()[0].T, t.double()[0].T, torch.ones_like(goal[..., 0])], dim=-1)
        solved = torch.linalg.lstsq(columns.cpu(), goal.cpu(), driver="gelsd").solution
        error = relative(columns.cpu() @ solved, goal.cpu())
        if best is None or error < best.error:
            gain, factor, shift = solved[..., 0].to(base).unbind(dim=-1)
            best = BlockSum((path,), (1.0,), gain, None, error, channels=(factor, shift))
    return best
