"""The sides of a head's circuits: what its matrices read and write, with or without the norms around them.

`raw` is the weights alone, as the papers have it. `folded` takes into the matrices everything linear that stands
between them and the stream: the gain and centring of the norm that is read through, of a norm on the branch's output
(Gemma 2, OLMo 2) and of QK-norm, the branch's multiplier, the embedding's scale and the final norm. What is left out is
then only the scalar 1 / sigma of each norm at each position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unembed.errors import InvalidInput, OutOfRange
from unembed.models.decoder import Decoder
from unembed.models.norms import Norm
from unembed.stream.run import run
from unembed.validation import as_int, as_tuple

HEAD_BASES = ("raw", "folded")
_PROBE, _SHIFT = 128.0, 32.0


def check_basis(basis: str) -> None:
    """Refuse a basis that circuits do not have.

    Raises:
        InvalidInput: it is none of `HEAD_BASES`.
    """
    if basis not in HEAD_BASES:
        raise InvalidInput(f"basis {basis!r:.60}", why=f"circuits are read in {' or '.join(HEAD_BASES)}")


def reading_weights(
    lm: Decoder, layer: int, which: str, basis: str = "raw", *, grouped: bool = False
) -> Float[Tensor, "head d_model d_head"]:
    """W_Q, W_K or W_V of a layer, for each query head (for each key-value head when `grouped`).

    Args:
        lm: the model.
        layer: counted from 0.
        which: "q", "k" or "v".
        basis: "raw" gives a view of the weights where heads are not shared; "folded" gives new tensors.
        grouped: keep the shared keys and values once.
    """
    site = lm.structure.blocks[layer].attention
    matrix = {"q": lm.weights.W_Q, "k": lm.weights.W_K, "v": lm.weights.W_V}[which][layer]
    if basis == "folded":
        matrix = _through_norm(site.pre_norm, matrix)
        module = {"q": site.q_norm, "k": site.k_norm}.get(which)
        if module is not None:
            matrix = qk_normed(module, matrix)
    if which != "q" and not grouped and site.queries_per_kv > 1:
        matrix = matrix.repeat_interleave(site.queries_per_kv, dim=0)
    return matrix


def writing_weights(lm: Decoder, layer: int, basis: str = "raw") -> Float[Tensor, "n_heads d_head d_model"]:
    """W_O of a layer; folded, also through the branch's norm and multiplier."""
    site = lm.structure.blocks[layer].attention
    matrix = lm.weights.W_O[layer]
    if basis == "folded":
        if site.branch_norm is not None:
            matrix = site.branch_norm.frozen(matrix, torch.ones(1, dtype=matrix.dtype, device=matrix.device))
        if site.multiplier != 1.0:
            matrix = matrix * site.multiplier
    return matrix


def embedding(lm: Decoder, basis: str = "raw", ids: Tensor | None = None) -> Float[Tensor, "token d_model"]:
    """W_E, or some rows of it; folded, as they enter the stream.

    Where a norm follows the embedding, "folded" gives its real output, norm and all: there each token stands alone.
    """
    ids = None if ids is None else _tokens(lm, ids)
    table = lm.weights.W_E if ids is None else lm.weights.W_E[ids]
    if basis == "raw":
        return table
    scale = lm.structure.embedding_scale
    if scale is None:
        return _entered(lm, torch.arange(lm.d_vocab, device=lm.device) if ids is None else ids)
    return table if scale == 1.0 else table * scale


def _tokens(lm: Decoder, ids: Any) -> Int[Tensor, " token"]:
    """Ids of the vocabulary, checked: one out of range would be another token, or end the process on a GPU."""
    if not isinstance(ids, Tensor):
        ids = torch.tensor([as_int("token", i) for i in as_tuple("tokens", ids)], dtype=torch.long, device=lm.device)
    if ids.dim() != 1 or ids.is_floating_point() or ids.dtype is torch.bool:
        raise InvalidInput(f"tokens of shape {tuple(ids.shape)}", why="they are no row of ids")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < lm.d_vocab:
        low, high = int(ids.min()), int(ids.max())
        raise OutOfRange(f"token {low if low < 0 else high}", why=f"the vocabulary is 0 to {lm.d_vocab - 1}")
    return ids


def _entered(lm: Decoder, ids: Tensor) -> Float[Tensor, "token d_model"]:
    """What one-token prompts put into the stream, positions taken away: for a norm or projections after the table."""
    positions = lm.structure.position_embedding is not None
    points = ("resid_pre", "position_embedding") if positions else ("resid_pre",)
    parts = []
    for some in ids.split(1024):
        seen = run(lm, some[:, None], points, logits=False, layers=[0])
        part = seen.at("resid_pre", 0)[:, 0]
        parts.append(part - seen["position_embedding"][0][:, 0] if positions else part)
    return torch.cat(parts)


