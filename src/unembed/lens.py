"""A stream vector read in the vocabulary: bases, top tokens, ranks, probabilities.

Three bases, because "what this vector says" depends on what is done about the final norm:

- `raw`: W_U alone, as in the papers; right for directions, whose length means nothing.
- `final`: the model's own final norm and readout, soft cap included; on the last stream it is the model's prediction.
- `frozen`: the final norm with the scale it had in the run; linear, so the readings of parts add up.

Ranks count the tokens with a larger logit: 0 is the top.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import BASES

ROWS = 128
"""Vectors read at once: their logits (ROWS x d_vocab) stay in the processor's cache for vocabularies of 50,000."""
_BLOCK = 64


def logits_of(
    lm: Decoder,
    x: Float[Tensor, "*pos d_model"],
    basis: str = "final",
    scale: Float[Tensor, "*pos 1"] | None = None,
) -> Float[Tensor, "*pos d_vocab"]:
    """The scores of every token for stream vectors.

    Args:
        lm: the model.
        x: vectors of the stream.
        basis: "raw", "final" or "frozen".
        scale: for "frozen", the final norm's scale in the run at each position.

    Returns:
        Logits; in "frozen" without the biases of the norm and the head and without the soft cap, so that they add up.

    Memory: as large as what it returns; read many vectors with `read`, which works by chunks.
    """
    if basis not in BASES:
        raise InvalidInput(f"basis {basis!r}", why=f"it is none of {', '.join(BASES)}")
    structure = lm.structure
    if basis == "raw":
        return x @ lm.weights.W_U.to(x.dtype)
    if basis == "final":
        normed = x if structure.final_norm is None else structure.final_norm.module(x)
        return structure.capped(structure.head(normed))
    if structure.final_norm is not None:
        if scale is None:
            raise InvalidInput("basis 'frozen'", why="it needs the scale that the final norm had in a run")
        x = structure.final_norm.frozen(x, scale).to(x.dtype)
    return structure.logit_scale * (x @ lm.weights.W_U.to(x.dtype))


def top_k(scores: Float[Tensor, "row n"], k: int) -> tuple[Float[Tensor, "row k"], Int[Tensor, "row k"]]:
    """The k largest entries of each row, largest first; exact, and faster than a full selection over wide rows.

    The k largest lie in the k blocks with the largest maxima, so only those blocks are searched.
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
    where = (chosen[..., None] * _BLOCK + torch.arange(_BLOCK, device=scores.device)).flatten(1)
    if tail.shape[-1]:
        inside = torch.cat([inside, tail], dim=1)
        rest = torch.arange(n_blocks * _BLOCK, n, device=scores.device).expand(scores.shape[0], -1)
        where = torch.cat([where, rest], dim=1)
    values, at = inside.topk(k, dim=-1)
    return values, where.gather(1, at)


def ranks_of(scores: Float[Tensor, "row n"], tokens: Int[Tensor, "row tracked"]) -> Int[Tensor, "row tracked"]:
    """How many tokens score higher than each of the given ones: 0 is the top, ties share the better rank."""
    own = scores.gather(1, tokens)
    return torch.stack([(scores > own[:, j, None]).sum(dim=1) for j in range(tokens.shape[1])], dim=1)


@dataclass(frozen=True, eq=False)
class Reading:
    """What vectors say in the vocabulary, for any shape of positions."""

    ids: Int[Tensor, "*pos k"]
    """The top tokens, best first."""
    logits: Float[Tensor, "*pos k"]
    log_total: Float[Tensor, "*pos"]
    """log of the sum of exp(logit) over the whole vocabulary, hidden tokens included."""
    tracked_logits: Float[Tensor, "*pos tracked"]
    tracked_ranks: Int[Tensor, "*pos tracked"]

    @property
    def probabilities(self) -> Float[Tensor, "*pos k"]:
        """Probabilities of the top tokens under a softmax over the whole vocabulary."""
        return (self.logits - self.log_total[..., None]).exp()

    @property
    def tracked_probabilities(self) -> Float[Tensor, "*pos tracked"]:
        """Probabilities of the tracked tokens."""
        return (self.tracked_logits - self.log_total[..., None]).exp()


@torch.no_grad()
def read(
    lm: Decoder,
    x: Float[Tensor, "*pos d_model"],
    top: int = 10,
    *,
    basis: str = "final",
    scale: Float[Tensor, "*pos 1"] | None = None,
    track: Int[Tensor, "*pos tracked"] | None = None,
    hidden: Bool[Tensor, " d_vocab"] | None = None,
) -> Reading:
    """Top tokens of many vectors, and where chosen tokens stand, in one product by chunks.

    Args:
        lm: the model.
        x: stream vectors.
        top: how many tokens to list.
        basis: "raw", "final" or "frozen".
        scale: for "frozen", the final norm's scale.
        track: tokens whose logit and rank to note, for each vector.
        hidden: tokens to leave out of lists and ranks (never learned ones).

    Memory: ROWS * d_vocab scores at a time beside the result.
    """
    positions = x.shape[:-1]
    flat = x.reshape(-1, x.shape[-1])
    scales = None if scale is None else scale.expand(*positions, 1).reshape(-1, 1)
    tracked = None if track is None else track.reshape(flat.shape[0], -1).to(flat.device)
    out: list[tuple[Tensor, ...]] = []
    for rows in _chunks(flat.shape[0]):
        scores = logits_of(lm, flat[rows], basis, None if scales is None else scales[rows])
        total = torch.logsumexp(scores.float() if scores.dtype != torch.float64 else scores, dim=-1)
        if hidden is not None:
            scores = scores.masked_fill(hidden.to(scores.device), -torch.inf)
        values, ids = top_k(scores, top)
        wanted = tracked[rows] if tracked is not None else ids[:, :0]
        out.append(
            (ids, values, total, scores.gather(1, wanted), ranks_of(scores, wanted) if wanted.shape[1] else wanted)
        )
    ids, values, total, own, ranks = (torch.cat(part) for part in zip(*out, strict=True))
    return Reading(
        ids.view(*positions, -1),
        values.view(*positions, -1),
        total.view(positions),
        own.view(*positions, -1) if own.shape[1] else own.new_zeros(*positions, 0),
        ranks.view(*positions, -1) if ranks.shape[1] else ranks.new_zeros((*positions, 0)),
    )


def _chunks(n: int) -> Iterator[slice]:
    return (slice(start, min(start + ROWS, n)) for start in range(0, n, ROWS))


def final_scale(lm: Decoder, last: Float[Tensor, "*pos d_model"]) -> Float[Tensor, "*pos 1"]:
    """The scale that the final norm has on the last stream; ones where the model has no final norm."""
    if lm.structure.final_norm is None:
        return torch.ones(*last.shape[:-1], 1, dtype=last.dtype, device=last.device)
    return lm.structure.final_norm.scale(last)


def logit_direction(lm: Decoder, token: int, against: int | None = None) -> Float[Tensor, " d_model"]:
    """The direction whose dot product with a stream vector, divided by the final norm's scale, is a share of a logit.

    With `against`, of the difference of two logits. Biases and soft cap are no part of it.
    """
    W_U = lm.weights.W_U
    direction = W_U[:, token] if against is None else W_U[:, token] - W_U[:, against]
    direction = direction.to(torch.promote_types(direction.dtype, torch.float32)) * lm.structure.logit_scale
    if lm.structure.final_norm is None:
        return direction
    return lm.structure.final_norm.pulled_back(direction, torch.ones(1, dtype=direction.dtype, device=direction.device))
