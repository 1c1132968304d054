"""The matrices of every head, as views on the weights, and what follows from the weights alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention import composition as _composition
from unembed.attention import copying as _copying
from unembed.attention.folded_weights import (
    check_basis,
    circuit_notes,
    embedding,
    reading_weights,
    unembedding,
    writing_weights,
)
from unembed.attention.low_rank import LowRank
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.validation import valid_seed


class HeadMatrices:
    """QK and OV of every head, what they copy and match, and how they compose.

    Bases: "raw" is the weights alone, as in the papers; "folded" takes the linear part of the norms into the matrices.
    """

    def __init__(self, lm: Decoder) -> None:
        """Keep the model; nothing is computed yet."""
        self.lm = lm
        self._products: dict[tuple[str, str], Tensor] = {}
        self._baselines: dict[int, float] = {}

    def ov(self, layer: int, head: int, basis: str = "raw") -> LowRank:
        """W_OV = W_V W_O (d_model, d_model): what is written where a source is attended to.

        Raises:
            OutOfRange: there is no such head.
        """
        layer, head = self.resolve_head(layer, head, basis)
        kv = head // self.lm.structure.blocks[layer].attention.queries_per_kv
        W_V, W_O = (
            reading_weights(self.lm, layer, "v", basis, grouped=True)[kv],
            writing_weights(self.lm, layer, basis)[head],
        )
        return LowRank(W_V, W_O, circuit_notes(self.lm, layer, basis, "ov"))

    def qk(self, layer: int, head: int, offset: int | Sequence[int] = 0, basis: str = "raw") -> LowRank:
        """W_QK = W_Q W_K' (d_model, d_model): score(dst, src) = scale * x_dst W_QK x_src'.

        Args:
            layer: counted from 0.
            head: counted from 0.
            offset: how many tokens the source lies before the destination; matters with rotary positions only. Of
                several, the mean circuit.
            basis: "raw" or "folded".

        Raises:
            OutOfRange: there is no such head.
            Unsupported: the model's scores are not understood.
        """
        layer, head = self.resolve_head(layer, head, basis)
        site = self.lm.structure.blocks[layer].attention
        if not site.scores_understood:
            raise Unsupported(
                f"the QK circuit of layer {layer} of {self.lm.name}",
                why="its attention scores could not be rebuilt from queries and keys when the model was opened",
                instead="Ask for OV circuits or captured patterns",
            )
        W_Q = reading_weights(self.lm, layer, "q", basis)[head]
        W_K = reading_weights(self.lm, layer, "k", basis, grouped=True)[head // site.queries_per_kv]
        said = circuit_notes(self.lm, layer, basis, "qk")
        if site.rotary is not None:
            several = [offset] if isinstance(offset, int) else list(offset)
            named = str(offset) if isinstance(offset, int) else f"mean of {several[0]} to {several[-1]}"
            said = (*said, f"rotary, offset {named}")
            if several != [0] or site.rotary.factor != 1.0:
                at = torch.zeros(W_Q.shape[0], device=W_Q.device)
                # Linear in the rotated queries, so the mean over offsets is taken on one factor.
                W_Q = torch.stack([site.rotary.rotate(W_Q, at + o) for o in several]).mean(dim=0)
                W_K = site.rotary.rotate(W_K, at)
        return LowRank(W_Q, W_K.mT, said)

    def ov_full(
        self,
        layer: int,
        head: int,
        basis: str = "raw",
        *,
        sources: Tensor | None = None,
        outputs: Tensor | None = None,
    ) -> LowRank:
        """W_E W_OV W_U (d_vocab, d_vocab), or some rows and columns: a source token's effect on every output's logit.

        Memory: d_vocab * d_head for either side.
        """
        ov = self.ov(layer, head, basis)
        W_E, W_U = embedding(self.lm, basis, sources), unembedding(self.lm, basis, outputs)
        return LowRank(W_E @ ov.left, ov.right @ W_U, ov.notes)

    def qk_full(
        self,
        layer: int,
        head: int,
        offset: int | Sequence[int] = 0,
        basis: str = "raw",
        *,
        destinations: Tensor | None = None,
        sources: Tensor | None = None,
    ) -> LowRank:
        """W_E W_QK W_E' (d_vocab, d_vocab), or some rows and columns: which source a destination token reads.

        Memory: d_vocab * d_head for either side.
        """
        qk = self.qk(layer, head, offset, basis)
        left = embedding(self.lm, basis, destinations) @ qk.left
        return LowRank(left, qk.right @ embedding(self.lm, basis, sources).mT, qk.notes)

    def resolve_head(self, layer: int, head: int, basis: str) -> tuple[int, int]:
        """The head, counted from 0, if there is one, and if there is such a basis.

        Raises:
            OutOfRange: there is no such layer or head.
            InvalidInput: there is no such basis.
        """
        check_basis(basis)
        return self.lm.layer(layer), self.lm.head(head)

    def product(self, what: str, basis: str) -> Float[Tensor, "d_model d_model"]:
        """W_U W_E ("ov") or W_E' W_E ("qk"), kept: forget the object when the weights change."""
        check_basis(basis)
        if (what, basis) not in self._products:
            self._products[what, basis] = _copying.product_with_embedding(self.lm, what, basis)
        return self._products[what, basis]

    def copying(self, basis: str = "raw") -> _copying.Spectra:
        """Eigenvalues (layer, head, d_head) of every head's full OV circuit, their scores and positive fractions."""
        return _copying.copying_spectra(self.lm, self.product("ov", basis), basis)

    def copying_scores(self, basis: str = "raw") -> Float[Tensor, "layer head"]:
        """sum(lambda).real / sum(|lambda|) of every head's full OV circuit, in [-1, 1]; +1 is a copying head."""
        return self.copying(basis).score

    def matching(self, basis: str = "raw") -> _copying.Spectra:
        """Eigenvalues of every head's full QK circuit at offset 0: positive where it attends to its own token."""
        return _copying.matching_spectra(self.lm, self.product("qk", basis), basis)

    def own_token(
        self, layer: int, head: int, basis: str = "raw", *, k: int = 10, n_tokens: int = 512, seed: int = 0
    ) -> _copying.OwnToken:
        """How a head's full OV circuit treats each token's own logit; see `copying.own_token`."""
        return _copying.own_token(self.ov_full(layer, head, basis), k, n_tokens, seed)

    def composition(
        self, mode: str, baseline: bool = False, basis: str = "raw", *, seed: int = 0
    ) -> Float[Tensor, "layer head layer_reading head_reading"]:
        """Q-, K- or V-composition of every earlier head (first two axes) with every later one; 0 where none is earlier.

        Args:
            mode: "q", "k" or "v".
            baseline: take away the mean ratio of random Gaussian circuits of the same shapes, measured.
            basis: "raw" or "folded".
            seed: of the baseline.
        """
        check_basis(basis)
        found = _composition.composition(self.lm, mode, basis)
        return torch.where(found > 0, found - self.random_composition(seed), found) if baseline else found

    def compositions(self, basis: str = "raw") -> dict[str, Float[Tensor, "layer head layer_reading head_reading"]]:
        """Q-, K- and V-composition together, by mode; what the writers need is computed once."""
        check_basis(basis)
        return _composition.compositions(self.lm, _composition.MODES, basis)

    def random_composition(self, seed: int = 0) -> float:
        """The composition that independent Gaussian circuits of these shapes have on average, measured."""
        seed = valid_seed(seed)
        if seed not in self._baselines:
            self._baselines[seed] = _composition.random_baseline(self.lm, seed=seed)
        return self._baselines[seed]

    @cached_property
    def scales(self) -> list[float]:
        """What each layer multiplies its scores by (1 / sqrt(d_head) in most families)."""
        return [block.attention.scale for block in self.lm.structure.blocks]
