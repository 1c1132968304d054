"""The structure of a decoder as data: where each part lies in the module tree, and how the stream flows through it.

`unembed.models.structure.resolver` finds a `Structure`; it is never written by hand. Everything that differs between
families is a field here, so other code reads fields and never checks a family's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from unembed.errors import Unsupported
from unembed.models.norms import Norm
from unembed.models.structure.effective_matrix import EffectiveMatrix
from unembed.models.structure.rotary import Rotary

if TYPE_CHECKING:
    from unembed.models.structure.exotic import DifferentialPattern, HeadReadings, Streams
    from unembed.models.structure.experts import Experts


@dataclass(frozen=True, eq=False)
class HeadLayout:
    """How queries, keys and values lie in the weights of the projections that compute them.

    `split`: q, k and v are separate modules. `stacked`: one weight with the rows of [Q | K | V]. `per_group`: one
    weight that has, for each key-value head, its queries, then its key, then its value (with one query per group this
    is the layout of NeoX and Bloom).
    """

    kind: str  # "split" | "stacked" | "per_group"
    q: nn.Module
    k: nn.Module
    v: nn.Module
    """The projections `q`, `k` and `v` compute queries, keys and values. Unless `kind` is "split", they are the
    same module."""


GATES = {
    "head": "a factor of each position and head multiplies the mixed values of the heads",
    "channel": "a gate of each position and channel multiplies the mixed values of the heads",
    "norm": "a norm is applied to the mixed values of the heads before the out-projection",
}
"""For each kind of gate between the mixed values (pattern times values) and the out-projection, an explanation."""


@dataclass(frozen=True, eq=False)
class ValueSource:
    """The module whose output contains an attention's values, and how to read them from that output."""

    module: nn.Module
    form: str
    """How the values are arranged in the output:

    - "heads": head after head
    - "stacked", "per_group" and "qkv_blocks": as in a fused projection of queries, keys and values
    - "latent": the last d_head channels of each head's slice, as in latent attention
    - "halves": each half of the output contains one half of every head, as in differential attention
    - "head_axis" and "head_axis_first": heads have an axis of their own, after or before the axis of positions
    """
    n_heads: int
    n_kv_heads: int
    d_head: int
    factor: float
    """Number by which the mixed values are multiplied to give z, the out-projection's input; 1 in most families."""
    clip: float | None
    gate: str
    """What multiplies the mixed values to give z: "" if nothing does, "head" for one factor per position
    and head, "channel" for one per position and channel, "norm" for a norm with its gain."""
    item: int = 0
    """If the module returns several tensors (ZAYA), the index of the one that contains the values."""

    @property
    def gated(self) -> bool:
        """True if z, the out-projection's input, is the mixed values times a gate or a norm's scale."""
        return bool(self.gate)

    def split(self, t: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch kv_head pos d_head"]:
        """Return the values in the module's output, clipped and scaled as the model does."""
        n, kv, d = self.n_heads, self.n_kv_heads, self.d_head
        if self.form == "head_axis_first":
            values = t
        elif self.form == "head_axis":
            values = t.transpose(1, 2)
        else:
            t = t.squeeze(1) if t.dim() == 4 else t  # in DeepSeek, the output has a head axis of length 1
            batch, pos = t.shape[:2]
            if self.form == "heads":
                values = t.reshape(batch, pos, kv, d)
            elif self.form == "halves":
                values = t.reshape(batch, pos, 2, kv, d // 2).transpose(2, 3).reshape(batch, pos, kv, d)
            elif self.form == "stacked":
                values = t[..., (n + kv) * d :].reshape(batch, pos, kv, d)
            elif self.form == "per_group":
                values = t.reshape(batch, pos, kv, n // kv + 2, d)[..., -1, :]
            elif self.form == "qkv_blocks":  # CodeGen: four blocks of [queries, values, keys]
                values = t.reshape(batch, pos, 4, 3, n // 4, d)[:, :, :, 1].reshape(batch, pos, n, d)
            else:
                values = t.reshape(batch, pos, kv, -1)[..., -d:]
            values = values.transpose(1, 2)
        if self.clip is not None:
            values = values.clamp(-self.clip, self.clip)
        return values if self.factor == 1.0 else values * self.factor


@dataclass(frozen=True, eq=False)
class Writer:
    """A module, other than the token mixer and the FFN, whose output is added to the residual stream."""

    label: str
    module: nn.Module
    """The module's output, times `multiplier`, is added to the stream."""
    multiplier: float
    each_stream: bool = False
    """True if the module adds a different vector to each of several streams."""


@dataclass(frozen=True, eq=False)
class ScoreRule:
    """The formula of attention weights: softmax(scale * q . k), after norms and rotation of queries and keys."""

    scale: float = float("nan")
    rotary: Rotary | None = None
    q_norm: nn.Module | None = None
    k_norm: nn.Module | None = None
    norm_after_rotary: bool = False
    softcap: float | None = None
    alibi_slopes: Float[Tensor, " n_heads"] | None = None
    window: int | None = None
    missing: str = "its attention scores could not be rebuilt from queries and keys when the model was opened"
    """Why the pattern could not be rebuilt from queries and keys, so that there are no QK circuits; empty if it was."""

    @property
    def understood(self) -> bool:
        """False if the attention pattern could not be rebuilt. Then there are no QK circuits; everything else works."""
        return not self.missing


@dataclass(frozen=True, eq=False)
class AttentionSite:
    """The token mixer of one block: attention, or another module that mixes positions (`is_attention` is False).

    Its output as a whole is always known. What else can be computed depends on what was found: heads need an
    out-projection whose input is divided by heads; an attribution to source positions needs the attention pattern and
    the values.
    """

    path: str
    module: nn.Module
    output: nn.Module
    """The mixer adds this module's output, times `multiplier`, plus `constant`, to the stream."""
    out_projection: nn.Module | None
    pre_norm: Norm | None
    branch_norm: Norm | None
    multiplier: float
    constant: Float[Tensor, " d_model"] | None
    """A bias that the block itself adds after the module's output (GPT-NeoX Japanese); None if there is none."""
    n_heads: int
    """Number of heads; 0 if the mixer does not end in an out-projection over heads."""
    n_kv_heads: int
    d_head: int
    is_attention: bool
    """True where the module computes attention weights."""
    values_missing: str
    """Why W_Q, W_K and W_V are not available; empty if they are."""
    scores: ScoreRule
    values: ValueSource | None = None
    """Where the values can be captured; None where they were not found."""
    head_layout: HeadLayout | None = None
    clip: float | None = None
    """Queries, keys and values are clamped to [-clip, clip]; None if they are not clamped."""
    positions_read: bool = False
    """True if learned positions are added to the input of Q and K but not to the stream (attention-only models)."""
    readings: HeadReadings | None = None
    """If `head_layout` is None: how queries, keys and values are computed, such as through a latent vector."""
    no_heads: str = ""
    """Why the mixer's output is not a sum over heads; empty if it is one, or if there is simply no out-projection."""
    differential: DifferentialPattern | None = None
    """How a head's attention pattern is computed from two softmaxes; None if each head has only one."""

    def pattern(self, weights: Float[Tensor, "batch softmax dst src"]) -> Float[Tensor, "batch head dst src"]:
        """Return the heads' patterns, computed from the attention weights that the module returns."""
        return weights if self.differential is None else self.differential.combined(weights)

    @property
    def queries_per_kv(self) -> int:
        """The number of query heads for each key-value head."""
        return self.n_heads // self.n_kv_heads

    def split_heads(self, t: Shaped[Tensor, "*axes width"], which: str) -> Shaped[Tensor, "*axes head d_head"]:
        """Return the channels of "q", "k" or "v" in a projection's last axis, with an axis for heads.

        The result is a view, except if several query heads share a key-value head inside one fused projection.
        """
        n, kv, d = self.n_heads, self.n_kv_heads, self.d_head
        if self.layout.kind == "stacked":
            start, end = {"q": (0, n), "k": (n, n + kv), "v": (n + kv, n + 2 * kv)}[which]
            t = t[..., start * d : end * d]
        elif self.layout.kind == "per_group":
            per = self.queries_per_kv
            groups = t.unflatten(-1, (kv, per + 2, d))
            if which == "q":
                return groups[..., :per, :].flatten(-3, -2)
            return groups[..., per if which == "k" else per + 1, :]
        return t.unflatten(-1, (-1, d))

    @property
    def heads_missing(self) -> str:
        """Why the output of the mixer is not a sum over heads; empty if it is one."""
        if self.no_heads:
            return self.no_heads
        return f"{type(self.module).__name__} does not end in a projection over heads"

    @property
    def out_proj(self) -> nn.Module:
        """The projection from the heads' mixed values to the stream.

        Raises:
            Unsupported: the mixer has no out-projection over heads.
        """
        if self.out_projection is None:
            raise Unsupported(
                f"the heads of {self.path}",
                why=self.heads_missing,
                instead="Use attributions by component",
            )
        return self.out_projection

    @property
    def layout(self) -> HeadLayout:
        """How queries, keys and values lie in their weights.

        Raises:
            Unsupported: they could not be found.
        """
        if self.head_layout is None:
            raise Unsupported(
                f"the queries, keys and values of {self.path}",
                why=self.values_missing,
                instead="Use attributions by component" + (" or by head" if self.n_heads else ""),
            )
        return self.head_layout


@dataclass(frozen=True, eq=False)
class FeedForwardSite:
    """The FFN of one block. In a mixture of experts, `down_proj` is None and `experts` describes the experts."""

    module: nn.Module
    entry: nn.Module
    """The first module of the FFN that receives the stream: the norm before the FFN, if there is one."""
    output: nn.Module
    """The FFN adds this module's output, times `multiplier`, to the stream."""
    pre_norm: Norm | None
    branch_norm: Norm | None
    multiplier: float
    down_proj: nn.Module | None = None
    up_proj: nn.Module | None = None
    gate_proj: nn.Module | None = None
    """The gate projection, or None; the same module as `up_proj` if both are fused in one weight."""
    gate_first: bool = False
    activation: str = "unknown"
    experts: Experts | None = None
    """The experts to which the memories belong, in a mixture of experts."""
    memories_missing: str = ""
    """Why the FFN's memories cannot be read; empty if they can."""
    channel_gate: nn.Module | None = None
    """The projection whose sigmoid multiplies each channel of the memories' output, at each position (RWKV)."""

    @property
    def reader(self) -> nn.Module:
        """A module that has the same input as the FFN: the gate or up-projection, else the FFN itself."""
        return next((m for m in (self.gate_proj, self.up_proj) if m is not None), self.module)

    @property
    def memory_module(self) -> nn.Module | None:
        """The module at which coefficients are captured: the down-projection; the whole FFN if it has experts."""
        return self.down_proj if self.experts is None else self.module

    @property
    def is_gated(self) -> bool:
        """True if a memory's coefficient is activation(gate) * up; with experts, times the expert's router weight."""
        return self.gate_proj is not None or (self.experts is not None and self.experts.is_gated)

    @property
    def is_fused(self) -> bool:
        """True if gate and up are two halves of one weight."""
        return self.gate_proj is not None and self.gate_proj is self.up_proj

    def half(self, t: Shaped[Tensor, "*axes width"], which: str) -> Shaped[Tensor, "*axes d_mlp"]:
        """Return the "gate" or "up" half of a fused projection's last axis; the whole tensor if it is not fused."""
        if not self.is_fused:
            return t
        first, second = t.chunk(2, dim=-1)
        return first if (which == "gate") == self.gate_first else second

    @property
    def has_memories(self) -> bool:
        """False if coefficients cannot be read, as in some mixtures of experts; `memories_missing` gives the reason."""
        return self.down_proj is not None or self.experts is not None


@dataclass(frozen=True, eq=False)
class Block:
    """One transformer block, as two sums.

    resid_mid  = entry_gain * entry_norm(resid_pre) + attn_out + outputs of early_writers
    resid_post = exit_gain * (middle_gain * middle_norm(resid_mid) + mlp_out + outputs of late_writers)

    Where attention and FFN are parallel, or the block has only one of them, resid_mid is resid_pre, and attn_out is
    added in the second sum. In most families gains are 1, and there are no such norms and no other writers (modules
    that add to the stream).
    """

    path: str
    module: nn.Module
    mixer: AttentionSite | None
    feed_forward: FeedForwardSite | None
    parallel: bool
    """True where attention and FFN both read resid_pre: then there is no resid_mid."""
    early_writers: tuple[Writer, ...] = ()
    """Writers other than the mixer that add to the stream before the FFN reads it."""
    late_writers: tuple[Writer, ...] = ()
    """Writers other than the FFN that add to the stream together with the FFN or after it."""
    entry_gain: float | Float[Tensor, " d_model"] = 1.0
    """Number (or one number per channel) by which resid_pre is multiplied before the mixer's output is added."""
    middle_gain: float | Float[Tensor, " d_model"] = 1.0
    """Number (or one per channel) by which resid_mid is multiplied before the FFN's output is added."""
    exit_gain: float | Float[Tensor, " d_model"] = 1.0
    """Number by which the block's whole output is multiplied (Gemma 4's layer scalar)."""

    entry_norm: Norm | None = None
    """The norm that is applied to the stream itself before the mixer's output is added (MiniMax)."""
    middle_norm: Norm | None = None
    """The norm that is applied to the stream itself before the FFN's output is added."""
    handover: float = 1.0
    """Factor of the block's output before the next block reads it (RWKV). resid_post already contains it."""
    streams: Streams | None = None
    """How several residual streams are mixed; None for one stream. With several, there is no resid_mid, and resid_pre
    and resid_post are the streams combined as the model combines them after the last layer."""
    middle_module: nn.Module | None = None
    """With several streams, the module whose input is captured for attributions: the streams before the FFN
    (hyper-connections), or the active stream after it (AltUp)."""

    @property
    def is_sequential(self) -> bool:
        """True if the output of attention is added before the FFN reads the stream, so that there is a resid_mid."""
        return self.mixer is not None and self.feed_forward is not None and not self.parallel

    @property
    def attention(self) -> AttentionSite:
        """The attention of the block, with its heads.

        Raises:
            Unsupported: the block has no attention.
        """
        if self.mixer is None or not self.mixer.is_attention:
            kind = "it has no token mixer" if self.mixer is None else f"it is a {type(self.mixer.module).__name__}"
            raise Unsupported(
                f"the attention of {self.path}",
                why=f"this layer has none: {kind}",
                instead="Choose a layer with attention, or use attributions by component",
            )
        return self.mixer


@dataclass(frozen=True, eq=False)
class Structure:
    """The structure of a whole decoder: its embedding, its blocks, its final norm and its head."""

    family: str
    blocks: tuple[Block, ...]
    embedding: nn.Module
    position_embedding: nn.Module | None
    """The module whose output (position embeddings) is added to the stream; None if there is none."""
    read_positions: nn.Module | None
    """The table of learned positions that only queries and keys read (attention-only models), when there is one."""
    positions: str
    """How the model encodes positions: "learned", "rotary", "alibi", "qk_learned" or "none"; "added" where
    positions enter the stream outside any module, so that they cannot be separated from the token embedding (CTRL)."""
    embedding_scale: float | None
    """Factor of the rows of W_E when they enter the stream; None if what enters is not a multiple of these rows."""
    final_norm: Norm | None
    head: nn.Module
    logit_scale: float
    logit_softcap: float | None
    effective: dict[nn.Module, EffectiveMatrix] = field(default_factory=dict)
    """For each affine projection whose matrix is not its `weight` (quantized, unmerged LoRA): how to get the matrix."""
    not_linear: dict[nn.Module, str] = field(default_factory=dict)
    """Projections that are not x W + b at all, with the reason."""

    @property
    def streams(self) -> Streams | None:
        """How several streams are mixed; None for a model with one stream."""
        return self.blocks[0].streams if self.blocks else None

    @property
    def has_stream_norms(self) -> bool:
        """True if some block normalises the residual stream itself, and not only the input of attention or FFN."""
        return any(b.entry_norm is not None or b.middle_norm is not None for b in self.blocks)

    @property
    def has_gains(self) -> bool:
        """True if some block multiplies the residual stream itself by a factor."""
        return any(
            isinstance(g, Tensor) or g != 1.0
            for b in self.blocks
            for g in (b.entry_gain, b.middle_gain, b.exit_gain, b.handover)
        )

    def capped(self, logits: Float[Tensor, "*pos d_vocab"]) -> Float[Tensor, "*pos d_vocab"]:
        """Scale and soft-cap the head's output, as the model does before it returns the logits."""
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        if self.logit_softcap is not None:
            logits = self.logit_softcap * torch.tanh(logits / self.logit_softcap)
        return logits
