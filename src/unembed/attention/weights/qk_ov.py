"""The QK and OV circuits of every head, as views on the weights, and what follows from the weights alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.weights import composition as _composition
from unembed.attention.weights import copying as _copying
from unembed.attention.weights.composed_weights import require_ov, require_qk
from unembed.attention.weights.folded_weights import (
    at_least_float32,
    check_basis,
    circuit_notes,
    default_basis,
    reading_weights,
    require_heads,
    through_embedding,
    through_unembedding,
    writing_weights,
)
from unembed.attention.weights.low_rank import LowRank
from unembed.attention.weights.missing_circuits import MissingCircuits, missing_circuits
from unembed.models.decoder import Decoder
from unembed.names import HeadBasis, Mode
from unembed.results import Records
from unembed.validation import valid_seed


@dataclass(frozen=True)
class ComposingHead:
    """A head that composes with another: it is read by it, or reads it."""

    mode: str
    """"q", "k" or "v": which input of the later head reads the earlier head's output."""
    relation: str
    """"reads" where this is the earlier head, "is read by" where it is the later one."""
    layer: int
    head: int
    composition: float


SOURCE = "Elhage, Nanda, Olsson et al.: A Mathematical Framework for Transformer Circuits. 2021."
"""The paper that analyses of circuits follow, as a citation."""


