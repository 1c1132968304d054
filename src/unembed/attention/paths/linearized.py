"""Write the attention layers of a run as linear maps of the stream, with its patterns, norm scales and gates fixed.

With these fixed, a head is linear in the stream: its output for a sum of vectors is the sum of its outputs for each.
Biases are constants and stored separately. Where blocks rescale or normalise the stream itself, all vectors are
multiplied by the later factors, which gives them in the units of the last stream (see `stream_gains`).

Source: Elhage et al. 2021, "Path expansion"; patterns frozen as in its "How much does each term matter" algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.weights.composed_weights import composed_weights, is_composed
from unembed.attention.weights.folded_weights import require_heads
from unembed.attention.weights.stream_gains import changes_stream, written_to_end
from unembed.errors import SumNotProved, Unsupported
from unembed.lens import final_scale
from unembed.models.decoder import Decoder
from unembed.models.structure.mixer_names import site_name
from unembed.names import SUM_TOLERANCE
from unembed.results import format_setting
from unembed.stream.decomposition import (
    Branch,
    attention_branch,
    prove,
    require_one_stream,
    require_unnormalised_stream,
    tolerance,
)
from unembed.stream.run import Run, Tokens, run


@dataclass(frozen=True, eq=False)
class FrozenLayer:
    """One attention layer of a run as a linear function of its input.

    The argument `x` of the methods is one term (or several) of a sum that makes up the input.
    """

    lm: Decoder
    layer: int
    pattern: Float[Tensor, "batch head dst src"]
    scale: Float[Tensor, "batch pos 1"] | None
    """Divisor of the norm before the attention; None where there is none."""
    branch: Branch
    W_V: Float[Tensor, "kv_head d_model d_head"]
    """The value projection; in latent attention (MLA), both projections times the gain of the norm between them."""
    value_factor: Float[Tensor, "batch kv_head pos 1"] | None = None
    """The inverse of the number by which a norm divided the latent, or each value vector, in the run; None if there is
    no such norm."""
    gate: Float[Tensor, "batch head pos d_head"] | None = None
    """Factor by which each head's attention-weighted sum of values is multiplied before the out-projection."""
    entry_to_end: Float[Tensor, "batch pos d_model"] | None = None
    """Factors that later blocks apply to the stream that enters the layer; None where blocks only add to the stream."""
    written_to_end: Float[Tensor, "batch pos d_model"] | None = None
    """Factors that later blocks apply to what the attention adds."""

    def values(self, x: Float[Tensor, "*path batch pos d_model"]) -> Float[Tensor, "*path batch head pos d_head"]:
        """Compute the values of each head, without biases, from one term of a sum that makes up the stream."""
        site = self.lm.structure.blocks[self.layer].attention
        if self.entry_to_end is not None:
            x = x / self.entry_to_end.to(x.dtype)
        if site.pre_norm is not None and self.scale is not None:
            x = site.pre_norm.frozen(x, self.scale).to(x.dtype)
        return self._scaled(torch.einsum("...pm,hmd->...hpd", x, self.W_V.to(x.dtype)))

    def _scaled(self, values: Float[Tensor, "*any kv_head pos d_head"]) -> Float[Tensor, "*any head pos d_head"]:
        if self.value_factor is not None:
            values = values * self.value_factor.to(values.dtype)
        return values.repeat_interleave(self.lm.structure.blocks[self.layer].attention.queries_per_kv, dim=-3)

    def _mixed(self, values: Float[Tensor, "*any head pos d_head"]) -> Float[Tensor, "*any head pos d_head"]:
        z = self.pattern.to(values.dtype) @ values
        return z if self.gate is None else z * self.gate.to(values.dtype)

    def heads(self, x: Float[Tensor, "*path batch pos d_model"]) -> Float[Tensor, "*path batch head pos d_model"]:
        """Return what each head adds to the stream at every position in response to one term of its input."""
        z = self._mixed(self.values(x))
        return self._written(torch.einsum("...hpd,hdm->...hpm", z, self.lm.weights.W_O[self.layer].to(x.dtype)), True)

    def layer_sum(self, x: Float[Tensor, "*path batch pos d_model"]) -> Float[Tensor, "*path batch pos d_model"]:
        """Return the sum of what all heads add at every position in response to one term of their input."""
        z = self._mixed(self.values(x))
        return self._written(torch.einsum("...hpd,hdm->...pm", z, self.lm.weights.W_O[self.layer].to(x.dtype)), False)

    def heads_at(
        self, x: Float[Tensor, "*path batch pos d_model"], position: int
    ) -> Float[Tensor, "*path batch head d_model"]:
        """Return what each head adds at one position in response to one term of its input."""
        z = torch.einsum("bhs,...bhsd->...bhd", self.pattern[:, :, position].to(x.dtype), self.values(x))
        return self._written_at(z, position)

    def sources_at(
        self, x: Float[Tensor, "batch pos d_model"], position: int
    ) -> Float[Tensor, "src batch head d_model"]:
        """Return what each head adds at one position from each source in response to one term of its input."""
        z = self.pattern[:, :, position, :, None].to(x.dtype) * self.values(x)  # (batch, head, src, d_head)
        return self._written_at(z.movedim(2, 0), position)

    def _written_at(
        self, z: Float[Tensor, "*path batch head d_head"], position: int
    ) -> Float[Tensor, "*path batch head d_model"]:
        z = z if self.gate is None else z * self.gate[:, :, position].to(z.dtype)
        written = torch.einsum("...hd,hdm->...hm", z, self.lm.weights.W_O[self.layer].to(z.dtype))
        if self.branch.norm is not None and self.branch.scale is not None:
            written = self.branch.norm.frozen(written, self.branch.scale[:, position][:, None]).to(z.dtype)
        written = written * self.branch.multiplier
        return written if self.written_to_end is None else written * self.written_to_end[:, position, None].to(z.dtype)

    def bias(self) -> Float[Tensor, "batch pos d_model"]:
        """Return what the layer adds because of its biases; this does not depend on its input."""
        site, weights = self.lm.structure.blocks[self.layer].attention, self.lm.weights
        W_V, W_O = self.W_V, weights.W_O[self.layer]
        kv = torch.zeros(W_V.shape[0], W_V.shape[2], dtype=W_V.dtype, device=W_V.device)
        if site.pre_norm is not None and site.pre_norm.bias is not None:
            kv = kv + torch.einsum("m,hmd->hd", site.pre_norm.bias, W_V)
        if not is_composed(site) and (b_V := weights.b_V[self.layer]) is not None:
            kv = kv + b_V
        # The bias of the values is weighted by the pattern, because attention weights need not add up to 1: in models
        # with attention sinks, the sink takes the rest.
        batch, _, pos, _ = self.pattern.shape
        z = self._mixed(self._scaled(kv[None, :, None].expand(batch, -1, pos, -1)))
        raw = torch.einsum("bhpd,hdm->bpm", z, W_O.to(z.dtype))
        if (b_O := weights.b_O[self.layer]) is not None:
            raw = raw + b_O
        added = self._written(raw, False)
        for constant in (self.branch.bias, site.constant):
            if constant is not None:
                added = added + (constant if self.written_to_end is None else constant * self.written_to_end)
        return added.to(raw.dtype)

    def _written(self, raw: Tensor, by_head: bool) -> Tensor:
        if self.branch.norm is not None and self.branch.scale is not None:
            scale = self.branch.scale[:, None] if by_head else self.branch.scale
            raw = self.branch.norm.frozen(raw, scale).to(raw.dtype)
        raw = raw if self.branch.multiplier == 1.0 else raw * self.branch.multiplier
        if self.written_to_end is None:
            return raw
        factor = self.written_to_end.to(raw.dtype)
        return raw * (factor[:, None] if by_head else factor)


