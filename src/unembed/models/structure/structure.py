"""What a decoder is made of, as data: where each part lies in the live module tree and what is done around it.

A `Structure` is found by `unembed.models.structure.resolver`, never written by hand. Everything that differs between
families
is a field here; code above reads the fields and never asks for a family's name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unembed.models.norms import Norm
from unembed.models.structure.rotary import Rotary


@dataclass(frozen=True, eq=False)
class HeadLayout:
    """How a matrix of heads lies inside one weight: `rows` says which rows of the (out, in) weight are whose.

    `split`: q, k and v are modules of their own. `stacked`: [Q | K | V]. `per_group`: for each key-value head its
    queries, then its key, then its value (with one query per group this is NeoX's and Bloom's per-head layout).
    """

    kind: str  # "split" | "stacked" | "per_group"
    q: nn.Module
    k: nn.Module
    v: nn.Module
    """The modules that project; one and the same module unless `kind` is "split"."""


@dataclass(frozen=True, eq=False)
class AttentionSite:
    """The attention of one block."""

    module: nn.Module
    out_proj: nn.Module
    layout: HeadLayout
    pre_norm: Norm | None
    branch_norm: Norm | None
    multiplier: float
    n_heads: int
    n_kv_heads: int
    d_head: int
    scale: float
    rotary: Rotary | None
    q_norm: nn.Module | None
    k_norm: nn.Module | None
    norm_after_rotary: bool
    softcap: float | None
    alibi_slopes: Float[Tensor, " n_heads"] | None
    window: int | None
    clip: float | None
    scores_understood: bool
    """False where the pattern could not be rebuilt from q and k: then QK questions are refused, all others hold."""
    positions_read: bool
    """True where learned positions are added to what Q and K read, but not to the stream (attention-only models)."""

    @property
    def queries_per_kv(self) -> int:
        """How many query heads share one key-value head."""
        return self.n_heads // self.n_kv_heads


@dataclass(frozen=True, eq=False)
class FeedForwardSite:
    """The FFN of one block. With experts there is no single down-projection, and `down_proj` is None."""

    module: nn.Module
    entry: nn.Module
    """The module that the stream enters first: the pre-norm where there is one."""
    down_proj: nn.Module | None
    up_proj: nn.Module | None
    gate_proj: nn.Module | None
    """The same module as `up_proj` when both are fused in one weight."""
    gate_first: bool
    pre_norm: Norm | None
    branch_norm: Norm | None
    multiplier: float
    activation: str

    @property
    def is_gated(self) -> bool:
        """True where the coefficient is activation(gate) * up."""
        return self.gate_proj is not None

    @property
    def is_fused(self) -> bool:
        """True where gate and up are two halves of one weight."""
        return self.gate_proj is not None and self.gate_proj is self.up_proj

    @property
    def has_memories(self) -> bool:
        """False for a mixture of experts, whose memories belong to experts."""
        return self.down_proj is not None


@dataclass(frozen=True, eq=False)
class Block:
    """One layer: resid_post = resid_pre + attn_out + mlp_out."""

    module: nn.Module
    attention: AttentionSite
    feed_forward: FeedForwardSite | None
    parallel: bool
    """True where attention and FFN both read resid_pre: then there is no resid_mid."""


@dataclass(frozen=True, eq=False)
class Structure:
    """A whole decoder: embedding, blocks, readout."""

    family: str
    blocks: tuple[Block, ...]
    embedding: nn.Module
    position_embedding: nn.Module | None
    """The module whose output is added to the stream as position, when there is one."""
    read_positions: nn.Module | None
    """The table of learned positions that only queries and keys read (attention-only models), when there is one."""
    positions: str
    """How the model knows where a token stands: "learned", "rotary", "alibi", "qk_learned" or "none"."""
    embedding_scale: float | None
    """What W_E is multiplied by on its way into the stream; None where a norm follows the embedding."""
    final_norm: Norm | None
    head: nn.Module
    logit_scale: float
    logit_softcap: float | None

    def capped(self, logits: Float[Tensor, "*pos d_vocab"]) -> Float[Tensor, "*pos d_vocab"]:
        """The head's output as the model hands it out: scaled, then soft-capped."""
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        if self.logit_softcap is not None:
            logits = self.logit_softcap * torch.tanh(logits / self.logit_softcap)
        return logits
