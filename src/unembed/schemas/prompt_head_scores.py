"""Attention heads on one prompt, as plain values: one head's pattern, and what all of them do there."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from unembed.attention.value_weighted_attention import POINTS, contribution_norms
from unembed.errors import OutOfRange
from unembed.schemas.memory import Scored
from unembed.stream.run import position_of

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


def pattern_view(lm: Any, trace: Any, layer: int, head: int) -> PatternView:
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


def heads_here(lm: Any, trace: Any, position: int = -1, token: str | int | None = None) -> HeadsHere:
    """The effect of every head on a token's logit, and the shape of its pattern, on a trace's prompt.

    Raises:
        OutOfRange: there is no such position.
        NotOneToken: the text is no single token.
    """
    at = position_of(trace.run, position)
    wanted = int(trace.prediction[at]) if token is None else lm.single_token(token)
    attribution = trace.attribution(wanted, at, by="head")
    effect = torch.zeros(lm.n_layers, lm.n_heads)
    for row in attribution.rows:
        if row.label.startswith("head "):
            effect[row.layer, row.index] = row.contribution
    run = trace.run_with(("pattern",))
    patterns = [run.at("pattern", n)[0].float().cpu() for n in range(lm.n_layers)]
    own = [p.diagonal(dim1=-2, dim2=-1).mean(-1).tolist() for p in patterns]
    even = torch.arange(1, len(trace) + 1).log()
    spread = [(torch.special.entr(p).sum(-1)[:, 1:] / even[1:]).mean(-1).nan_to_num().tolist() for p in patterns]
    text = lm.token_strings([wanted])[0]
    said = {kind: line.format(token=repr(text), position=at) for kind, line in HERE.items()}
    return HeadsHere(
        SCHEMA_HERE,
        at,
        Scored(wanted, text, attribution.logit),
        said,
        {"effect": effect.tolist(), "own": own, "entropy": spread},
    )


def score_view(circuits: Any, prompt: str, layer: int, head: int, destination: int, source: int) -> dict[str, Any]:
    """The score before the softmax with which one position reads another, and its terms, largest first.

    Raises:
        OutOfRange: there is no such head, or no such pair: a position reads no later one.
        Unsupported: the model's scores cannot be taken apart.
    """
    found = circuits.score_terms(prompt, layer, head)
    if not source <= destination < len(found.scores):
        raise OutOfRange(
            f"position {destination} reading {source}",
            why=f"the prompt has {len(found.scores)} tokens, and a token reads none after it",
        )
    terms = {name: float(part[destination, source]) for name, part in found.terms.items()}
    return {
        "score": float(found.scores[destination, source]),
        "terms": dict(sorted(terms.items(), key=lambda item: -abs(item[1]))),
        "error": found.error,
    }