@dataclass(frozen=True, eq=False)
class FrozenRun:
    """A run as linear attention layers plus constants: embedding, positions, biases, outputs of FFNs and other mixers.

    Attributes:
        run: the run of the real model.
        layers: the attention layers in order, by layer number.
        constants: what enters the stream without passing a head, in order: (label, first layer whose attention reads
            it, vectors (batch, pos, d_model)).
    """

    lm: Decoder
    run: Run
    layers: Mapping[int, FrozenLayer]
    constants: tuple[tuple[str, int, Float[Tensor, "batch pos d_model"]], ...]
    final: Float[Tensor, "batch pos 1"] = field(repr=False)

    def constants_before(self, layer: int) -> Float[Tensor, "batch pos d_model"]:
        """Return the sum of the constants that a layer's attention reads."""
        return torch.stack([vectors for _, before, vectors in self.constants if before <= layer]).sum(dim=0)

    def read(self, x: Float[Tensor, "*path batch pos d_model"]) -> Float[Tensor, "*path batch pos d_model"]:
        """Apply the final norm and the logit scale to terms of the stream after the last layer.

        The norm divides by the scale that it had in the run.
        """
        return self._read(x, self.final)

    def read_at(self, x: Float[Tensor, "*path batch d_model"], position: int) -> Float[Tensor, "*path batch d_model"]:
        """Return what `read` returns, for terms of the stream at one position."""
        return self._read(x, self.final[:, position])

    def _read(
        self, x: Float[Tensor, "*part d_model"], scale: Float[Tensor, "*batch 1"]
    ) -> Float[Tensor, "*part d_model"]:
        norm = self.lm.structure.final_norm
        if norm is not None:
            x = norm.frozen(x, scale).to(x.dtype)
        return x if self.lm.structure.logit_scale == 1.0 else x * self.lm.structure.logit_scale

    @property
    def constant(self) -> Float[Tensor, " d_vocab"] | None:
        """The part of the logits that comes from biases of final norm and unembedding; None if there are none."""
        structure, weights = self.lm.structure, self.lm.weights
        bias = None if structure.final_norm is None else structure.final_norm.bias
        parts = [*([] if bias is None else [bias @ weights.W_U]), *([] if weights.b_U is None else [weights.b_U])]
        return torch.stack(parts).sum(dim=0) * structure.logit_scale if parts else None

    def logits(self, last: Float[Tensor, "*path batch pos d_model"]) -> Float[Tensor, "*path batch pos d_vocab"]:
        """Return the logits for a stream after the last layer, with biases and soft cap; see `read` for the norm."""
        return self.logits_of_read(self.read(last))

    def logits_of_read(self, x: Float[Tensor, "*path d_model"]) -> Float[Tensor, "*path d_vocab"]:
        """Return logits from the result of `read`, with biases and soft cap."""
        logits, cap = x @ self.lm.weights.W_U.to(x.dtype), self.lm.structure.logit_softcap
        logits = logits if (constant := self.constant) is None else logits + constant
        return logits if cap is None else cap * torch.tanh(logits / cap)