class HeadMatrices:
    """QK and OV of every head, what they copy and match, and how they compose.

    Bases: "raw" is the weights alone, as in the papers; "folded" multiplies the linear part of the norms into the
    matrices. Products with the vocabulary are centred unless `centre=False`; see `folded_weights`.
    """

    def __init__(self, lm: Decoder) -> None:
        self.lm = lm
        self._products: dict[tuple[str, str, bool], Tensor] = {}
        self._baselines: dict[int, tuple[float, float]] = {}

    def ov(self, layer: int, head: int, basis: HeadBasis = "raw") -> LowRank:
        """W_OV = W_V W_O (d_model, d_model): what is written where a source is attended to.

        Raises:
            OutOfRange: there is no such head.
            Unsupported: in the folded basis, there is a gate per channel or a norm between W_V and W_O.
        """
        layer, head = self.resolve_head(layer, head, basis)
        require_ov(self.lm, layer, basis)
        kv = head // self.lm.structure.blocks[layer].attention.queries_per_kv
        W_V = reading_weights(self.lm, layer, "v", basis, grouped=True)[kv]
        W_O = writing_weights(self.lm, layer, basis)[head]
        return LowRank(W_V, W_O, circuit_notes(self.lm, layer, basis, "ov"))

    def qk(
        self,
        layer: int,
        head: int,
        offset: int | Sequence[int] = 0,
        basis: HeadBasis = "raw",
        *,
        part: str | None = None,
    ) -> LowRank:
        """W_QK = W_Q W_K' (d_model, d_model): score(dst, src) = scale * x_dst W_QK x_src'.

        In latent attention the score is the sum of a content and a rotary part, each divided by its own size in a run.

        Args:
            offset: how many tokens the source lies before the destination; matters with rotary positions only. Of
                several, the mean circuit.
            part: "content" or "rotary", in latent attention: one term of the score. The folded basis needs it there.

        Returns:
            The circuit; rotated factors are float32 where the weights are in half precision.

        Raises:
            OutOfRange: there is no such head.
            InvalidInput: an offset is negative or not an integer, or none is given.
            Unsupported: the model's scores are not understood, or both parts of latent attention in the folded basis.
        """
        layer, head = self.resolve_head(layer, head, basis)
        site = self.lm.structure.blocks[layer].attention
        require_qk(self.lm, layer)
        offsets = _copying.offsets_of(offset)
        W_Q = reading_weights(self.lm, layer, "q", basis, part=part)[head]
        W_K = reading_weights(self.lm, layer, "k", basis, grouped=True, part=part)[head // site.queries_per_kv]
        notes = circuit_notes(self.lm, layer, basis, "qk")
        if part is not None:
            notes = (*notes, f"the {part} part of the score alone")
        if site.rotary is not None and part != "content":
            name = str(offsets[0]) if len(offsets) == 1 else f"mean of {offsets[0]} to {offsets[-1]}"
            notes = (*notes, f"rotary, offset {name}")
            if offsets != [0] or site.rotary.factor != 1.0:
                zero = torch.zeros(W_Q.shape[0], dtype=torch.long, device=W_Q.device)
                W_Q, W_K = at_least_float32(W_Q), at_least_float32(W_K)
                # Linear in the rotated queries, so the mean over offsets is taken of one factor.
                W_Q = torch.stack([site.rotary.rotate(W_Q, zero + o) for o in offsets]).mean(dim=0)
                W_K = site.rotary.rotate(W_K, zero)
        return LowRank(W_Q, W_K.mT, notes)

    def ov_full(
        self,
        layer: int,
        head: int,
        basis: HeadBasis = "raw",
        *,
        sources: Tensor | None = None,
        outputs: Tensor | None = None,
        centre: bool = True,
    ) -> LowRank:
        """W_E W_OV W_U (d_vocab, d_vocab), or some rows and columns: a source token's effect on every output's logit.

        Args:
            sources: rows; every token when None.
            outputs: columns; every token when None.
            centre: logits above their mean over the vocabulary.

        Memory: d_vocab * d_head for either side.
        """
        return full_ov(self.lm, self.ov(layer, head, basis), basis, sources, outputs, centre)

    def qk_full(
        self,
        layer: int,
        head: int,
        offset: int | Sequence[int] = 0,
        basis: HeadBasis = "raw",
        *,
        destinations: Tensor | None = None,
        sources: Tensor | None = None,
        centre: bool = True,
    ) -> LowRank:
        """W_E W_QK W_E' (d_vocab, d_vocab), or some rows and columns: which source a destination token attends to.

        Args:
            offset: as in `qk`.
            destinations: rows; every token when None.
            sources: columns; every token when None.
            centre: scores above the destination's mean over all sources of the vocabulary.

        Memory: d_vocab * d_head for either side.
        """
        qk = self.qk(layer, head, offset, basis)
        left = through_embedding(self.lm, qk.left, basis, destinations, centre=centre)
        right = through_embedding(self.lm, qk.right.mT, basis, sources, centre=centre, sources=True)
        return LowRank(left, right.mT, qk.notes)

    def resolve_head(self, layer: int, head: int, basis: HeadBasis) -> tuple[int, int]:
        """The head, counted from 0; negative numbers count from the end.

        Raises:
            OutOfRange: there is no such layer or head.
            InvalidInput: there is no such basis.
            Unsupported: no layer has attention, or this one has none.
        """
        check_basis(basis)
        if self.lm.n_layers:  # else no layer is in range
            require_heads(self.lm, "circuits")
        return self.lm.layer_and_head(layer, head)

    def known_basis(self, basis: HeadBasis | None) -> HeadBasis:
        """The basis itself, or the one of reports and commands when None: "folded" where the model has norms.

        Raises:
            InvalidInput: there is no such basis.
        """
        if basis is None:
            return default_basis(self.lm)
        check_basis(basis)
        return basis

    def product(self, circuit: str, basis: HeadBasis, centre: bool = True) -> Float[Tensor, "d_model d_model"]:
        """W_U W_E ("ov") or W_E' W_E ("qk"), cached: make a new object when the weights change."""
        check_basis(basis)
        require_heads(self.lm, "the circuits")
        if basis == "folded" and self.lm.structure.streams is not None:
            # Folded weights are refused in favour of raw ones; where no layer has those, their reason comes first.
            missing = missing_circuits(self.lm, "raw")
            if len(missing.ov if circuit == "ov" else missing.qk) == len(self.lm.attention_layers):
                _ = self.lm.structure.blocks[self.lm.attention_layers[0]].attention.layout
        key = circuit, basis, centre
        if key not in self._products:
            self._products[key] = _copying.product_with_embedding(self.lm, circuit, basis, centre=centre)
        return self._products[key]

    def copying(self, basis: HeadBasis = "raw", *, centre: bool = True) -> _copying.Spectra:
        """Eigenvalues (layer, head, d_head) of every head's full OV circuit, their scores and positive fractions."""
        return _copying.copying_spectra(self.lm, self.product("ov", basis, centre), basis)

    def copying_scores(self, basis: HeadBasis = "raw", *, centre: bool = True) -> Float[Tensor, "layer head"]:
        """sum(lambda).real / sum(|lambda|) of every head's full OV circuit, in [-1, 1]; +1 is a copying head."""
        return self.copying(basis, centre=centre).score

    def matching(
        self, basis: HeadBasis = "raw", *, offset: int | Sequence[int] = 0, centre: bool = True
    ) -> _copying.Spectra:
        """Eigenvalues of every head's full QK circuit: positive where it attends to its own token.

        With rotary positions, `offset` tokens back ( of several the mean circuit).
        """
        return _copying.matching_spectra(self.lm, self.product("qk", basis, centre), basis, offset)

    def own_token(
        self, layer: int, head: int, basis: HeadBasis = "raw", *, top: int = 10, n_tokens: int = 512, seed: int = 0
    ) -> _copying.OwnToken:
        """How a head's full OV circuit treats each token's own logit; see `copying.own_token`."""
        provenance = self.lm.provenance(basis=basis, seed=seed, notes={"layer": layer, "head": head})
        return _copying.own_token(self.ov_full(layer, head, basis), provenance, top, n_tokens, seed)

    def composition(
        self, mode: Mode, baseline: bool = False, basis: HeadBasis = "raw", *, seed: int = 0
    ) -> Float[Tensor, "layer head layer_reading head_reading"]:
        """Q-, K- or V-composition of every earlier head (first two axes) with every later one; 0 where none is earlier.

        NaN where a layer has no such circuit; `missing_circuits` gives the reasons.

        Args:
            mode: "q", "k" or "v".
            baseline: subtract the mean ratio of random Gaussian circuits of the same shapes, measured.

        Raises:
            Unsupported: no layer has an OV circuit, or none has what the mode reads.
        """
        check_basis(basis)
        ratios = _composition.composition(self.lm, mode, basis)
        return torch.where(ratios > 0, ratios - self.random_composition(seed), ratios) if baseline else ratios

    def compositions(
        self, basis: HeadBasis = "raw"
    ) -> dict[str, Float[Tensor, "layer head layer_reading head_reading"]]:
        """Q-, K- and V-composition together, by mode, as in `composition`; what the writers need is computed once."""
        check_basis(basis)
        return _composition.compositions(self.lm, _composition.MODES, basis)

    def missing(self, basis: HeadBasis = "raw") -> MissingCircuits:
        """The layers with attention whose heads have no fixed OV or QK circuit in a basis, and why."""
        check_basis(basis)
        return missing_circuits(self.lm, basis)

    def random_composition(self, seed: int = 0) -> float:
        """The composition that independent Gaussian circuits of these shapes have on average, measured."""
        return self._random_composition(seed)[0]

    def random_composition_deviation(self, seed: int = 0) -> float:
        """The standard deviation of the composition of such circuits, measured."""
        return self._random_composition(seed)[1]

    def composition_z(self, ratios: Float[Tensor, "*pair"], seed: int = 0) -> Float[Tensor, "*pair"]:
        """Ratios in standard deviations above the mean of independent Gaussian circuits of these shapes."""
        mean, deviation = self._random_composition(seed)
        return (ratios - mean) / deviation

    def _random_composition(self, seed: int) -> tuple[float, float]:
        seed = valid_seed(seed)
        if seed not in self._baselines:
            self._baselines[seed] = _composition.random_baseline(self.lm, seed=seed)
        return self._baselines[seed]

    def partners(
        self, layer: int, head: int, basis: HeadBasis = "raw", *, baseline: bool = False, seed: int = 0
    ) -> Records[ComposingHead]:
        """Every earlier head that this one reads and every later one that reads it, strongest composition first."""
        layer, head = self.resolve_head(layer, head, basis)
        chance = self.random_composition(seed) if baseline else 0.0
        found = []
        for mode, ratios in self.compositions(basis).items():
            for other in self.lm.attention_layers:
                if other == layer:
                    continue
                relation = "reads" if other < layer else "is read by"
                row = ratios[other, :, layer, head] if other < layer else ratios[layer, head, other]
                known = [(h, float(v)) for h, v in enumerate(row) if not v.isnan()]
                found += [ComposingHead(mode, relation, other, h, value - chance) for h, value in known]
        found.sort(key=lambda partner: -partner.composition)
        title = f"Heads that compose with L{layer}H{head}"
        provenance = self.lm.provenance(basis=basis, seed=seed if baseline else None)
        return Records.of_fields(title, ComposingHead, found, provenance)

    @cached_property
    def scales(self) -> list[float]:
        """The factor of each layer's attention scores (1 / sqrt(d_head) in most families); NaN without attention."""
        mixers = [block.mixer for block in self.lm.structure.blocks]
        return [nan if mixer is None or not mixer.is_attention else mixer.scale for mixer in mixers]


def full_ov(
    lm: Decoder, ov: LowRank, basis: HeadBasis, sources: Tensor | None, outputs: Tensor | None, centre: bool
) -> LowRank:
    """An OV circuit between tokens: W_E W_OV W_U."""
    left = through_embedding(lm, ov.left, basis, sources, centre=centre)
    return LowRank(left, through_unembedding(lm, ov.right, basis, outputs, centre=centre), ov.notes)
