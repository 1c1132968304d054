"""Measure whether heads copy, from the eigenvalues of the full OV circuit, computed from (d_head, d_head) matrices.

Source: Elhage et al. 2021, "Summarizing OV/QK matrices".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from unembed.attention.weights.by_layer import by_layer
from unembed.attention.weights.composed_weights import require_ov, require_qk
from unembed.attention.weights.folded_weights import reading_weights, require_heads, writing_weights
from unembed.attention.weights.low_rank import LowRank, by_modulus
from unembed.attention.weights.paper import NO_NUMBERS
from unembed.attention.weights.qk_ov import HeadMatrices, queries_and_keys
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Section
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis, head_name
from unembed.results import Displayed, Provenance, Table, format_signed
from unembed.validation import positive_int, valid_seed

Carried = Callable[[int], Float[Tensor, "d_model d_model"]]
"""A function from a layer to the matrix, such as a lens's Jacobian, that maps what heads write to the final stream."""


@dataclass(frozen=True, eq=False, repr=False)
class Spectra(Displayed):
    """The eigenvalues of a circuit for each head, largest modulus first; NaN where a layer has no such circuit."""

    eigenvalues: Complex[Tensor, "*head r"]
    """Heads with fewer eigenvalues than others are padded with NaN."""
    provenance: Provenance
    axes: tuple[str, ...] = ("layer", "head")
    """Names of the axes before the last; empty for a single head."""
    missing: Mapping[int, str] = field(default_factory=dict[int, str])
    """Layers with attention whose heads have no such circuit, and why."""

    @property
    def score(self) -> Float[Tensor, "*head"]:
        """Return sum(lambda).real / sum(|lambda|), in [-1, 1]; +1 if all eigenvalues are positive real numbers."""
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
def copying(
    circuits: HeadMatrices, basis: HeadBasis = "raw", *, centre: bool = True, carried: Carried | None = None
) -> Spectra:
    """Return the eigenvalues of every head's full OV circuit W_E W_V W_O W_U, which are those of W_O (W_U W_E) W_V.

    Args:
        carried: a function from a layer to the matrix that gives, for a vector that the layer's heads write, its effect
            on the stream after the last layer. The matrix is inserted between W_O and W_U.

    Returns:
        Eigenvalues (layer, head, d_head), complex128, with their scores and positive fractions; NaN in layers whose
            heads have no fixed OV circuit.

    Raises:
        Unsupported: no layer has a fixed OV circuit.
    """
    lm, product = circuits.lm, circuits.product("ov", basis, centre)

    def core(layer: int) -> Float[Tensor, "head r r"]:
        require_ov(lm, layer, basis)
        W_V, W_O = reading_weights(lm, layer, "v", basis, grouped=True), writing_weights(lm, layer, basis)
        kv, d_model, d_head = W_V.shape
        end = product if carried is None else carried(layer).to(product) @ product
        # Query heads of a group share one W_V, so its product is computed once for each key-value head, and for all of
        # these in a single matrix product.
        read = end @ W_V.to(product.dtype).transpose(0, 1).reshape(d_model, kv * d_head)
        read = read.view(d_model, kv, d_head).transpose(0, 1)  # (kv, d_model, d_head)
        return W_O.to(product.dtype) @ read.repeat_interleave(W_O.shape[0] // kv, dim=0)

    return _spectra(lm, core, basis)


def copying_scores(
    circuits: HeadMatrices, basis: HeadBasis = "raw", *, centre: bool = True
) -> Float[Tensor, "layer head"]:
    """Return sum(lambda).real / sum(|lambda|) of every head's full OV circuit.

    Near +1, the head copies: attending to a token raises that token's logit. Near -1, it lowers it.
    """
    return copying(circuits, basis, centre=centre).score


def _spectra(lm: Decoder, core: Callable[[int], Float[Tensor, "head r r"]], basis: HeadBasis) -> Spectra:
    """Return the eigenvalues of one matrix for each head, in the layers that have the circuit.

    Raises:
        Unsupported: no layer has it; the message gives the reason for the first layer.
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


@torch.no_grad()
def matching(
    circuits: HeadMatrices, basis: HeadBasis = "raw", *, offset: int | Sequence[int] = 0, centre: bool = True
) -> Spectra:
    """Return the eigenvalues of every head's full QK circuit, W_E W_Q W_K' W_E'.

    Positive eigenvalues mean that a token attends to other occurrences of the same token.

    Args:
        offset: number of tokens from source to destination, for rotary positions; several give the mean circuit.

    Raises:
        InvalidInput: an offset is negative or not an integer, or none is given.
        Unsupported: no layer has a fixed QK circuit.
    """
    lm, product = circuits.lm, circuits.product("qk", basis, centre)

    def core(layer: int) -> Float[Tensor, "head r r"]:
        require_qk(lm, layer)
        W_Q, W_K = (w.to(product.dtype) for w in queries_and_keys(lm, layer, basis, offset))
        return W_K.mT @ product @ W_Q

    return _spectra(lm, core, basis)


@dataclass(frozen=True, eq=False, repr=False)
class OwnToken(Displayed):
    """How much a full OV circuit raises the logit of the token attended to, which eigenvalues alone cannot show."""

    mean_z: float
    """How many standard deviations of its row a diagonal entry lies above the row's mean; averaged over tokens."""
    top_share: float
    """The share of sampled tokens whose own logit is among the k largest logits of their row."""
    k: int
    n_tokens: int
    provenance: Provenance

    def to_table(self) -> Table:
        """Return a table of one row."""
        names = ("mean_z", "top_share", "k", "n_tokens")
        return Table("Each token's own logit", {name: [getattr(self, name)] for name in names}, self.provenance)


@torch.no_grad()
def own_token(
    circuits: HeadMatrices,
    layer: int,
    head: int,
    basis: HeadBasis = "raw",
    *,
    top: int = 10,
    n_tokens: int = 512,
    seed: int = 0,
) -> OwnToken:
    """Measure how much a head's full OV circuit raises the logit of the token attended to; see `own_token_of`."""
    provenance = circuits.lm.provenance(basis=basis, seed=seed, notes={"layer": layer, "head": head})
    return own_token_of(circuits.ov_full(layer, head, basis), provenance, top, n_tokens, seed)


@torch.no_grad()
def own_token_of(full: LowRank, provenance: Provenance, k: int = 10, n_tokens: int = 512, seed: int = 0) -> OwnToken:
    """Compare the diagonal of a (d_vocab, d_vocab) circuit with its rows: z-scores of all tokens, ranks of a sample.

    Args:
        full: the circuit over the whole vocabulary.
        k: `top_share` counts tokens whose own logit is among this many largest of the row.
        n_tokens: number of tokens sampled for `top_share`; every token if the vocabulary is smaller than this.

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


def eigenvalue_section(
    circuits: HeadMatrices,
    heads: list[tuple[int, int]],
    basis: HeadBasis,
    provenance: Provenance,
    title: str = "Eigenvalues",
) -> Section:
    """Plot eigenvalues of full OV circuits in the complex plane, with radius log10(1 + |lambda|)."""
    spectra = copying(circuits, basis)
    exhibits, figures = [], []
    for layer, head in heads:
        values = spectra.eigenvalues[layer, head]
        radius, angle = values.abs().log1p() / math.log(10), values.angle()
        name, title_of_head = f"eigenvalues_{layer}_{head}", f"Eigenvalues of head {head_name(layer, head)}"
        score = float(spectra.score[layer, head])
        columns = {
            "real": values.real.tolist(),
            "imaginary": values.imag.tolist(),
            "x": (radius * angle.cos()).tolist(),
            "y": (radius * angle.sin()).tolist(),
        }
        exhibits.append(exhibit(name, title_of_head, columns, provenance, folded=True))
        drawn = f"Head {head_name(layer, head)}: copying score {format_signed(score)}"
        axes = {"x_label": "real, log radius", "y_label": "imaginary, log radius"}
        figures.append(drawing("scatter", name, drawn, "x", "y", equal=True, published=NO_NUMBERS, **axes))
    text = ("Each point is an eigenvalue of `W_E W_OV W_U`; its distance from the middle is log10(1 + |lambda|).",)
    return Section(title, text, tuple(exhibits), tuple(figures))
