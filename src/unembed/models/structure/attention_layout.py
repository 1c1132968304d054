"""Find how queries, keys and values lie in an attention module's weights.

Each candidate layout is judged by one equation on the tensors of a recorded forward pass: the attention pattern times
the values must equal the input of the out-projection. Names of modules are never trusted, because a wrong split of a
fused weight returns plausible values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor, nn

from unembed.models.structure.probe import Probe, is_linear, relative
from unembed.models.structure.structure import HeadLayout

if TYPE_CHECKING:
    from unembed.models.structure.exotic import DifferentialPattern

Heads = Float[Tensor, "head pos d_head"]


@dataclass(frozen=True, eq=False)
class Mixing:
    """One token mixer in the recorded forward pass: its attention pattern, and the mixed values of each head (z)."""

    probe: Probe
    block: str
    """The path of its block."""
    path: str
    module: nn.Module
    out_projection: nn.Module | None
    pattern: Float[Tensor, "head dst src"] | None
    """The attention weights; None if the module returned none."""
    z: Float[Tensor, "pos width"] | None
    """The input of the out-projection."""
    n_heads: int
    """Number of heads; 0 if the module has no out-projection whose input consists of the outputs of its heads."""
    clip: float | None
    """Queries, keys and values are clamped to [-clip, clip]; None if they are not clamped."""
    differential: DifferentialPattern | None

    @property
    def d_head(self) -> int:
        """The number of channels of each head in the out-projection's input; 0 if it is not divided into heads."""
        return self.z.shape[-1] // self.n_heads if self.z is not None and self.n_heads else 0

    def clamped(self, t: Tensor) -> Tensor:
        """Return a projection's output, clamped to [-clip, clip] if the model clamps it (`clip_qkv` in its config)."""
        return t.clamp(-self.clip, self.clip) if self.clip else t


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """A module inside the attention with its recorded input and output, each (pos, width)."""

    path: str
    module: nn.Module
    given: Tensor
    returned: Tensor

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, eq=False)
class Projected:
    """Queries, keys and values that one candidate layout takes from the projections, each (pos, heads * d_head)."""

    layout: HeadLayout
    q: Tensor
    k: Tensor
    v: Tensor
    n_kv_heads: int


def heads_of(t: Tensor, n: int) -> Heads:
    """Reshape (pos, n * d_head) to (n, pos, d_head)."""
    return t.reshape(t.shape[0], n, -1).transpose(0, 1)


def calls_inside(mixing: Mixing) -> Iterator[ModuleCall]:
    """Yield the modules in an attention module that were called, without the out-projection."""
    for name, part in mixing.module.named_modules():
        path = f"{mixing.path}.{name}"
        call = mixing.probe.recording.calls.get(path) if name and part is not mixing.out_projection else None
        if call is not None and call.given is not None and call.returned is not None:
            given, returned = (t.reshape(-1, t.shape[-1]) for t in (call.given, call.returned))
            yield ModuleCall(path, part, given, returned)


def projections_of(mixing: Mixing) -> dict[str, ModuleCall]:
    """Return the linear layers in an attention module whose input has d_model channels, by name."""
    d_model = mixing.probe.d_model
    return {c.name: c for c in calls_inside(mixing) if is_linear(c.module) and c.given.shape[-1] == d_model}


def find_layout(mixing: Mixing, projections: Mapping[str, ModuleCall]) -> Projected | None:
    """Return the layout for which pattern @ V is closest to z; None if the error is too large to be rounding."""
    assert mixing.pattern is not None and mixing.z is not None
    goal, tolerance = heads_of(mixing.z, mixing.n_heads), mixing.probe.tolerance
    errors: dict[Projected, float] = {}
    for candidate in _candidates(projections, mixing.n_heads, mixing.d_head):
        values = heads_of(mixing.clamped(candidate.v), candidate.n_kv_heads)
        values = values.repeat_interleave(mixing.n_heads // candidate.n_kv_heads, 0)
        errors[candidate] = relative(mixing.pattern.to(values.dtype) @ values, goal)
    best = min(errors, key=errors.__getitem__, default=None)
    # An error of up to ten times the tolerance is accepted. In half precision the tolerance itself is large, and ten
    # times as much would also accept a wrong split, so there the limit is twice the tolerance.
    return best if best is not None and errors[best] <= (10 if tolerance < 1e-3 else 2) * tolerance else None


def _candidates(projections: Mapping[str, ModuleCall], n_heads: int, d_head: int) -> Iterator[Projected]:
    yield from _separate(projections, n_heads, d_head)
    for projection in projections.values():
        yield from _fused(projection, n_heads, d_head)


def _separate(projections: Mapping[str, ModuleCall], n_heads: int, d_head: int) -> Iterator[Projected]:
    """Yield the layout of three separate projections, whose names begin with q, k and v."""
    named = [_starting_with(projections, letter) for letter in "qkv"]
    if len(projections) < 3 or any(p is None for p in named):
        return
    modules = [p.module for p in named if p is not None]
    q, k, v = (p.returned for p in named if p is not None)
    if q.shape[-1] == n_heads * d_head and v.shape[-1] % d_head == 0 and k.shape == v.shape:
        yield Projected(HeadLayout("split", *modules), q, k, v, v.shape[-1] // d_head)


def _starting_with(projections: Mapping[str, ModuleCall], letter: str) -> ModuleCall | None:
    hits = [p for name, p in projections.items() if name.lower().lstrip("w_").startswith(letter)]
    return hits[0] if len(hits) == 1 else None


def _fused(projection: ModuleCall, n_heads: int, d_head: int) -> Iterator[Projected]:
    """Yield the layouts of one projection that returns all of Q, K and V: [Q | K | V], or one such triple per group."""
    module, fused = projection.module, projection.returned
    n_kv = (fused.shape[-1] // d_head - n_heads) // 2
    if n_kv < 1 or (n_heads + 2 * n_kv) * d_head != fused.shape[-1] or n_heads % n_kv:
        return
    q, k, v = fused.split([n_heads * d_head, n_kv * d_head, n_kv * d_head], dim=-1)
    yield Projected(HeadLayout("stacked", module, module, module), q, k, v, n_kv)
    grouped = fused.view(len(fused), n_kv, n_heads // n_kv + 2, d_head)
    q, k, v = (part.reshape(len(fused), -1) for part in (grouped[:, :, :-2], grouped[:, :, -2], grouped[:, :, -1]))
    yield Projected(HeadLayout("per_group", module, module, module), q, k, v, n_kv)