def required_points(lm: Decoder) -> tuple[str, ...]:
    """Return the capture points that a run needs for `frozen_run`."""
    structure = lm.structure
    others = max(len(b.early_writers) + len(b.late_writers) for b in structure.blocks)
    special = [b for b in structure.blocks if b.mixer is not None and b.mixer.is_attention and is_composed(b.mixer)]
    named = ["resid_pre", "resid_post", "attn_out", "pattern", "z"]
    if any(b.middle_norm is not None for b in structure.blocks):
        named.append("resid_mid")
    if any(b.feed_forward is not None for b in lm.structure.blocks):
        named.append("mlp_out")
    if lm.structure.position_embedding is not None:
        named.append("position_embedding")
    return (*named, *(["values"] if special else []), *(f"writer {i}" for i in range(others)))


@torch.no_grad()
def frozen_run(lm: Decoder, tokens: Tokens) -> FrozenRun:
    """Run the model once and record everything that its linear form needs.

    Raises:
        SumNotProved: heads and biases do not add up to what the model's attention added.
        Unsupported: the model clips its value vectors, has no layers, has several residual streams, or has a norm on
            the stream itself that subtracts its mean; or the value vectors of a layer are not a linear map of its
            input.

    Memory: patterns (layer, batch, head, pos, pos) and five stream tensors for each layer; seven where blocks rescale
        the stream.
    """
    require_heads(lm, "paths through heads")
    require_one_stream(lm, "path expansion")
    norms = [norm for block in lm.structure.blocks for norm in (block.entry_norm, block.middle_norm)]
    if any(norm is not None and norm.centred for norm in norms):
        require_unnormalised_stream(lm, "path expansion")
    for n in lm.attention_layers:
        _value_weights(lm, n)  # raises where values are not a linear map of the input
    seen = run(lm, tokens, required_points(lm))
    layers: dict[int, FrozenLayer] = {}
    # The tolerance is at least that of float32, because many families compute norms and softmax in float32 whatever the
    # dtype of the weights.
    limit = max(tolerance(lm), SUM_TOLERANCE["float32"])
    first = written_to_end(lm, seen.at("resid_pre", 0), 0, "embedding", seen)
    constants: list[tuple[str, int, Tensor]] = [("embedding", 0, first)]
    if lm.structure.position_embedding is not None:
        added = written_to_end(lm, seen["position_embedding"][0], 0, "embedding", seen)
        constants = [("embedding", 0, first - added), ("positions", 0, added)]
    for n, block in enumerate(lm.structure.blocks):
        if n in lm.attention_layers:
            layers[n], bias = _frozen_layer(lm, seen, n, limit)
            if bool(bias.any()):
                constants.append((f"attention biases {n}", n + 1, bias))
        elif block.mixer is not None:
            written = written_to_end(lm, seen.at("attn_out", n), n, "attention", seen)
            constants.append((f"{site_name(block.mixer)} {n}", n + 1, written))
        if block.feed_forward is not None:
            constants.append((f"ffn {n}", n + 1, written_to_end(lm, seen.at("mlp_out", n), n, "ffn", seen)))
        for i, writer in enumerate((*block.early_writers, *block.late_writers)):
            part = "attention" if i < len(block.early_writers) else "ffn"
            written = written_to_end(lm, seen.at(f"writer {i}", n), n, part, seen)
            constants.append((f"{writer.label} {n}", n + 1, written))
    final = final_scale(lm, seen.at("resid_post", lm.n_layers - 1))
    return FrozenRun(lm, seen, layers, tuple(constants), final)


