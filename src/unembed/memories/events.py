"""Saturation and elimination events, and rank changes: which layers moved a token up or down.

They are computed from the ranks of tokens (1 is the top) before and after each FFN at one position. "Before" is the
stream that the FFN reads (resid_mid; resid_pre where attention and FFN are parallel), "after" is resid_post.

- Saturation: the first layer after which the model's final prediction ranks first after every FFN update. Its cause
  is the FFN if the token did not yet rank first before that update; else attention if it did not rank first in the
  stream that enters the layer; else the embedding (in layer 0 only). Its ranks are those before and after the cause.
- Elimination: each FFN has a candidate, the token that ranks first before it. The elimination is at the FFN
  that moves its candidate furthest down; there is no elimination if every candidate stays first.
- Rank change (ours): an update of attention or FFN across which a token's rank at least halves or doubles.

Source: Geva et al. 2022, section 5.1, with the definitions that the released code uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jaxtyping import Int
from torch import Tensor

Cause = Literal["ffn", "attention", "mixer", "embedding"]

MIN_RANK_RATIO = 2
"""Smallest factor between a token's ranks before and after an update that counts as a rank change."""


@dataclass(frozen=True)
class Event:
    """A saturation, an elimination, or a rank change (rise, fall). Ranks count from 1, the top."""

    kind: Literal["saturation", "elimination", "rise", "fall"]
    layer: int
    position: int
    token: int
    rank_before: int
    rank_after: int
    cause: Cause
    """What changed the rank: "ffn", "attention", or "mixer" in a layer with another token mixer; "embedding" if the
    token ranked first before any update."""


def saturation_layer(final_ranks_after: Int[Tensor, "layer ..."]) -> Int[Tensor, " ..."]:
    """Return the first layer after which the final prediction ranks first after every FFN.

    Args:
        final_ranks_after: the rank of the final prediction after each layer's FFN. Its last row is 1.
    """
    first = final_ranks_after == 1
    stays = first.flip(0).long().cumprod(dim=0).flip(0)
    return first.shape[0] - stays.sum(dim=0).clamp_min(1)


def elimination_layer(
    candidate_ranks_after: Int[Tensor, "layer ..."],
) -> tuple[Int[Tensor, " ..."], Int[Tensor, " ..."]]:
    """Return the layer whose FFN moves its candidate (the top token before it) furthest down, and the new rank.

    Args:
        candidate_ranks_after: at each layer, the rank after the FFN of the token that was first before it.

    Returns:
        The layer (the earliest, if several move a candidate equally far down) and the rank; a rank of 1 means that no
        candidate fell in any layer.
    """
    rank = candidate_ranks_after.max(dim=0).values
    layer = (candidate_ranks_after == rank).long().argmax(dim=0)
    return layer, rank


def events_of(
    final: Int[Tensor, " pos"],
    final_ranks_entering: Int[Tensor, "layer pos"],
    final_ranks_before: Int[Tensor, "layer pos"],
    final_ranks_after: Int[Tensor, "layer pos"],
    candidates: Int[Tensor, "layer pos"],
    candidate_ranks_after: Int[Tensor, "layer pos"],
) -> list[Event]:
    """Return the saturation and elimination of every position, sorted by position; the saturation comes first.

    Args:
        final: the token that the model predicts.
        final_ranks_entering: the rank of the predicted token in the stream that enters each layer.
        final_ranks_before: the rank of the predicted token before each FFN.
        final_ranks_after: the rank of the predicted token after each FFN.
        candidates: the top token before each FFN.
        candidate_ranks_after: the rank of this top token after the same FFN.
    """
    saturation = saturation_layer(final_ranks_after)
    elimination, rank = elimination_layer(candidate_ranks_after)
    events = []
    for p in range(final.shape[0]):
        layer = int(saturation[p])
        entering, before = int(final_ranks_entering[layer, p]), int(final_ranks_before[layer, p])
        cause: Cause = "ffn" if before > 1 else "attention" if entering > 1 else "embedding"
        events.append(Event("saturation", layer, p, int(final[p]), before if cause == "ffn" else entering, 1, cause))
        if int(rank[p]) > 1:
            layer = int(elimination[p])
            events.append(Event("elimination", layer, p, int(candidates[layer, p]), 1, int(rank[p]), "ffn"))
    return events


def named_by_mixer(events: Iterable[Event], other_mixers: Sequence[bool]) -> list[Event]:
    """Rename the cause "attention" to "mixer" for events in layers that have another token mixer."""
    return [replace(e, cause="mixer") if e.cause == "attention" and other_mixers[e.layer] else e for e in events]


def rank_changes_of(
    tokens: Int[Tensor, " pos"],
    before: Int[Tensor, "layer pos"],
    after: Int[Tensor, "layer pos"],
    cause: Cause,
) -> list[Event]:
    """Return a rise or fall for every update that at least halves or doubles a token's rank, by position and layer.

    Args:
        tokens: the token whose rank is compared, at each position.
        before: the rank of this token before each layer's update.
        after: the rank of this token after the update.
        cause: what the updates are from, for example "attention".
    """
    up, down = before >= MIN_RANK_RATIO * after, after >= MIN_RANK_RATIO * before
    return [
        Event("rise" if up[n, p] else "fall", n, p, int(tokens[p]), int(before[n, p]), int(after[n, p]), cause)
        for p, n in (up | down).T.nonzero().tolist()
    ]
