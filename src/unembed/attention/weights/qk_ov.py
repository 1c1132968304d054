"""The QK and OV circuits of every head as low-rank products of the model's weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import nan

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.weights.composed_weights import require_ov, require_qk
from unembed.attention.weights.folded_weights import (
    at_least_float32,
    check_basis,
    circuit_notes,
    default_basis,
    embedding,
    ignores_logit_mean,
    mean_embedding,
    reading_weights,
    require_heads,
    through_embedding,
    through_unembedding,
    unembedding,
    vocabulary_blocks,
    writing_weights,
)
from unembed.attention.weights.low_rank import LowRank
from unembed.attention.weights.missing_circuits import missing_circuits
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.models.structure.rotary import Rotary
from unembed.names import HeadBasis
from unembed.validation import as_int


class HeadMatrices:
    """The QK and OV circuits of every head, on the stream (d_model) and between tokens (d_vocab).

    Bases: "raw" is the weights alone, as in the papers; "folded" multiplies the linear part of the norms into the
    matrices. Products with W_E and W_U are centred unless `centre=False`; see `folded_weights`.
    """

    def __init__(self, lm: Decoder) -> None:
        self.lm = lm
        self._products: dict[tuple[str, str, bool], Tensor] = {}
        self._means: dict[HeadBasis, Tensor] = {}

    def ov(self, layer: int, head: int, basis: HeadBasis = "raw") -> LowRank:
        """Return W_OV = W_V W_O (d_model, d_model), which maps the vector of an attended source to what the head adds.

        Raises:
            OutOfRange: there is no such head.
            Unsupported: in the folded basis, a gate on every channel or a norm lies between W_V and W_O.
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
        """Return W_QK = W_Q W_K' (d_model, d_model), with score(dst, src) = scale * x_dst W_QK x_src'.

        In latent attention the score is the sum of a content part and a rotary part. When the model runs, the two parts
        of a key are divided by different numbers, so in the folded basis there is no matrix for both together.

        Args:
            offset: number of tokens from source to destination, for rotary positions; several give the mean circuit.
            part: in latent attention, one term of the score: "content" or "rotary". Required in the folded basis.

        Returns:
            The circuit; rotated factors are float32 where the weights are in half precision.

        Raises:
            OutOfRange: there is no such head.
            InvalidInput: an offset is negative or not an integer, or none is given.
            Unsupported: how the model computes scores could not be determined, or a required `part` is missing.
        """
        layer, head = self.resolve_head(layer, head, basis)
        site = self.lm.structure.blocks[layer].attention
        require_qk(self.lm, layer)
        offsets = offsets_of(offset)
        W_Q = reading_weights(self.lm, layer, "q", basis, part=part)[head]
        W_K = reading_weights(self.lm, layer, "k", basis, grouped=True, part=part)[head // site.queries_per_kv]
        notes = circuit_notes(self.lm, layer, basis, "qk")
        if part is not None:
            notes = (*notes, f"the {part} part of the score alone")
        if site.scores.rotary is not None and part != "content":
            name = str(offsets[0]) if len(offsets) == 1 else f"mean of {offsets[0]} to {offsets[-1]}"
            notes = (*notes, f"rotary, offset {name}")
            W_Q, W_K = _rotated(site.scores.rotary, W_Q, W_K, offsets)
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
        """Return W_E W_OV W_U (d_vocab, d_vocab), or some rows and columns.

        Entry (s, t) is the effect of source token s on the logit of t.

        Args:
            sources: rows; every token when None.
            outputs: columns; every token when None.
            centre: subtract the mean logit over the vocabulary from each row.

        Memory: d_vocab * d_head for each of the two factors.
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
        """Return W_E W_QK W_E' (d_vocab, d_vocab), or some rows and columns.

        Entry (d, s) is the score with which destination token d attends to source token s.

        Args:
            offset: as in `qk`.
            destinations: rows; every token when None.
            sources: columns; every token when None.
            centre: subtract the mean score over all source tokens from each row.

        Memory: d_vocab * d_head for each of the two factors.
        """
        qk = self.qk(layer, head, offset, basis)
        left, right = _narrowest(through_embedding(self.lm, qk.left, basis, destinations, centre=centre), qk.right)
        right = through_embedding(self.lm, right.mT, basis, sources, centre=centre, sources=True)
        return LowRank(left, right.mT, qk.notes)

    def resolve_head(self, layer: int, head: int, basis: HeadBasis) -> tuple[int, int]:
        """Return layer and head counted from 0; negative numbers count from the end.

        Raises:
            OutOfRange: there is no such layer or head.
            InvalidInput: there is no such basis.
            Unsupported: no layer has attention, or this one has none.
        """
        check_basis(basis)
        if self.lm.n_layers:  # in a model without layers, `layer_and_head` below raises the error
            require_heads(self.lm, "circuits")
        return self.lm.layer_and_head(layer, head)

    def known_basis(self, basis: HeadBasis | None) -> HeadBasis:
        """Return the basis after a check, or the default for None: "folded" if the model has norms.

        Raises:
            InvalidInput: there is no such basis.
        """
        if basis is None:
            return default_basis(self.lm)
        check_basis(basis)
        return basis

    @torch.no_grad()
    def product(self, circuit: str, basis: HeadBasis, centre: bool = True) -> Float[Tensor, "d_model d_model"]:
        """Return W_U W_E (circuit "ov") or W_E' W_E ("qk"), summed over blocks of the vocabulary.

        With `centre`, the mean over the vocabulary is subtracted from W_U (or from W_E' of the sources), and the mean
        over channels is subtracted from W_E if that changes nothing in the model. The result is then
        sum_t (u_t - u) e_t' = W_U W_E - n u e', with u and e the means of the n tokens' vectors.

        The result is cached; make a new object if the weights change.

        Memory: the result and one block.
        """
        check_basis(basis)
        require_heads(self.lm, "the circuits")
        if basis == "folded" and self.lm.structure.streams is not None:
            # The error about folded weights recommends the raw basis. If no layer has circuits in the raw basis either,
            # the error about that basis is raised instead.
            missing = missing_circuits(self.lm, "raw")
            if len(missing.ov if circuit == "ov" else missing.qk) == len(self.lm.attention_layers):
                _ = self.lm.structure.blocks[self.lm.attention_layers[0]].attention.layout
        key = circuit, basis, centre
        if key not in self._products:
            self._products[key] = self._product(circuit, basis, centre)
        return self._products[key]

    def _product(self, circuit: str, basis: HeadBasis, centre: bool) -> Float[Tensor, "d_model d_model"]:
        lm, device = self.lm, self.lm.weights.W_E.device
        dtype = torch.promote_types(lm.dtype, torch.float32)
        total = torch.zeros(lm.d_model, lm.d_model, dtype=dtype, device=device)
        read, written = (torch.zeros(lm.d_model, dtype=torch.float64, device=device) for _ in range(2))
        for ids in vocabulary_blocks(lm):
            W_E = embedding(lm, basis, ids, centre=centre).to(dtype)
            left = unembedding(lm, basis, ids).to(dtype) if circuit == "ov" else W_E.T
            total += left @ W_E
            read += left.double().sum(dim=1)
            written += W_E.double().sum(dim=0)
        if centre and (circuit == "qk" or ignores_logit_mean(lm)):
            total -= torch.outer(read, written / lm.d_vocab).to(dtype)
        return total

    def mean_embedding(self, basis: HeadBasis) -> Float[Tensor, " d_model"]:
        """Return the mean row of W_E over the vocabulary; it is cached, as `product` is."""
        if basis not in self._means:
            self._means[basis] = mean_embedding(self.lm, basis, centre=True)
        return self._means[basis]

    @cached_property
    def scales(self) -> list[float]:
        """The factor of each layer's attention scores (1 / sqrt(d_head) in most families); NaN without attention."""
        mixers = [block.mixer for block in self.lm.structure.blocks]
        return [nan if mixer is None or not mixer.is_attention else mixer.scores.scale for mixer in mixers]


def full_ov(
    lm: Decoder, ov: LowRank, basis: HeadBasis, sources: Tensor | None, outputs: Tensor | None, centre: bool
) -> LowRank:
    """Return the full OV circuit W_E W_OV W_U between tokens, given W_OV."""
    left, right = _narrowest(through_embedding(lm, ov.left, basis, sources, centre=centre), ov.right)
    return LowRank(left, through_unembedding(lm, right, basis, outputs, centre=centre), ov.notes)


def _narrowest(left: Float[Tensor, "n r"], right: Float[Tensor, "r d_model"]) -> tuple[Tensor, Tensor]:
    """Return two factors with the same product and the smallest possible inner dimension.

    With fewer rows n than r, these are the identity (n, n) and the product itself.
    """
    if len(left) >= len(right):
        return left, right
    dtype = torch.promote_types(left.dtype, right.dtype)
    return torch.eye(len(left), dtype=dtype, device=left.device), left.to(dtype) @ right.to(dtype)


def queries_and_keys(
    lm: Decoder, layer: int, basis: HeadBasis, offset: int | Sequence[int]
) -> tuple[Float[Tensor, "head d_model d_head"], Float[Tensor, "head d_model d_head"]]:
    """Return W_Q and W_K of every query head of a layer, rotated by the offset in rotary models.

    Raises:
        Unsupported: the layer has no fixed QK circuit.
        InvalidInput: an offset is negative or not an integer, or none is given.
    """
    offsets, rotary = offsets_of(offset), lm.structure.blocks[layer].attention.scores.rotary
    W_Q, W_K = (reading_weights(lm, layer, which, basis) for which in "qk")
    return (W_Q, W_K) if rotary is None else _rotated(rotary, W_Q, W_K, offsets)


def offsets_of(offset: int | Sequence[int]) -> list[int]:
    """Return the offsets as a list, after a check that each is an integer of at least 0."""
    offsets = [as_int("offset", o) for o in (offset if isinstance(offset, Iterable) else [offset])]
    if not offsets:
        raise InvalidInput("no offsets", why="a mean circuit needs at least one")
    if min(offsets) < 0:
        raise InvalidInput(f"offset {min(offsets)}", why="a source never comes after its destination")
    return offsets


def _rotated(rotary: Rotary, W_Q: Tensor, W_K: Tensor, offsets: list[int]) -> tuple[Tensor, Tensor]:
    """Return query and key matrices, with the queries rotated by an offset, or averaged over several offsets."""
    if offsets == [0] and rotary.factor == 1.0:
        return W_Q, W_K
    W_Q, W_K = at_least_float32(W_Q), at_least_float32(W_K)
    zero = torch.zeros(W_Q.shape[-2], dtype=torch.long, device=W_Q.device)
    # The score is linear in the rotated queries, so averaging the queries over the offsets averages the score.
    return torch.stack([rotary.rotate(W_Q, zero + o) for o in offsets]).mean(dim=0), rotary.rotate(W_K, zero)
