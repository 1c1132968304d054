"""The stream as the sum of its writers: what each part of the model adds, through branch norms and multipliers.

A branch norm (Gemma, OLMo 2) stands between the heads or memories of a layer and the stream. With its scale frozen at
the run's value it is linear, so each head's and each memory's own share is exact; libraries that leave it out report
numbers that do not add up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput, SumNotProved, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.norms import Norm
from unembed.models.structure.structure import Block
from unembed.names import STREAM_POINTS, SUM_TOLERANCE
from unembed.stream.run import Run


def tolerance(lm: Decoder) -> float:
    """The largest relative error a sum may have in this model's dtype."""
    return SUM_TOLERANCE[lm.coarsest_dtype_name]


def prove(what: str, total: Tensor, whole: Tensor, limit: float) -> float:
    """The relative error of a sum against the tensor it decomposes.

    Raises:
        SumNotProved: the error is above the limit.
    """
    error = float((total - whole).norm() / whole.norm().clamp_min(1e-30))
    if not error <= limit:
        raise SumNotProved(
            what,
            why=f"its parts miss it by {error:.1e} of its size, above {limit:.0e}",
            instead="Load with dtype='float32', or report this model: something is written that is not understood",
        )
    return error


@dataclass(frozen=True, eq=False)
class Branch:
    """How what one branch computes enters the stream in a run: multiplier * norm(raw), the norm's scale frozen."""

    norm: Norm | None
    scale: Float[Tensor, "*pos 1"] | None
    multiplier: float

    def written(self, part: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos d_model"]:
        """What a part of the branch's raw output adds to the stream."""
        if self.norm is not None and self.scale is not None:
            part = self.norm.frozen(part, self.scale)
        return part * self.multiplier

    def direction(self, u: Float[Tensor, " d_model"]) -> Float[Tensor, " d_model"]:
        """The direction before the norm that stands for u behind it, up to the position's `factor`."""
        if self.norm is None:
            return u * self.multiplier
        return self.norm.pulled_back(u * self.multiplier, torch.ones(1, dtype=u.dtype, device=u.device))

    @property
    def factor(self) -> Float[Tensor, "*pos 1"] | float:
        """What a dot product with `direction` is multiplied by at each position."""
        return 1.0 if self.scale is None else 1.0 / self.scale

    @property
    def bias(self) -> Float[Tensor, " d_model"] | None:
        """What the branch norm itself adds, if anything."""
        if self.norm is None or self.norm.bias is None:
            return None
        return self.norm.bias * self.multiplier


def attention_branch(lm: Decoder, layer: int, z: Float[Tensor, "*pos head d_head"]) -> Branch:
    """How the heads of a layer enter the stream in the run that gave z."""
    site = lm.structure.blocks[layer].mixer
    assert site is not None
    if site.branch_norm is None:
        return Branch(None, None, site.multiplier)
    raw = z.flatten(-2) @ lm.weights.W_O[layer].flatten(0, 1)
    if (bias := lm.weights.b_O[layer]) is not None:
        raw = raw + bias
    return Branch(site.branch_norm, site.branch_norm.scale(raw), site.multiplier)


def source_values(lm: Decoder, run: Run, layer: int, *, gated: bool = False) -> Float[Tensor, "head src d_head"]:
    """Each head's value at each position of the first prompt: what the pattern mixes.

    Args:
        lm: the model.
        run: a run that captured "values".
        layer: the layer.
        gated: accept a layer whose mixed values pass through a gate or a norm before the out-projection.

    Raises:
        Unsupported: the values are unknown, or gated where that was not accepted.
    """
    site = lm.structure.blocks[layer].attention
    if site.values is None:
        _ = site.layout  # raises and says why
    assert site.values is not None
    if site.values.gated and not gated:
        raise Unsupported(
            f"the values of layer {layer} of {lm.name}",
            why="a gate or norm stands between the mixed values and the out-projection, different at each position",
            instead="Use an attribution by source, which includes it",
        )
    values = run.at("values", layer)[0]
    return values.repeat_interleave(site.values.n_heads // site.values.n_kv_heads, dim=0)


def memory_branch(lm: Decoder, layer: int, coefficients: Float[Tensor, "*pos d_mlp"]) -> Branch:
    """How the memories of a layer enter the stream in the run that gave the coefficients."""
    site = lm.feed_forward(layer)
    if site.branch_norm is None:
        return Branch(None, None, site.multiplier)
    raw = coefficients @ lm.weights.W_out[layer]
    if (bias := lm.weights.b_out[layer]) is not None:
        raw = raw + bias
    return Branch(site.branch_norm, site.branch_norm.scale(raw), site.multiplier)


@dataclass(frozen=True, eq=False)
class Writers:
    """The stream at one point as a sum of components, with the error of the sum."""

    labels: tuple[str, ...]
    vectors: Float[Tensor, "writer batch pos d_model"]
    error: float


def writer_points(lm: Decoder) -> tuple[str, ...]:
    """The points that hold what every component adds to the stream, beside resid_pre and resid_post."""
    blocks = lm.structure.blocks
    points = ["attn_out"] if any(b.mixer is not None for b in blocks) else []
    points += ["mlp_out"] if any(b.feed_forward is not None for b in blocks) else []
    points += ["position_embedding"] if lm.structure.position_embedding is not None else []
    most = max(len(b.early_writers) + len(b.late_writers) for b in blocks)
    return (*points, *(f"writer {i}" for i in range(most)))


@dataclass(frozen=True)
class Step:
    """One component of a block: its label, the point that holds it, and whether it is added after the FFN's input."""

    label: str
    point: str
    late: bool


def steps_of(block: Block) -> tuple[Step, ...]:
    """The components of a block in the order of the forward pass."""
    others = [*block.early_writers, *block.late_writers]
    mixer = (
        [] if block.mixer is None else [Step("attention" if block.mixer.is_attention else "mixer", "attn_out", False)]
    )
    early = [Step(w.label, f"writer {i}", False) for i, w in enumerate(block.early_writers)]
    ffn = [] if block.feed_forward is None else [Step("ffn", "mlp_out", True)]
    late = [Step(w.label, f"writer {i}", True) for i, w in enumerate(others) if i >= len(early)]
    steps = (*mixer, *early, *ffn, *late)
    return steps if block.is_sequential else tuple(replace(s, late=True) for s in steps)


def writers(lm: Decoder, run: Run, point: str, layer: int) -> Writers:
    """Embedding, positions, and what each component up to a point adds.

    Where a block rescales the stream, the vectors of earlier writers are rescaled with it.

    Args:
        lm: the model.
        run: a run that captured resid_pre, `writer_points(lm)` and `point`; unedited_post too if the stream is edited.
        point: a point of the stream.
        layer: its layer.

    Raises:
        SumNotProved: the writers do not add up to the stream.

    Memory: one stream tensor for each writer.
    """
    if point not in STREAM_POINTS:
        raise InvalidInput(f"point {point!r}", why=f"it is not one of {', '.join(STREAM_POINTS)}")
    layer = lm.layer(layer)
    labels, vectors = ["embedding"], [run.at("resid_pre", 0)]
    if lm.structure.position_embedding is not None:
        positions = run["position_embedding"][0]
        labels, vectors = ["embedding", "positions"], [vectors[0] - positions, positions]
    for n, block in enumerate(lm.structure.blocks[: layer + 1]):
        if n == layer and point == "resid_pre":
            break
        steps = steps_of(block)
        vectors = _rescaled(vectors, block.entry_gain)
        labels += [f"{s.label} {n}" for s in steps if not s.late]
        vectors += [run.at(s.point, n) for s in steps if not s.late]
        if n == layer and point == "resid_mid":
            break
        vectors = _rescaled(vectors, block.middle_gain)
        labels += [f"{s.label} {n}" for s in steps if s.late]
        vectors += [run.at(s.point, n) for s in steps if s.late]
        vectors = _rescaled(vectors, block.exit_gain)
        if run.has("unedited_post", n):
            labels, vectors = [*labels, f"edit {n}"], [*vectors, run.at("resid_post", n) - run.at("unedited_post", n)]
    stacked = torch.stack(vectors)
    whole = run.at(point, layer)
    error = prove(f"the stream of {lm.name} at {point} {layer}", stacked.sum(dim=0), whole, tolerance(lm))
    return Writers(tuple(labels), stacked, error)


def _rescaled(vectors: list[Tensor], gain: float | Tensor) -> list[Tensor]:
    return vectors if not isinstance(gain, Tensor) and gain == 1.0 else [v * gain for v in vectors]


@dataclass(frozen=True, eq=False)
class Directions:
    """For one direction at the end of the stream, the direction that stands for it where each component writes.

    A block that rescales the stream multiplies what all earlier writers contribute: the direction is pulled back
    through the gains of the later blocks, from the last to the first.
    """

    start: Float[Tensor, " d_model"]
    """For the embedding."""
    early: tuple[Float[Tensor, " d_model"], ...]
    """By layer, for components added before the FFN's input."""
    late: tuple[Float[Tensor, " d_model"], ...]
    """By layer, for components added after it."""
    end: tuple[Float[Tensor, " d_model"], ...]
    """By layer, for what is added to the stream behind the block: an edit."""


def directions(lm: Decoder, u: Float[Tensor, " d_model"]) -> Directions:
    """The direction `u` at the end of the stream, pulled back to every place where something is added."""
    early, late, end = [], [], []
    for block in reversed(lm.structure.blocks):
        end.append(u)
        u = _pulled(u, block.exit_gain)
        late.append(u)
        u = _pulled(u, block.middle_gain)
        early.append(u)
        u = _pulled(u, block.entry_gain)
    return Directions(u, tuple(reversed(early)), tuple(reversed(late)), tuple(reversed(end)))


def _pulled(u: Tensor, gain: float | Tensor) -> Tensor:
    return u * gain.to(u) if isinstance(gain, Tensor) else u if gain == 1.0 else u * gain