def unembedding(lm: Decoder, basis: str = "raw", ids: Tensor | None = None) -> Float[Tensor, "d_model token"]:
    """W_U, or some columns of it; folded, also through the final norm's gain and centring and the logit scale."""
    table = lm.weights.W_U if ids is None else lm.weights.W_U[:, _tokens(lm, ids)]
    if basis == "raw":
        return table
    if lm.structure.final_norm is not None:
        table = lm.structure.final_norm.folded(table)
    return table if lm.structure.logit_scale == 1.0 else table * lm.structure.logit_scale


def circuit_notes(lm: Decoder, layer: int, basis: str, circuit: str) -> tuple[str, ...]:
    """What must be said of a circuit of this layer so that its numbers are not misread."""
    site = lm.structure.blocks[layer].attention
    said = []
    if site.pre_norm is not None or site.branch_norm is not None:
        said.append("norm gains folded in" if basis == "folded" else "norms left out")
    if site.queries_per_kv > 1:
        said.append(f"{'keys' if circuit == 'qk' else 'values'} shared by {site.queries_per_kv} query heads")
    if circuit == "ov":
        if site.clip is not None:
            said.append(f"values are clipped at {site.clip:g} in the model, not here")
        return tuple(said)
    if site.q_norm is not None:
        gains = "its gains folded in" if basis == "folded" else "its gains left out"
        said.append(f"QK-norm divides each query and key by its size in a run: {gains}")
    if site.alibi_slopes is not None:
        said.append("ALiBi adds its own term")
    if site.softcap is not None:
        said.append(f"scores are soft-capped at {site.softcap:g}")
    if site.window is not None:
        said.append(f"sources further back than {site.window - 1} are never read")
    return tuple(said)


def _through_norm(norm: Norm | None, matrix: Float[Tensor, "head d_model d_head"]) -> Tensor:
    """Each head's reading matrix with the gain and centring of the norm before it."""
    if norm is None:
        return matrix
    heads, d_model, d_head = matrix.shape
    folded = norm.folded(matrix.transpose(0, 1).reshape(d_model, heads * d_head))
    return folded.view(d_model, heads, d_head).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class QKNorm:
    """What QK-norm does to the queries or keys of all heads, up to the size it divides by."""

    module: nn.Module
    shape: tuple[int, ...]
    """The shape in which one position of all heads is handed to the module."""
    gain: Float[Tensor, "head d_head"]
    bias: Float[Tensor, "head d_head"]
    centred: bool

    @classmethod
    @torch.no_grad()
    def of(cls, module: nn.Module, heads: int, d_head: int, like: Tensor) -> QKNorm:
        """Measure a norm by what it does to signs; it takes heads apart, or their concatenation.

        Raises:
            InvalidInput: it takes neither.
        """
        # Norms kept apart by head split the second axis; those over a matrix of heads refuse it there.
        for shape in ((1, heads, 1, d_head), (1, 1, heads, d_head), (1, 1, heads * d_head)):
            signs = torch.ones(shape, dtype=like.dtype, device=like.device)
            signs[..., 1::2] = -1
            try:
                plus, minus, shifted = (module(x) for x in (signs * _PROBE, -signs * _PROBE, signs * _PROBE + _SHIFT))
            except (RuntimeError, IndexError, ValueError):
                continue
            if plus.shape == signs.shape:
                centred = bool(torch.allclose(plus.float(), shifted.float(), rtol=2e-2, atol=1e-3))
                gain, bias = (plus - minus) / 2 * signs, (plus + minus) / 2
                return cls(module, shape, gain.view(heads, d_head), bias.view(heads, d_head), centred)
        raise InvalidInput(
            f"QK-norm {type(module).__name__}", why="it takes neither heads nor their concatenation", instead="Use raw"
        )

    def linear(self, x: Float[Tensor, "head *any d_head"]) -> Float[Tensor, "head *any d_head"]:
        """Centring and gain, without the division."""
        if self.centred:
            x = x - x.mean(dim=(0, -1) if len(self.shape) == 3 else -1, keepdim=True)
        between = (1,) * (x.dim() - 2)
        return x * self.gain.view(self.gain.shape[0], *between, self.gain.shape[1]).to(x.dtype)

    @torch.no_grad()
    def sizes(self, x: Float[Tensor, "head pos d_head"]) -> Float[Tensor, "head pos 1"]:
        """By what the module divides each head's vector at each position."""
        heads, pos, d_head = x.shape
        given = x.transpose(0, 1).reshape(pos, *self.shape[1:])
        out = self.module(given).view(pos, heads, d_head).transpose(0, 1) - self.bias[:, None]
        said = self.linear(x)
        return (said * said).sum(-1, keepdim=True) / (said * out).sum(-1, keepdim=True)


def qk_normed(module: nn.Module, matrix: Float[Tensor, "head d_model d_head"]) -> Float[Tensor, "head d_model d_head"]:
    """A query or key matrix with QK-norm's gain and centring; both are measured on the module, as for other norms."""
    return QKNorm.of(module, matrix.shape[0], matrix.shape[2], matrix).linear(matrix)
