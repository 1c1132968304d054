"""The logit lens: compute the tokens' logits from a vector of the residual stream, with top tokens and ranks.

The tokens that a vector promotes depend on how the final norm is treated. There are three choices, called bases:

- `raw`: multiply by the unembedding W_U alone, as in the papers; for vectors whose length has no meaning.
- `final`: apply the model's final norm, unembedding and logit soft cap; after the last layer, this is the model's
  prediction.
- `frozen`: apply the final norm with the scale that it had in a forward pass. This is linear: the logits of a sum are
  the sum of the logits.

A rank is 1 plus the number of tokens with a larger logit, so the top token has rank 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import LOGIT_LENS_BASES, Basis
from unembed.validation import one_of, positive_int

ROWS, COLUMNS = 1024, 4096
"""Numbers of vectors and tokens in a block of the matrix product. The scores of a block fit in the processor's cache:
this takes a fifth less time than products over the whole vocabulary."""
_BLOCK = 64

TopTokens = tuple[Int[Tensor, "row k"], Float[Tensor, "row k"]]
"""Ids and scores of the tokens with the highest (or the lowest) scores for each vector, most extreme first."""


@torch.no_grad()
def logits_of(
    lm: Decoder,
    x: Float[Tensor, "*pos d_model"],
    basis: Basis = "final",
    scale: Float[Tensor, "*pos 1"] | None = None,
) -> Float[Tensor, "*pos d_vocab"]:
    """Return the logit of every token for vectors of the residual stream.

    Args:
        basis: "raw", "final" or "frozen".
        scale: for "frozen", the final norm's scale at each position of the forward pass.

    Returns:
        Logits; for "frozen" without the biases of the final norm and the unembedding and without the soft cap, so that
        the logits of a sum are the sum of the logits.

    Memory: the size of the result. For many vectors, use `read`, which works in chunks.
    """
    one_of("basis", basis, LOGIT_LENS_BASES)
    structure = lm.structure
    if basis == "raw":
        factored = getattr(
            structure.head, "band_scores", None
        )  # adaptive softmax: W_U is a product of two matrices, which is not computed
        return x @ lm.weights.W_U.to(x.dtype) if factored is None else factored(x)
    if basis == "final":
        normed = x if structure.final_norm is None else structure.final_norm.normed(x)
        return structure.capped(structure.head(normed).to(x.device))
    if structure.final_norm is not None:
        if scale is None:
            raise InvalidInput(
                "basis 'frozen'",
                why="it needs the scale that the final norm had in a forward pass, but no scale is given",
                instead="Give the argument scale, or use another basis",
            )
        x = structure.final_norm.frozen(x, scale).to(x.dtype)
    return structure.logit_scale * (x @ lm.weights.W_U.to(x.dtype))


def comparable_basis(lm: Decoder) -> Basis:
    """Return the basis in which a vector's scores can be compared over the whole vocabulary.

    This is "raw", except for an adaptive softmax: its linear scores can be compared only within one of its groups of
    words, so "final" is returned, which gives log-probabilities, as in the released code of Geva et al. 2021.
    """
    return "final" if hasattr(lm.structure.head, "band_scores") else "raw"


def top_k(scores: Float[Tensor, "row n"], k: int) -> tuple[Float[Tensor, "row k"], Int[Tensor, "row k"]]:
    """Return the values and columns of the k largest entries of each row, largest first.

    The result equals `torch.topk`, and is computed faster for wide rows: the k largest entries lie in the k blocks of
    columns with the largest maxima, so only these blocks are searched.
    """
    n = scores.shape[-1]
    k = min(k, n)
    n_blocks = n // _BLOCK
    if n_blocks <= 2 * k:
        values, ids = scores.topk(k, dim=-1)
        return values, ids
    head, tail = scores[:, : n_blocks * _BLOCK], scores[:, n_blocks * _BLOCK :]
    blocks = head.view(-1, n_blocks, _BLOCK)
    chosen = blocks.amax(dim=-1).topk(k, dim=-1).indices
    inside = blocks.gather(1, chosen[..., None].expand(-1, -1, _BLOCK)).flatten(1)
    values, at = torch.cat([inside, tail], dim=1).topk(k, dim=-1)
    # The last columns of `scores` do not fill a block (`tail`). They follow the k chosen blocks, which are 0 to k - 1,
    # so an index in `at` that is one of theirs has the block number k.
    block = torch.nn.functional.pad(chosen, (0, 1), value=n_blocks).gather(1, (at // _BLOCK).clamp_(max=k))
    return values, block * _BLOCK + torch.where(at < k * _BLOCK, at % _BLOCK, at - k * _BLOCK)


def _log_total(scores: Float[Tensor, "row n"]) -> Float[Tensor, " row"]:
    """Return the log of the sum of exp(score) of each row. Overwrites `scores`, to avoid a copy.

    Scores more than 80 below the row's maximum are raised to 80 below it: their terms are negligible, and as denormal
    numbers they would make the sum ten times slower.
    """
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    largest = scores.amax(dim=-1, keepdim=True)
    # exp(x) is computed as 2^(x log2 e), because torch computes powers of 2 three times as fast as powers of e.
    powers = scores.sub_(largest).clamp_(min=-80.0).mul_(math.log2(math.e)).exp2_()
    return powers.sum(dim=-1).log_() + largest[:, 0]


@dataclass(frozen=True, eq=False)
class Reading:
    """The logits of vectors: their top tokens, and the logits and ranks of chosen ("tracked") tokens.

    "Hidden" tokens are those that may not appear among the top tokens.
    """

    ids: Int[Tensor, "*pos k"]
    """The top tokens, best first."""
    logits: Float[Tensor, "*pos k"]
    log_total: Float[Tensor, "*pos"]
    """Log of the sum of exp(logit) over the whole vocabulary, including hidden tokens."""
    tracked_logits: Float[Tensor, "*pos tracked"]
    tracked_ranks: Int[Tensor, "*pos tracked"]
    """The ranks of the tracked tokens among all tokens, hidden ones included; the largest logit has rank 1."""
    highest_hidden: Float[Tensor, "*pos"]
    """The largest logit of a hidden token; -inf if no token is hidden."""

    @property
    def probabilities(self) -> Float[Tensor, "*pos k"]:
        """Return the probabilities of the top tokens under a softmax over the whole vocabulary."""
        return (self.logits - self.log_total[..., None]).exp()

    @property
    def tracked_probabilities(self) -> Float[Tensor, "*pos tracked"]:
        """Return the probabilities of the tracked tokens."""
        return (self.tracked_logits - self.log_total[..., None]).exp()


def joined(parts: Sequence[Reading]) -> Reading:
    """Concatenate readings, such as those of consecutive layers, along the first axis."""
    return Reading(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Reading)))


@torch.no_grad()
def read(
    lm: Decoder,
    x: Float[Tensor, "*pos d_model"],
    top: int = 10,
    *,
    basis: Basis = "final",
    scale: Float[Tensor, "*pos 1"] | None = None,
    track: Int[Tensor, "*pos tracked"] | None = None,
    hidden: Bool[Tensor, " d_vocab"] | None = None,
) -> Reading:
    """Return the top tokens of many vectors, and the logits and ranks of chosen tokens.

    Args:
        top: number of tokens to list for each vector.
        basis: "raw", "final" or "frozen".
        scale: for "frozen", the final norm's scale at each position of the forward pass.
        track: for each vector, the ids of the tokens whose logits and ranks are returned.
        hidden: True for tokens to leave out of the lists, such as those that the model never learned; ranks count them.

    Memory: ROWS * COLUMNS scores at a time, and the result.
    """
    top = positive_int("top", top)
    positions = x.shape[:-1]
    flat = x.reshape(-1, x.shape[-1])
    scales = None if scale is None else scale.expand(*positions, 1).reshape(-1, 1)
    if track is None:
        track = torch.empty(*positions, 0, dtype=torch.long)
    tracked = track.reshape(flat.shape[0], -1).to(flat.device)
    readout = _Readout.of(lm, basis)
    parts = []
    for start in range(0, max(flat.shape[0], 1), ROWS):
        rows = slice(start, start + ROWS)
        parts.append(
            _read_rows(
                readout,
                readout.prepare(flat[rows], None if scales is None else scales[rows]),
                top,
                tracked[rows],
                hidden,
            )
        )
    columns = (torch.cat(column).unflatten(0, positions) for column in zip(*parts, strict=True))
    return Reading(*columns)


@torch.no_grad()
def read_ends(
    lm: Decoder, x: Float[Tensor, "row d_model"], top: int = 10, *, hidden: Bool[Tensor, " d_vocab"] | None = None
) -> tuple[TopTokens, TopTokens]:
    """Return the tokens with the highest and with the lowest scores of each vector in the raw basis.

    Args:
        top: number of tokens to list at each end.
        hidden: True for tokens to leave out of the lists.

    Returns:
        Ids and scores of the highest tokens, and of the lowest.

    Memory: ROWS * COLUMNS scores at a time, and the result.
    """
    top = min(positive_int("top", top), lm.d_vocab)
    readout = _Readout.of(lm, "raw")
    ends = []
    # The matrix product is computed in chunks with fewer rows and more columns than in `read`: here, most of the time
    # is spent in the two calls of `top_k`, which are faster on wide chunks.
    for rows in x.split(ROWS // 4):
        values: tuple[list[Tensor], list[Tensor]] = ([], [])
        ids: tuple[list[Tensor], list[Tensor]] = ([], [])
        for tokens in readout.columns(4 * COLUMNS):
            scores = readout.scores(rows, tokens)
            left_out = [] if hidden is None else hidden[tokens].nonzero()[:, 0].to(scores.device)
            for end in (0, 1):
                if end:
                    scores.neg_()
                if len(left_out):
                    scores[:, left_out] = -torch.inf
                best, at = top_k(scores, top)
                values[end].append(best)
                ids[end].append(at + tokens.start)
        best = [torch.cat(values[e], 1).topk(top, dim=1) for e in (0, 1)]
        ends.append([(torch.cat(ids[e], 1).gather(1, at), scores) for e, (scores, at) in enumerate(best)])
    promoted, suppressed = zip(*ends, strict=True)
    high_ids, scores = (torch.cat(column) for column in zip(*promoted, strict=True))
    low_ids, negated = (torch.cat(column) for column in zip(*suppressed, strict=True))
    return (high_ids, scores), (low_ids, -negated)


@dataclass(frozen=True, eq=False)
class _Readout:
    """Computes the scores of vectors for a range of tokens at a time."""

    lm: Decoder
    basis: Basis
    W_U: Float[Tensor, "d_model d_vocab"] | None
    """None if the unembedding is not a single matrix; then the model's own module computes all scores at once."""

    @classmethod
    def of(cls, lm: Decoder, basis: Basis) -> "_Readout":
        one_of("basis", basis, LOGIT_LENS_BASES)
        linear = basis != "final" or isinstance(lm.structure.head, nn.Linear)
        return cls(lm, basis, lm.weights.W_U if linear else None)

    def prepare(self, x: Tensor, scale: Tensor | None) -> Tensor:
        """Apply the final norm to vectors as the basis requires. Multiplying the result by W_U gives the scores."""
        norm = self.lm.structure.final_norm
        if self.basis == "raw" or norm is None:
            return x
        if self.basis == "final":
            return norm.normed(x)
        if scale is None:
            raise InvalidInput(
                "basis 'frozen'",
                why="it needs the scale that the final norm had in a forward pass, but no scale is given",
                instead="Give the argument scale, or use another basis",
            )
        return norm.frozen(x, scale).to(x.dtype)

    def columns(self, width: int = COLUMNS) -> list[slice]:
        """Return consecutive ranges of token ids that cover the vocabulary."""
        n = self.lm.d_vocab
        return [slice(0, n)] if self.W_U is None else [slice(i, min(i + width, n)) for i in range(0, n, width)]

    def scores(self, prepared: Tensor, tokens: slice) -> Tensor:
        """Return the scores of a range of tokens, as a new tensor that the caller may overwrite."""
        structure = self.lm.structure
        if self.W_U is None:
            return structure.capped(structure.head(prepared).to(prepared.device)).clone()
        return self._finished(prepared @ self.W_U[:, tokens].to(prepared.dtype), tokens)

    def own(self, prepared: Tensor, tokens: Int[Tensor, "row tracked"]) -> Tensor:
        """Return the scores of each row's tracked tokens."""
        if self.W_U is None:
            return self.scores(prepared, slice(None)).gather(1, tokens)
        found = torch.einsum("rd,rtd->rt", prepared, self.W_U.T[tokens].to(prepared.dtype))
        return self._finished(found, tokens)

    def _finished(self, scores: Tensor, tokens: slice | Tensor) -> Tensor:
        structure = self.lm.structure
        if self.basis == "raw":
            return scores
        if self.basis == "frozen":
            return scores * structure.logit_scale if structure.logit_scale != 1.0 else scores
        bias = self.lm.weights.b_U
        return structure.capped(scores if bias is None else scores + bias[tokens])


