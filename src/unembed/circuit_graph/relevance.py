"""Compute the relevance of every component of a run in one backward pass, and check that relevance adds up.

The relevance of an activation a is R = a * dm/da, with gradients by the linear rules. It is what the activation
contributes to the metric m (a logit, or a difference of two) along all paths through the model. At the input of every
layer, the relevance of the residual stream and of all later constants must add up to m; this is checked.

Source: Rezaei Jafari et al. 2025 (RelP); Elhage et al. 2021 for the linear model of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import SumNotProved
from unembed.lens import final_scale, logit_direction
from unembed.linear_model.pass_tensors import LinearPass, Part, PartKind
from unembed.models.decoder import Decoder
from unembed.results import NOT_A_NUMBER, format_error, format_number
from unembed.stream.decomposition import tolerance


@dataclass(frozen=True, eq=False)
class Aim:
    """The metric of each row of a batch: a logit at the last position, or a difference of two.

    Attributes:
        tokens: for each row, the token whose logit is explained.
        against: for each row, the token whose logit is subtracted; None for the logit alone.
    """

    tokens: Sequence[int]
    against: Sequence[int | None]

    def pair(self, logits: Float[Tensor, "batch d_vocab"]) -> Float[Tensor, "batch 2"]:
        """Return the two logits of each row in float64; the second is 0 if no logit is subtracted."""
        rows = torch.arange(len(logits), device=logits.device)
        value = logits[rows, torch.tensor(self.tokens, device=logits.device)].double()
        other = torch.tensor([0 if a is None else a for a in self.against], device=logits.device)
        has = torch.tensor([a is not None for a in self.against], device=logits.device)
        return torch.stack([value, torch.where(has, logits[rows, other].double(), 0.0)], dim=1)

    def of(self, logits: Float[Tensor, "batch d_vocab"]) -> Float[Tensor, " batch"]:
        """Return the metric of each row, from the logits after its last token."""
        value, other = self.pair(logits).unbind(1)
        return value - other


@dataclass(frozen=True, eq=False)
class Readout:
    """How the metric depends on the last residual stream x at the last position: m = u . x + bias + cap.

    Attributes:
        u: the metric's direction in the residual stream, divided by the scale of the final norm in the run.
        bias: what the biases of final norm and unembedding add to the metric.
        cap: what the soft cap of the logits adds to the metric.
    """

    metric: Float[Tensor, " batch"]
    size: Float[Tensor, " batch"]
    """The larger absolute value of the two logits of the metric, to which errors are relative."""
    u: Float[Tensor, "batch d_model"]
    bias: Float[Tensor, " batch"]
    cap: Float[Tensor, " batch"]


def readout(made: LinearPass, aim: Aim) -> Readout:
    """Return the metric of each row, and how it depends on the last residual stream at the last position."""
    lm, last = made.lm, made.last.detach()[:, -1]
    directions = [logit_direction(lm, t, a) for t, a in zip(aim.tokens, aim.against, strict=True)]
    scale = final_scale(lm, last)
    u = torch.stack(directions).to(scale.dtype) / scale
    bias = torch.tensor([_bias(lm, t, a) for t, a in zip(aim.tokens, aim.against, strict=True)], dtype=torch.float64)
    metric = aim.of(made.logits[:, -1]).cpu()
    linear = (last.to(u.dtype) * u).sum(-1).double().cpu() + bias
    has_cap = lm.structure.logit_softcap is not None or hasattr(lm.structure.head, "band_scores")
    return Readout(
        metric,
        aim.pair(made.logits[:, -1]).abs().amax(1).cpu(),
        u,
        bias,
        metric - linear if has_cap else torch.zeros_like(metric),
    )


def _bias(lm: Decoder, token: int, against: int | None) -> float:
    norm, W_U, b_U = lm.structure.final_norm, lm.weights.W_U, lm.weights.b_U
    total = 0.0
    if norm is not None and norm.bias is not None:
        direction = W_U[:, token] if against is None else W_U[:, token] - W_U[:, against]
        total += float(norm.bias.double() @ direction.double())
    if b_U is not None:
        total += float(b_U[token]) - (0.0 if against is None else float(b_U[against]))
    return total * lm.structure.logit_scale


@dataclass(frozen=True, eq=False)
class Relevance:
    """The relevance of every component of a run, for each row of the batch.

    Attributes:
        metric: the metric of each row.
        gradients: dm/da of heads, (batch, pos, head, d_head), and memories, (batch, pos, memory), by kind and layer.
        start: dm/dx of the stream that enters the first block.
        biases: relevance of the biases of each layer, (layer, batch).
        closed: relevance of components to which no linear rule applies, (batch,), by layer and label.
        readout: how the metric depends on the last residual stream.
        error: at the input of each layer and after the last layer, the sum of all relevance is compared with the
            metric. The error is the largest difference, divided by the larger of the metric's logits and the sum's
            largest term.
    """

    gradients: dict[tuple[PartKind, int], Tensor]
    start: Float[Tensor, "batch pos d_model"]
    biases: Float[Tensor, "layer batch"]
    closed: dict[tuple[int, str], Float[Tensor, " batch"]]
    readout: Readout
    error: float

    @property
    def metric(self) -> Float[Tensor, " batch"]:
        """The model's own metric of each row."""
        return self.readout.metric


