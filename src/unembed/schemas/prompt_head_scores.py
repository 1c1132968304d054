"""Attention heads on one prompt, as plain values: the pattern of one head, and the scores of all heads."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from unembed.attention.circuits import Circuits
from unembed.attention.prompt_head_scores import prompt_head_scores, required_points
from unembed.attention.value_weighted_attention import POINTS, contribution_norms
from unembed.models.decoder import Decoder
from unembed.schemas.memory import Scored
from unembed.schemas.numbers import numbers
from unembed.trace.trace import Trace

SCHEMA_PATTERN = "unembed.pattern/1"
SCHEMA_PROMPT_HEADS = "unembed.prompt_heads/1"


@dataclass(frozen=True)
class PatternView:
    """One head on a prompt: its attention weights, and the contribution of each pair of positions."""

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
        OutOfRange: the head does not exist.
    """
    layer, head = lm.layer(layer), lm.head(head)
    run = trace.run_with(POINTS)
    both = run.at("pattern", layer)[0, head], contribution_norms(lm, run, layer)[head]
    weights, norms = ([numbers(row[: i + 1]) for i, row in enumerate(rows)] for rows in both)
    return PatternView(SCHEMA_PATTERN, layer, head, trace.token_strings, numbers(trace.tokens), weights, norms)


DEFINITIONS = {
    "effect": "contribution to the logit of {token} at position {position}",
    "own": "on this prompt: mean attention of a position to itself",
    "entropy": "on this prompt: mean entropy of the attention over that of uniform attention"
    ", without the first position",
}


@dataclass(frozen=True)
class PromptHeadsView:
    """The scores of every head on one prompt."""

    schema: str
    position: int
    token: Scored
    """The target token; its score is its logit."""
    definitions: dict[str, str]
    scores: dict[str, list[list[float]]]
    """By kind: [layer][head]."""

    def to_dict(self) -> dict[str, Any]:
        """The view as JSON can hold it."""
        return dataclasses.asdict(self)


def prompt_heads_view(lm: Decoder, trace: Trace, position: int = -1, token: str | int | None = None) -> PromptHeadsView:
    """The effect of every head on a token's logit, and the shape of its pattern, on a trace's prompt.

    Raises:
        OutOfRange: the position does not exist.
        NotOneToken: the text is not a single token.
    """
    found = prompt_head_scores(lm, trace.run_with(required_points(lm)), position, token)
    text = lm.token_strings([found.token])[0]
    kinds = {"effect": found.effect, "own": found.self_attention, "entropy": found.entropy}
    return PromptHeadsView(
        SCHEMA_PROMPT_HEADS,
        found.position,
        Scored(found.token, text, found.logit),
        {kind: line.format(token=repr(text), position=found.position) for kind, line in DEFINITIONS.items()},
        {kind: numbers(scores) for kind, scores in kinds.items()},
    )


def score_view(circuits: Circuits, prompt: str, layer: int, head: int, destination: int, source: int) -> dict[str, Any]:
    """The attention score (before the softmax) of a pair of positions, and its terms, largest first.

    Raises:
        OutOfRange: the head does not exist, or the source is after the destination.
        Unsupported: the model's scores are not a sum of terms.
    """
    found = circuits.score_terms(prompt, layer, head)
    score, terms = found.at(destination, source)
    return {"score": score, "terms": terms, "error": found.error}
