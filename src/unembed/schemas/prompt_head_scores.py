"""Attention heads on one prompt, as plain values: one head's pattern, and what all of them do there."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from unembed.attention.circuits import Circuits
from unembed.attention.prompt_head_scores import prompt_head_scores, required_points
from unembed.attention.value_weighted_attention import POINTS, contribution_norms
from unembed.models.decoder import Decoder
from unembed.schemas.memory import Scored
from unembed.trace.trace import Trace

SCHEMA_PATTERN = "unembed.pattern/1"
SCHEMA_HERE = "unembed.heads_here/1"


@dataclass(frozen=True)
class PatternView:
    """One head on a prompt: where it looks, and how much it carries from there."""

    schema: str
    layer: int
    head: int
    tokens: list[str]
    ids: list[int]
    weights: list[list[float]]
    """By destination, over the sources up to it; each row adds up to one, unless the family has attention sinks."""
    norms: list[list[float]]
    """Weight times the length of the value as the head writes it, in stream units."""

    def to_dict(self) -> dict[str, Any]:
        """The view as JSON can hold it."""
        return dataclasses.asdict(self)


def pattern_view(lm: Decoder, trace: Trace, layer: int, head: int) -> PatternView:
    """A head's pattern on a trace's prompt, under the trace's edits.

    Raises:
        OutOfRange: there is no such head.
    """
    layer, head = lm.layer(layer), lm.head(head)
    run = trace.run_with(POINTS)
    both = run.at("pattern", layer)[0, head], contribution_norms(lm, run, layer)[head]
    weights, norms = ([row[: i + 1].tolist() for i, row in enumerate(rows)] for rows in both)
    return PatternView(SCHEMA_PATTERN, layer, head, trace.token_strings, trace.tokens.tolist(), weights, norms)


HERE = {
    "effect": "the head's share of the logit of {token} at position {position}",
    "own": "on this prompt: mean attention to the token itself",
    "entropy": "on this prompt: mean entropy of the attention, over what even attention would have; the first position "
    "left out",
}


@dataclass(frozen=True)
class HeadsHere:
    """What every head does on one prompt."""

    schema: str
    position: int
    token: Scored
    """The token asked for, or the prediction; its score is its logit."""
    said: dict[str, str]
    scores: dict[str, list[list[float]]]
    """By kind: [layer][head]."""

    def to_dict(self) -> dict[str, Any]:
        """The view as JSON can hold it."""
        return dataclasses.asdict(self)


def heads_here(lm: Decoder, trace: Trace, position: int = -1, token: str | int | None = None) -> HeadsHere:
    """The effect of every head on a token's logit, and the shape of its pattern, on a trace's prompt.

    Raises:
        OutOfRange: there is no such position.
        NotOneToken: the text is not a single token.
    """
    found = prompt_head_scores(lm, trace.run_with(required_points(lm)), position, token)
    text = lm.token_strings([found.token])[0]
    kinds = {"effect": found.effect, "own": found.self_attention, "entropy": found.entropy}
    return HeadsHere(
        SCHEMA_HERE,
        found.position,
        Scored(found.token, text, found.logit),
        {kind: line.format(token=repr(text), position=found.position) for kind, line in HERE.items()},
        {kind: scores.tolist() for kind, scores in kinds.items()},
    )


def score_view(circuits: Circuits, prompt: str, layer: int, head: int, destination: int, source: int) -> dict[str, Any]:
    """The score before the softmax with which one position reads another, and its terms, largest first.

    Raises:
        OutOfRange: there is no such head, or no such pair: a position reads no later one.
        Unsupported: the model's scores cannot be taken apart.
    """
    found = circuits.score_terms(prompt, layer, head)
    score, terms = found.at(destination, source)
    return {"score": score, "terms": terms, "error": found.error}
