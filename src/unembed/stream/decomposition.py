"""The stream as the sum of its writers: what each part of the model adds, through branch norms and multipliers.

A branch norm (Gemma, OLMo 2) stands between the heads or memories of a layer and the stream. With its scale frozen at
the run's value it is linear, so each head's and each memory's own share is exact; libraries that leave it out report
numbers that do not add up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput, SumNotProved
from unembed.models.decoder import Decoder
from unembed.models.norms import Norm
from unembed.names import STREAM_POINTS, SUM_TOLERANCE
from unembed.stream.run import Run


def tolerance(lm: Decoder) -> float:
    """The largest relative error a sum may have in this model's dtype."""
    return SUM_TOLERANCE[lm.dtype_name]


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
    site = lm.structure.blocks[layer].attention
    if site.branch_norm is None:
        return Branch(None, None, site.multiplier)
    raw = z.flatten(-2) @ lm.weights.W_O[layer].flatten(0, 1)
    if (bias := lm.weights.b_O[layer]) is not None:
        raw = raw + bias
    return Branch(site.branch_norm, site.branch_norm.scale(raw), site.multiplier)


def source_values(lm: Decoder, run: Run, layer: int) -> Float[Tensor, "head src d_head"]:
    """Each head's value at each position of the first prompt, bias and clip included: what the pattern mixes.

    The run must have kept `attn_in`.
    """
    site = lm.structure.blocks[layer].attention
    values = torch.einsum("sm,hmd->hsd", run.at("attn_in", layer)[0], lm.weights.W_V[layer])
    if (bias := lm.weights.b_V[layer]) is not None:
        values = values + bias[:, None]
    if site.clip is not None:
        values = values.clamp(-site.clip, site.clip)
    return values.repeat_interleave(site.queries_per_kv, dim=0)


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


def writers(lm: Decoder, run: Run, point: str, layer: int) -> Writers:
    """Embedding, positions, and what each attention and FFN up to a point adds.

    Args:
        lm: the model.
        run: a run that kept resid_pre, attn_out, mlp_out (if there are FFNs), position_embedding (if there is one) and
            the point asked.
        point: a point of the stream.
        layer: its layer.

    Raises:
        SumNotProved: the writers do not add up to the stream.

    Memory: one stream tensor for each writer.
    """
    if point not in STREAM_POINTS:
        raise InvalidInput(f"point {point!r}", why=f"the stream's points are {', '.join(STREAM_POINTS)}")
    layer = lm.layer(layer)
    labels, vectors = ["embedding"], [run.at("resid_pre", 0)]
    if lm.structure.position_embedding is not None:
        positions = run["position_embedding"][0]
        labels, vectors = ["embedding", "positions"], [vectors[0] - positions, positions]
    for n in range(layer + 1):
        before = n < layer
        if before or point != "resid_pre":
            labels.append(f"attention {n}")
            vectors.append(run.at("attn_out", n))
        if (before or point == "resid_post") and lm.structure.blocks[n].feed_forward is not None:
            labels.append(f"ffn {n}")
            vectors.append(run.at("mlp_out", n))
    stacked = torch.stack(vectors)
    whole = run.at(point, layer)
    error = prove(f"the stream of {lm.name} at {point} {layer}", stacked.sum(dim=0), whole, tolerance(lm))
    return Writers(tuple(labels), stacked, error)