def _frozen_layer(
    lm: Decoder, seen: Run, n: int, limit: float
) -> tuple[FrozenLayer, Float[Tensor, "batch pos d_model"]]:
    """Return a linear attention layer, and what its biases add; heads plus biases are checked against the model."""
    site, entered = lm.structure.blocks[n].attention, seen.at("resid_pre", n)
    scale = None if site.pre_norm is None else site.pre_norm.scale(entered)
    branch = attention_branch(lm, n, seen.at("z", n))
    layer = _with_factors(FrozenLayer(lm, n, seen.at("pattern", n), scale, branch, _value_weights(lm, n)), seen)
    if changes_stream(lm):
        one = torch.ones_like(entered, dtype=torch.float64)
        entry, written = (written_to_end(lm, one, n, part, seen) for part in ("embedding", "attention"))
        layer = replace(layer, entry_to_end=entry, written_to_end=written)
    bias = layer.bias()
    try:
        total = layer.layer_sum(written_to_end(lm, entered, n, "embedding", seen)) + bias
        whole = written_to_end(lm, seen.at("attn_out", n), n, "attention", seen)
        prove(f"the heads of layer {n} of {lm.name}", total, whole, limit)
    except SumNotProved:
        if site.clip is None:
            raise
        raise Unsupported(
            f"path expansion of {lm.name}",
            why=f"it clips values at {format_setting(site.clip)}, which is not linear",
            instead="Use attributions by head",
        ) from None
    return layer, bias


def _value_weights(lm: Decoder, layer: int) -> Float[Tensor, "kv_head d_model d_head"]:
    """Return W_V of a layer; for latent attention, the product of its down- and up-projection.

    Raises:
        Unsupported: the value vectors are not a linear map of the layer's input.
    """
    site = lm.structure.blocks[layer].attention
    return composed_weights(lm, layer, "v", "folded") if is_composed(site) else lm.weights.W_V[layer]


def _with_factors(layer: FrozenLayer, seen: Run) -> FrozenLayer:
    """Return the layer with the run's factors on its values (`value_factor`) and on their weighted sums (`gate`)."""
    lm, n = layer.lm, layer.layer
    site = lm.structure.blocks[n].attention
    if not is_composed(site) or site.readings is None or site.values is None:
        return layer
    values = seen.at("values", n)
    if site.readings.normed_values or any(r.latent is not None for r in site.readings.parts["v"]):
        x = seen.at("resid_pre", n)
        if site.pre_norm is not None and layer.scale is not None:
            x = site.pre_norm.frozen(x, layer.scale).to(x.dtype)
            x = x if site.pre_norm.bias is None else x + site.pre_norm.bias
        read = torch.einsum("bpm,hmd->bhpd", x, layer.W_V.to(x.dtype))
        factor = (values * read).sum(-1, keepdim=True) / read.square().sum(-1, keepdim=True).clamp_min(1e-30)
        layer = replace(layer, value_factor=factor)
    if site.values.gated:
        mixed = layer.pattern.to(values.dtype) @ values.repeat_interleave(site.queries_per_kv, dim=1)
        gate = seen.at("z", n).transpose(1, 2) / torch.where(mixed == 0, torch.ones_like(mixed), mixed)
        layer = replace(layer, gate=gate)
    return layer


def stream_by_order(frozen: FrozenRun, highest: int) -> Float[Tensor, "order batch pos d_model"]:
    """Split the residual stream after the last layer by the number of heads that a path passes through.

    Order 0 is the sum of the constants; order k, up to `highest`, is the sum over paths through exactly k heads. The
    orders add up to the stream if `highest` is at least the number of layers.
    """
    first = frozen.constants_before(0)
    state = torch.zeros(highest + 1, *first.shape, dtype=first.dtype, device=first.device)
    state[0] = first
    for n in range(frozen.lm.n_layers):
        if highest > 0 and n in frozen.layers:
            state[1:] += frozen.layers[n].layer_sum(state[:-1])
        for _, before, vectors in frozen.constants:
            if before == n + 1:
                state[0] += vectors
    return state
