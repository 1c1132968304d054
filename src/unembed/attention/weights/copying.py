"""Whether a head copies: eigenvalues of its full OV circuit, computed at (d_head, d_head), for all heads at once.

Source: Elhage et al. 2021, "Summarizing OV/QK matrices".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from unembed.attention.weights.by_layer import by_layer
from unembed.attention.weights.composed_weights import require_ov, require_qk
from unembed.attention.weights.folded_weights import (
    at_least_float32,
    embedding,
    ignores_logit_mean,
    reading_weights,
    require_heads,
    unembedding,
    writing_weights,
)
from unembed.attention.weights.low_rank import LowRank, by_modulus
from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis
from unembed.results import Displayed, Provenance, Table
from unembed.validation import as_int, positive_int, valid_seed

_BLOCK = 8192


@dataclass(frozen=True, eq=False, repr=False)
class Spectra(Displayed):
    """Eigenvalues of one circuit for each head, largest modulus first; NaN where a layer has no such circuit."""

    eigenvalues: Complex[Tensor, "*head r"]
    """NaN also behind the last eigenvalue of heads that have fewer than others."""
    provenance: Provenance
    axes: tuple[str, ...] = ("layer", "head")
    """Names of the axes before the last; none for a single head."""
    missing: Mapping[int, str] = field(default_factory=dict[int, str])
    """Layers with attention whose heads have no such circuit, and why."""

    @property
    def score(self) -> Float[Tensor, "*head"]:
        """sum(lambda).real / sum(|lambda|), in [-1, 1]; +1 where all are positive real numbers."""
        total = self.eigenvalues.abs().nansum(dim=-1)
        score = self.eigenvalues.real.nansum(dim=-1) / total.clamp_min(torch.finfo(total.dtype).tiny)
        return score.masked_fill(self._n_known == 0, math.nan)

    @property
    def positive_fraction(self) -> Float[Tensor, "*head"]:
        """The share of eigenvalues with a positive real part."""
        return (self.eigenvalues.real > 0).sum(dim=-1).double() / self._n_known

    @property
    def _n_known(self) -> Int[Tensor, "*head"]:
        return (~self.eigenvalues.isnan()).sum(dim=-1)

    def to_table(self) -> Table:
        """One row for each head with such a circuit: score, and the share of eigenvalues with a positive real part."""
        known = (self._n_known > 0).flatten()
        places = np.indices(self.score.shape).reshape(len(self.axes), self.score.numel())[:, known.cpu().numpy()]
        columns: dict[str, list] = {axis: place.tolist() for axis, place in zip(self.axes, places, strict=True)}
        columns["score"] = self.score.flatten()[known].tolist()
        columns["positive_fraction"] = self.positive_fraction.flatten()[known].tolist()
        return Table("Eigenvalues of a circuit, by head", columns, self.provenance)


@torch.no_grad()
def product_with_embedding(
    lm: Decoder, circuit: str, basis: HeadBasis, *, centre: bool = True
) -> Float[Tensor, "d_model d_model"]:
    """W_U W_E ("ov") or W_E' W_E ("qk"), summed over the vocabulary by blocks. The only step of vocabulary width.

    Centred, each token's column of W_U (of the source side's W_E') stands above the vocabulary's mean:
    sum_t (u_t - u) e_t' = W_U W_E - n u e'; and W_E is without its mean over channels where the model ignores it.

    Memory: the result and one block.
    """
    dtype = torch.promote_types(lm.dtype, torch.float32)
    device = lm.weights.W_E.device
    total = torch.zeros(lm.d_model, lm.d_model, dtype=dtype, device=device)
    read, written = (torch.zeros(lm.d_model, dtype=torch.float64, device=device) for _ in range(2))
    for ids in torch.arange(lm.d_vocab, device=device).split(_BLOCK):
        W_E = embedding(lm, basis, ids, centre=centre).to(dtype)
        left = unembedding(lm, basis, ids).to(dtype) if circuit == "ov" else W_E.T
        total += left @ W_E
        read += left.double().sum(dim=1)
        written += W_E.double().sum(dim=0)
    if centre and (circuit == "qk" or ignores_logit_mean(lm)):
        total -= torch.outer(read, written / lm.d_vocab).to(dtype)
    return total


@torch.no_grad()
def copying_spectra(lm: Decoder, product: Float[Tensor, "d_model d_model"], basis: HeadBasis) -> Spectra:
    """Eigenvalues of W_E W_V W_O W_U of all heads: those of W_O (W_U W_E) W_V, of size d_head.

    Args:
        product: W_U W_E, from `product_with_embedding`.

    Returns:
        Eigenvalues (layer, head, d_head), complex128; NaN in layers whose heads have no fixed OV circuit.

    Raises:
        Unsupported: no layer has one.
    """

    def core(layer: int) -> Float[Tensor, "head r r"]:
        require_ov(lm, layer, basis)
        W_V, W_O = reading_weights(lm, layer, "v", basis, grouped=True), writing_weights(lm, layer, basis)
        kv, d_model, d_head = W_V.shape
        # One product for all heads of the layer; those of a group share their values.
        read = product @ W_V.to(product.dtype).transpose(0, 1).reshape(d_model, kv * d_head)
        read = read.view(d_model, kv, d_head).transpose(0, 1)  # (kv, d_model, d_head)
        return W_O.to(product.dtype) @ read.repeat_interleave(W_O.shape[0] // kv, dim=0)

    return _spectra(lm, core, basis)


def _spectra(lm: Decoder, core: Callable[[int], Float[Tensor, "head r r"]], basis: HeadBasis) -> Spectra:
    """The eigenvalues of one matrix for each head, of the layers that have one.

    Raises:
        Unsupported: no layer has one; the reason is that of the first.
    """
    found: dict[int, Complex[Tensor, "head r"]] = {}
    refused: dict[int, Unsupported] = {}
    for layer in lm.attention_layers:
        try:
            found[layer] = by_modulus(torch.linalg.eigvals(core(layer).double()))
        except Unsupported as error:
            refused[layer] = error
    if not found:
        require_heads(lm, "eigenvalues")
        raise next(iter(refused.values()))
    missing = {layer: error.why for layer, error in refused.items()}
    return Spectra(by_layer(lm.n_layers, found), lm.provenance(basis=basis), missing=missing)


def queries_and_keys(
    lm: Decoder, layer: int, basis: HeadBasis, offset: int | Sequence[int]
) -> tuple[Float[Tensor, "head d_model d_head"], Float[Tensor, "head d_model d_head"]]:
    """W_Q and W_K of every query head of a layer, rotated by an offset where positions are rotary.

    Raises:
        Unsupported: the layer has no fixed QK circuit.
        InvalidInput: an offset is negative or not an integer, or none is given.
    """
    offsets, rotary = offsets_of(offset), lm.structure.blocks[layer].attention.rotary
    W_Q, W_K = (reading_weights(lm, layer, which, basis) for which in "qk")
    if rotary is None or (offsets == [0] and rotary.factor == 1.0):
        return W_Q, W_K
    W_Q, W_K = at_least_float32(W_Q), at_least_float32(W_K)
    zero = torch.zeros(W_Q.shape[1], dtype=torch.long, device=W_Q.device)
    # Linear in the rotated queries, so the mean over offsets is taken of one factor.
    return torch.stack([rotary.rotate(W_Q, zero + o) for o in offsets]).mean(dim=0), rotary.rotate(W_K, zero)


def offsets_of(offset: int | Sequence[int]) -> list[int]:
    """The offsets as a list, each an integer of at least 0."""
    offsets = [as_int("offset", o) for o in (offset if isinstance(offset, Iterable) else [offset])]
    if not offsets:
        raise InvalidInput("no offsets", why="a mean circuit needs at least one")
    if min(offsets) < 0:
        raise InvalidInput(f"offset {min(offsets)}", why="a source never comes after its destination")
    return offsets


@torch.no_grad()
def matching_spectra(
    lm: Decoder, product: Float[Tensor, "d_model d_model"], basis: HeadBasis, offset: int | Sequence[int] = 0
) -> Spectra:
    """Eigenvalues of W_E W_Q W_K' W_E' of all heads: positive where a head attends to the same token.

    Args:
        product: W_E' W_E, from `product_with_embedding`.
        offset: how far back the source lies, which matters with rotary positions; of several, the mean circuit.

    Raises:
        InvalidInput: an offset is negative or not an integer, or none is given.
        Unsupported: no layer has a fixed QK circuit.
    """

    def core(layer: int) -> Float[Tensor, "head r r"]:
        require_qk(lm, layer)
        W_Q, W_K = (w.to(product.dtype) for w in queries_and_keys(lm, layer, basis, offset))
        return W_K.mT @ product @ W_Q

    return _spectra(lm, core, basis)


@dataclass(frozen=True, eq=False, repr=False)
class OwnToken(Displayed):
    """How a full OV circuit treats each token's own logit: positive eigenvalues alone are not proof of copying."""

    mean_z: float
    """Mean over tokens of how many standard deviations of its row the diagonal entry lies above the row's mean."""
    top_share: float
    """The share of tokens whose own logit is among the k largest of their row."""
    k: int
    n_tokens: int
    provenance: Provenance

    def to_table(self) -> Table:
        """One row."""
        names = ("mean_z", "top_share", "k", "n_tokens")
        return Table("Each token's own logit", {name: [getattr(self, name)] for name in names}, self.provenance)