def _read_rows(
    readout: _Readout,
    prepared: Float[Tensor, "row d_model"],
    top: int,
    tracked: Int[Tensor, "row tracked"],
    hidden: Bool[Tensor, " d_vocab"] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of a `Reading`, in their order, from one pass over the vocabulary."""
    own = readout.own(prepared, tracked)
    higher, hidden_above = torch.zeros_like(tracked), torch.zeros_like(tracked)
    highest = torch.full(prepared.shape[:1], -torch.inf, dtype=own.dtype, device=own.device)
    best_values, best_ids, totals = [], [], []
    for tokens in readout.columns():
        scores = readout.scores(prepared, tokens)
        left_out = None if hidden is None else hidden[tokens].nonzero()[:, 0].to(scores.device)
        hidden_scores = None
        if left_out is not None and len(left_out):
            hidden_scores = scores[:, left_out]
            scores[:, left_out] = -torch.inf
        values, ids = top_k(scores, top)
        best_values.append(values)
        best_ids.append(ids + tokens.start)
        if tracked.shape[1]:
            higher += _higher(scores, own, tracked - tokens.start)
        if left_out is not None and hidden_scores is not None:
            if tracked.shape[1]:
                place = torch.searchsorted(left_out, tracked - tokens.start).clamp_(max=len(left_out) - 1)
                hidden_above += _higher(
                    hidden_scores, own, torch.where(left_out[place] == tracked - tokens.start, place, -1)
                )
            highest = torch.maximum(highest, hidden_scores.amax(dim=1).to(highest))
            scores[:, left_out] = hidden_scores
        totals.append(_log_total(scores))
    values, at = torch.cat(best_values, dim=1).topk(min(top, readout.lm.d_vocab), dim=1)
    ids = torch.cat(best_ids, dim=1).gather(1, at)
    # `own` comes from another matrix product than the list of top tokens, so its rounding differs slightly. If a
    # tracked token is in the list, its logit and rank are taken from there, so that they always agree with the list.
    listed = ids[:, None, :] == tracked[:, :, None]
    in_list = torch.where(listed, values[:, None, :], -torch.inf).amax(dim=2)
    own = torch.where(listed.any(dim=2), in_list, own)
    higher = torch.where(listed.any(dim=2), (values[:, None, :] > own[:, :, None]).sum(dim=2), higher)
    total = torch.logsumexp(torch.stack(totals, dim=1), dim=1)
    return ids, values, total, own, higher + hidden_above + 1, highest


def _higher(scores: Tensor, own: Tensor, at: Tensor) -> Tensor:
    """Count the scores in each row that exceed a tracked token's score; the token itself (column `at`) is not counted.

    Args:
        scores: the scores of a range of tokens.
        own: the scores of the tracked tokens.
        at: the columns of the tracked tokens in `scores`; a value that is not a column of `scores` (negative or too
            large) if the range does not contain the token.
    """
    counts = []
    inside = (at >= 0) & (at < scores.shape[1])
    itself = scores.gather(1, at.clamp(0, scores.shape[1] - 1))
    # The results of the comparisons are stored as float32 (0 or 1) instead of bool, because summing booleans takes five
    # times as long. Sums in float32 are exact up to 2^24, which is more than the size of any vocabulary.
    above = torch.empty(scores.shape, dtype=torch.float32, device=scores.device)
    for j in range(own.shape[1]):
        torch.gt(scores, own[:, j, None], out=above)
        counts.append(above.sum(dim=1) - (inside[:, j] & (itself[:, j] > own[:, j])).float())
    return torch.stack(counts, dim=1).long()


def final_scale(lm: Decoder, last: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos 1"]:
    """Return the scale of the final norm for the residual stream `last`; ones if the model has no final norm."""
    if lm.structure.final_norm is None:
        return torch.ones(*last.shape[:-1], 1, dtype=last.dtype, device=last.device)
    return lm.structure.final_norm.scale(last)


def logit_direction(lm: Decoder, token: int, against: int | None = None) -> Float[Tensor, " d_model"]:
    """Return the vector whose dot product with the last residual stream, divided by the final norm's scale, is a logit.

    With `against`, that dot product is the difference of the two tokens' logits. Biases and the soft cap are left out.
    """
    W_U = lm.weights.W_U
    return _through_final_norm(lm, W_U[:, token] if against is None else W_U[:, token] - W_U[:, against])


def average_direction(lm: Decoder) -> Float[Tensor, " d_model"]:
    """Return the vector whose dot product with the last residual stream is the mean logit over the vocabulary.

    As in `logit_direction`, the product must be divided by the final norm's scale, and leaves out biases and the soft
    cap.
    """
    return _through_final_norm(lm, lm.weights.W_U.mean(1, dtype=torch.float32))


def _through_final_norm(lm: Decoder, direction: Float[Tensor, " d_model"]) -> Float[Tensor, " d_model"]:
    direction = direction.to(torch.promote_types(direction.dtype, torch.float32)) * lm.structure.logit_scale
    if lm.structure.final_norm is None:
        return direction
    return lm.structure.final_norm.pulled_back(direction, torch.ones(1, dtype=direction.dtype, device=direction.device))
