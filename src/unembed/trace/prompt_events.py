"""Find events (saturation, elimination) and rank changes on one prompt, from the ranks of tokens in its stream.

As in the papers, ranks are those of the logit lens, even if another lens is fitted on the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from unembed.lens import read
from unembed.memories.events import Cause, Event, events_of, named_by_mixer, rank_changes_of

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from unembed.names import StreamPoint
    from unembed.trace.readings import PromptReadings


def prompt_events(readings: PromptReadings, column: int | None = None) -> list[Event]:
    """Return saturation and elimination events at every position; with `column`, only those at that position."""
    points: tuple[StreamPoint, ...] = ("resid_pre", readings.before_ffn, "resid_post")
    read_at = {point: readings.read(point, position=column) for point in points}
    ranks = {point: reading.tracked_ranks[..., 0].cpu() for point, reading in read_at.items()}
    found = events_of(
        readings.prediction.cpu()[_columns(column)],
        ranks["resid_pre"],
        ranks[readings.before_ffn],
        ranks["resid_post"],
        read_at[readings.before_ffn].ids[..., 0].cpu(),
        _candidate_ranks(readings, column).cpu(),
    )
    return _placed(named_by_mixer(found, readings.lm.other_mixers), column)


def _columns(column: int | None) -> slice:
    return slice(None) if column is None else slice(column, column + 1)


def _placed(found: list[Event], column: int | None) -> list[Event]:
    """Set the position of events that were found by reading a single column of the prompt."""
    return found if column is None else [replace(event, position=column) for event in found]


def _candidate_ranks(readings: PromptReadings, column: int | None) -> Int[Tensor, "layer pos"]:
    """Return the rank, after each FFN, of the token that was first before that FFN.

    The rank is taken from the list of top tokens after the FFN if the token is in it, otherwise computed. If the token
    that was first is one that lists leave out, its rank is given as 1, so that no event is found for it.
    """
    before = readings.read(readings.before_ffn, position=column)
    first = before.ids[..., :1]
    after = readings.read("resid_post", position=column)
    listed = after.ids == first
    own = torch.where(listed, after.logits, -torch.inf).amax(dim=-1, keepdim=True)
    ranks = (after.logits > own).sum(dim=-1) + 1
    others = ~listed.any(dim=-1) | (own[..., 0] < after.highest_hidden)
    if bool(others.any()):
        x = readings.stream("resid_post")[:, _columns(column)][others]
        ranks[others] = read(readings.lm, x, 1, track=first[others], hidden=readings.hidden).tracked_ranks[:, 0]
    return ranks.masked_fill(before.logits[..., 0] < before.highest_hidden, 1)


def prompt_rank_changes(readings: PromptReadings, token: int | None, column: int | None) -> list[Event]:
    """Return updates across which a token's rank at least halves or doubles, by position and layer.

    Args:
        token: the token to follow; each position's own prediction when None.
        column: only this position; all when None.
    """
    halves: list[tuple[StreamPoint, StreamPoint, Cause]]
    if readings.before_ffn == "resid_mid":
        halves = [("resid_pre", "resid_mid", "attention"), ("resid_mid", "resid_post", "ffn")]
    elif any(b.feed_forward is not None for b in readings.lm.structure.blocks):
        return []
    else:
        halves = [("resid_pre", "resid_post", "attention")]
    points: set[StreamPoint] = {point for before, after, _ in halves for point in (before, after)}
    if token is None:
        ranks = {point: readings.prediction_ranks(point, column, "final").cpu() for point in points}
        tokens = readings.prediction.cpu()[_columns(column)]
    else:
        ranks = {p: readings.ranks_and_probabilities(token, p, "final", column)[0].cpu() for p in points}
        tokens = torch.full((ranks["resid_post"].shape[1],), token)
    found = [change for a, b, cause in halves for change in rank_changes_of(tokens, ranks[a], ranks[b], cause)]
    found = _placed(named_by_mixer(found, readings.lm.other_mixers), column)
    return sorted(found, key=lambda change: (change.position, change.layer))
