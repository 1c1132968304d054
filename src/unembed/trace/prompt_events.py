"""Events and rank changes of one prompt, from the ranks that its readings recorded."""

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


def prompt_events(readings: PromptReadings) -> list[Event]:
    """Saturation and elimination events of every position."""
    ranks = {point: readings.read(point).tracked_ranks[..., 0].cpu() for point in ("resid_pre", readings.before_ffn)}
    found = events_of(
        readings.prediction.cpu(),
        ranks["resid_pre"],
        ranks[readings.before_ffn],
        readings.read("resid_post").tracked_ranks[..., 0].cpu(),
        readings.read(readings.before_ffn).ids[..., 0].cpu(),
        _candidate_ranks(readings).cpu(),
    )
    return named_by_mixer(found, readings.lm.other_mixers)


def _candidate_ranks(readings: PromptReadings) -> Int[Tensor, "layer pos"]:
    """The rank after each FFN of the token that was first before it, from the list of top tokens where possible."""
    first, after = readings.read(readings.before_ffn).ids[..., :1], readings.read("resid_post")
    listed = after.ids == first
    own = torch.where(listed, after.logits, -torch.inf).amax(dim=-1, keepdim=True)
    ranks = (after.logits > own).sum(dim=-1) + 1
    others = ~listed.any(dim=-1)
    if bool(others.any()):
        x = readings.stream("resid_post")[others]
        ranks[others] = read(readings.lm, x, 1, track=first[others], hidden=readings.hidden).tracked_ranks[:, 0]
    return ranks


def prompt_rank_changes(readings: PromptReadings, token: int | None, column: int | None) -> list[Event]:
    """Updates across which a token's rank at least halves or doubles, by position and layer.

    Args:
        token: the token to follow; each position's own prediction when None.
        column: only this position.
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
        at = slice(None) if column is None else [column]
        ranks = {point: readings.read(point).tracked_ranks[:, at, 0].cpu() for point in points}
        tokens = readings.prediction.cpu()[at]
    else:
        ranks = {p: readings.ranks_and_probabilities(token, p, "final", column)[0].cpu() for p in points}
        tokens = torch.full((ranks["resid_post"].shape[1],), token)
    found = [change for a, b, cause in halves for change in rank_changes_of(tokens, ranks[a], ranks[b], cause)]
    found = named_by_mixer(found, readings.lm.other_mixers)
    if column is not None:
        found = [replace(change, position=column) for change in found]
    return sorted(found, key=lambda change: (change.position, change.layer))