@torch.no_grad()
def own_token(full: LowRank, provenance: Provenance, k: int = 10, n_tokens: int = 512, seed: int = 0) -> OwnToken:
    """Diagonal summaries of a (d_vocab, d_vocab) circuit; the z-score over all tokens, the rank over a sample.

    Args:
        full: the circuit over the whole vocabulary.
        k: the number of top outputs that count.
        n_tokens: tokens sampled for `top_share`; the whole vocabulary where it is smaller.

    Memory: a block of rows.
    """
    k, n_tokens, seed = positive_int("top", k), positive_int("n_tokens", n_tokens), valid_seed(seed)
    left, right = full.left.double(), full.right.double()
    n = right.shape[1]
    mean = left @ right.mean(dim=1)
    second = torch.einsum("ti,ij,tj->t", left, right @ right.mT / n, left)
    deviation = (second - mean.square()).clamp_min(0).sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    z = (full.diagonal().double() - mean) / deviation
    chosen = torch.arange(n) if n <= n_tokens else torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    hits = 0
    for ids in chosen[:n_tokens].to(left.device).split(64):
        rows = full.rows(ids)
        own = rows.gather(1, ids[:, None])
        hits += int(((rows > own).sum(dim=1) < k).sum())
    return OwnToken(float(z.mean()), hits / min(n, n_tokens), k, min(n, n_tokens), provenance)