def contribution(own: Tensor, gradient: Tensor, kind: PartKind) -> Float[Tensor, "*batch pos node"]:
    """Return the relevance of each node: its activation times the gradient, summed over the channels of a head."""
    dtype = torch.promote_types(own.dtype, torch.float32)
    product = own.detach().to(dtype) * gradient.to(dtype)
    return product.sum(-1) if kind == "head" else product


def seed(made: LinearPass, u: Float[Tensor, "batch d_model"]) -> Float[Tensor, "batch pos d_model"]:
    """Return the gradient of the metric with respect to the last residual stream."""
    found = torch.zeros_like(made.last)
    found[:, -1] = u.to(found.dtype)
    return found


def relevance(made: LinearPass, aim: Aim) -> Relevance:
    """Compute the relevance of every component in one backward pass through a whole (uncut) linear pass.

    Raises:
        SumNotProved: at some layer, relevance and constants do not add up to the metric.

    Memory: one gradient for each tensor of the pass.
    """
    lm, out = made.lm, readout(made, aim)
    parts = list(made.parts.items())
    streams = sorted(made.streams.items())
    inputs = [
        *(part.own for _, part in parts),
        *(t for _, t in streams),
        *(one.factor for one in made.biases),
        *(one.own for one in made.closed),
    ]
    found = torch.autograd.grad([made.last], inputs, [seed(made, out.u)], allow_unused=True)
    grads = [torch.zeros_like(t) if g is None else g for t, g in zip(inputs, found, strict=True)]
    n, m, k = len(parts), len(parts) + len(streams), len(parts) + len(streams) + len(made.biases)
    gradients = {key: g for (key, _), g in zip(parts, grads[:n], strict=True)}
    biases = torch.zeros(lm.n_layers, len(made.tokens), dtype=torch.float64)
    for one, g in zip(made.biases, grads[m:k], strict=True):
        biases[one.layer] += g.double().sum(-1).cpu()
    closed: dict[tuple[int, str], Tensor] = {}
    for one, g in zip(made.closed, grads[k:], strict=True):
        whole = (one.own.detach().double() * g.double()).reshape(len(made.tokens), -1).sum(-1).cpu()
        closed[one.layer, one.label] = closed.get((one.layer, one.label), 0.0) + whole
    for part in made.parts.values():
        if (whole := _without_reading(part, gradients[part.kind, part.layer])) is not None:
            closed[part.layer, f"unopened {part.kind}s"] = whole
    crossing = torch.stack(
        [(t.detach().double() * g.double()).sum(-1).cpu() for (_, t), g in zip(streams, grads[n:m], strict=True)]
    )
    error = _proved(lm, made, out, crossing, biases, closed, _through_values(made, gradients))
    return Relevance(gradients, grads[n], biases, closed, out, error)


def _through_values(made: LinearPass, gradients: dict[tuple[PartKind, int], Tensor]) -> Float[Tensor, "layer batch"]:
    """Return the relevance that does not pass through the residual stream that enters each layer.

    There is some if heads mix values that an earlier layer computed: it goes from that layer to the heads directly.
    """
    found = torch.zeros(made.lm.n_layers, len(made.tokens), dtype=torch.float64)
    for layer, first in made.values_of.items():
        heads = contribution(made.parts["head", layer].own, gradients["head", layer], "head").double()
        found[first + 1 : layer + 1] += heads.sum((-1, -2)).cpu()
    return found


def _without_reading(part: Part, gradient: Tensor) -> Float[Tensor, " batch"] | None:
    """Return the relevance of the nodes that are not a linear function of their input; None if all are linear."""
    if part.read is not None and part.constant is None:
        return None
    found = contribution(part.own, gradient, part.kind).double()
    if part.read is not None and part.constant is not None:
        found = found[..., part.constant]
    return found.sum((-1, -2)).cpu()


def _proved(
    lm: Decoder,
    made: LinearPass,
    out: Readout,
    crossing: Float[Tensor, "layer batch pos"],
    biases: Float[Tensor, "layer batch"],
    closed: dict[tuple[int, str], Float[Tensor, " batch"]],
    through_values: Float[Tensor, "layer batch"],
) -> float:
    """Check that relevance adds up to the metric at every layer and after the last; return the largest error.

    The error of a sum is relative to the larger of the metric's logits and the sum's largest term.

    Raises:
        SumNotProved: the error is above the tolerance of the model's dtype.
    """
    constants = biases.clone()
    for (layer, _), whole in closed.items():
        constants[layer] += whole
    behind = constants.flip(0).cumsum(0).flip(0)
    last = (made.last.detach()[:, -1].double() * out.u.double()).sum(-1).cpu()
    ends = out.bias + out.cap
    cuts = torch.cat([crossing.sum(-1) + through_values + behind + ends, (last + ends)[None]])
    sizes = torch.maximum(out.size, crossing.abs().amax((0, 2))).clamp_min(1e-30)
    errors = (cuts - out.metric).abs() / sizes
    error = float(errors.max())
    if not error <= tolerance(lm):
        where = int(errors.amax(1).argmax())
        cut = f"the stream that enters layer {where}" if where < lm.n_layers else "the last stream"
        row = int(errors[where].argmax())
        found, true = (
            format_number(float(one[row]), digits=6, undefined=NOT_A_NUMBER) for one in (cuts[where], out.metric)
        )
        raise SumNotProved(
            f"the sum of all relevance at {cut} of {lm.name}",
            why=f"it is {found} where the model's own metric is {true} (relative error {format_error(error, 2)})",
            instead="Load with dtype='float32', remove hooks of your own from lm.hf, or report this model",
        )
    return error
