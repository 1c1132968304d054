"""Describe heads on one prompt as plain Python values: a head's attention pattern, and scores of all heads."""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import dataclass

import torch

from unembed.attention.behaviour.head_outputs import HeadUpdate
from unembed.attention.behaviour.value_weighted_attention import contribution_norms
from unembed.attention.weights.by_layer import by_layer
from unembed.attention.weights.folded_weights import require_heads
from unembed.errors import PointMissing, Unsupported
from unembed.jacobian.basis import basis_or_default
from unembed.models.named_tokens import Candidate, Token, most_likely
from unembed.results import quoted
from unembed.results.lists import lower_triangle, numbers, numbers_or_none
from unembed.stream.run import position_of
from unembed.trace.pattern_summaries import SIDE
from unembed.trace.prompt_heads import head_effects
from unembed.trace.question import Question
from unembed.trace.trace import Trace
from unembed.trace.words import question_tokens

SCHEMA_PATTERN = "unembed.pattern/1"
SCHEMA_PATTERNS = "unembed.patterns/1"
SCHEMA_SOURCES = "unembed.head_sources/2"
SCHEMA_HERE = "unembed.head_here/1"
SCHEMA_PROMPT_HEADS = "unembed.prompt_heads/3"


@dataclass(frozen=True)
class PatternView:
    """One head on a prompt: its attention weights, and how much it writes for each pair of positions."""

    schema: str
    layer: int
    head: int
    tokens: list[str]
    ids: list[int]
    weights: list[list[float]]
    """Attention weights: a row for each destination position, with a weight for each source position up to it. Each row
    adds up to 1, unless the model has attention sinks, which take a share of the attention."""
    norms: list[list[float]] | None
    """Attention weight times the norm of the vector that the head would write from that source alone; None if the
    value vectors are not found, or if the mixed values go through a gate or norm whose factors differ between
    positions."""


def pattern_view(trace: Trace, layer: int, head: int) -> PatternView:
    """Return a head's attention pattern on a trace's prompt, under the trace's edits.

    Raises:
        OutOfRange: the head does not exist.
    """
    lm = trace.lm
    layer, head = lm.layer_and_head(layer, head)
    _ = lm.structure.blocks[layer].attention  # raises an error if the layer has no attention
    seen, norms = trace.layer_heads(layer), None
    with suppress(Unsupported, PointMissing):
        norms = lower_triangle(contribution_norms(lm, seen, layer)[head])
    weights = lower_triangle(seen.at("pattern", layer)[0, head])
    return PatternView(SCHEMA_PATTERN, layer, head, trace.token_strings, numbers(trace.tokens), weights, norms)


@dataclass(frozen=True)
class PatternsView:
    """Small pictures of the attention patterns of all heads on a prompt."""

    schema: str
    n_tokens: int
    side: int
    """Number of rows and of columns of each picture: one for each token or, in a long prompt, each block of tokens."""
    patterns: list[list[str]]
    """By layer and head: the picture's weights times 255, row by row, one byte each, as base64. In a picture of blocks,
    each is the largest weight in its block. The list of a layer without attention is empty."""


def patterns_view(trace: Trace) -> PatternsView:
    """Return the attention patterns of all heads on a trace's prompt, reduced to at most 24 rows and columns.

    Raises:
        Unsupported: no layer has attention weights.
    """
    lm = trace.lm
    require_heads(lm, "attention patterns")
    n = len(trace)
    found: list[list[str]] = [[] for _ in range(lm.n_layers)]
    for layer, one in trace.pattern_summaries.items():
        found[layer] = [base64.b64encode(bytes(numbers(head.flatten()))).decode() for head in one.picture]
    return PatternsView(SCHEMA_PATTERNS, n, min(n, SIDE), found)


@dataclass(frozen=True)
class HeadSourcesView:
    """What one head adds to a logit, or to the difference of two logits, split by the token that it attends to."""

    schema: str
    layer: int
    head: int
    position: int
    target: Token
    against: Token | None
    logit: float
    """The target's logit; if `against` is not None, the target's logit minus that of `against`."""
    contributions: list[float]
    """What the head adds to `logit` from each source position up to `position`."""


def head_sources_view(trace: Trace, layer: int, head: int, question: Question, position: int = -1) -> HeadSourcesView:
    """Split what a head adds to a logit, or to the difference of two logits, by source token.

    Raises:
        OutOfRange: the head or the position does not exist.
        SumNotProved: the contributions of all components do not add up to the logit.
        Unsupported: the heads of this model cannot be split by source token.
    """
    layer, head = trace.lm.layer_and_head(layer, head)
    position = position_of(trace.run, position)
    found = trace.attribution(question.token, position, question.against, by="source")
    # The attribution also has a row for each source position after `position`. A head cannot attend to later
    # positions, so these contributions are 0 and are left out.
    own = (found.layer == layer) & (found.index == head) & (found.source >= 0) & (found.source <= position)
    contributions = torch.zeros(position + 1).index_add_(0, found.source[own], found.contribution[own].float().cpu())
    target, against = question_tokens(trace.lm, question, position)
    return HeadSourcesView(SCHEMA_SOURCES, layer, head, position, target, against, found.logit, numbers(contributions))


@dataclass(frozen=True)
class HeadHereView:
    """What one head adds to the residual stream at one position of a prompt."""

    schema: str
    position: int
    target: Token
    against: Token | None
    """The token that the target is compared with. The `score` of `update` is then what the head adds to the
    difference of the two logits; if `against` is None, what it adds to the target's logit."""
    update: HeadUpdate
    basis: str
    """How the update's top tokens were computed: "jacobian" by the fitted lens, "raw" by the logit lens."""


def head_here_view(trace: Trace, layer: int, head: int, question: Question, position: int = -1) -> HeadHereView:
    """Return what a head adds at a position: its size, its effect on a logit difference, and the tokens it promotes.

    Raises:
        OutOfRange: the head or the position does not exist.
        PointMissing: the layer has no attention heads.
    """
    layer, head = trace.lm.layer_and_head(layer, head)
    position = position_of(trace.run, position)
    (own,) = trace.head_updates(layer, position, question.token, question.against, heads=[head])
    target, against = question_tokens(trace.lm, question, position)
    return HeadHereView(SCHEMA_HERE, position, target, against, own, basis_or_default(trace.lm, None, "raw"))


DEFINITIONS = {
    "effect": "contribution to {question} at position {position}",
    "moved": "part of that contribution that comes from attention to positions of the prompt with the same word",
    "own": "on this prompt: mean attention of a position to itself",
    "entropy": "on this prompt: mean entropy of the attention over that of uniform attention"
    ", without the first position",
}
_CANDIDATES = 10


@dataclass(frozen=True)
class PromptHeadsView:
    """The scores of every head on one prompt."""

    schema: str
    position: int
    target: Token
    against: Token | None
    logit: float
    """The target's logit; if `against` is not None, the target's logit minus that of `against`."""
    prediction: list[Candidate]
    """The most likely next tokens."""
    definitions: dict[str, str]
    scores: dict[str, list[list[float | None]]]
    """The scores by kind, as [layer][head]; None in layers without attention. The kind "moved" (see `DEFINITIONS`) is
    missing if `copied` is empty."""
    copied: list[Token]
    """The tokens of the prompt, up to the position, that spell the target's word, ignoring spaces and case. Also empty
    if the contributions of this model's heads cannot be split by source token."""
    probabilities: list[float]
    """The probability of the target as the next token and, if there is one, that of `against`."""


@torch.no_grad()
def prompt_heads_view(trace: Trace, question: Question, position: int = -1) -> PromptHeadsView:
    """Return, for every head on a trace's prompt, its effect on a logit difference, attention to itself, and entropy.

    Raises:
        OutOfRange: the position does not exist.
        SumNotProved: the contributions of all components do not add up to the logit.
        Unsupported: no layer has attention, or its output is not a sum over heads.
    """
    lm = trace.lm
    require_heads(lm, "head scores")
    position = position_of(trace.run, position)
    found = trace.attribution(question.token, position, question.against, by="head")
    effect = {n: torch.zeros(lm.structure.blocks[n].attention.n_heads) for n in lm.attention_layers}
    for row in found.rows:
        if row.layer in effect and row.index is not None:
            effect[row.layer][row.index] = row.contribution
    copied = _copied(trace, question.token, position)
    by_head = head_effects(trace, question, position) if copied else None
    if by_head is None or by_head.by_source is None:
        copied = []
    kinds = {
        "effect": by_layer(lm.n_layers, effect),
        "own": by_layer(lm.n_layers, {n: one.own for n, one in trace.pattern_summaries.items()}),
        "entropy": by_layer(lm.n_layers, {n: one.entropy for n, one in trace.pattern_summaries.items()}),
    }
    if by_head is not None and by_head.by_source is not None:
        moved = {n: torch.zeros_like(row) for n, row in effect.items()}
        through = by_head.by_source[:, [one.position for one in copied]].sum(dim=1)
        for (layer, head), amount in zip(by_head.places, through.tolist(), strict=True):
            moved[layer][head] = amount
        kinds["moved"] = by_layer(lm.n_layers, moved)
    target, against = question_tokens(lm, question, position)
    probabilities = trace.logits(position).float().softmax(-1)
    less = "" if against is None else f" minus that of {quoted(against.token)}"
    quantity = f"the logit of {quoted(target.token)}{less}"
    return PromptHeadsView(
        SCHEMA_PROMPT_HEADS,
        position,
        target,
        against,
        found.logit,
        most_likely(lm, trace.logits(position), _CANDIDATES),
        {kind: DEFINITIONS[kind].format(question=quantity, position=position) for kind in kinds},
        {kind: numbers_or_none(scores) for kind, scores in kinds.items()},
        copied,
        [float(probabilities[one.id]) for one in (target, against) if one is not None],
    )


def _copied(trace: Trace, target: int, position: int) -> list[Token]:
    """Return the tokens up to a position that spell the same word as a token, ignoring spaces and case."""
    word = trace.lm.token_strings([target])[0].strip().casefold()
    texts = trace.token_strings[: position + 1]
    same = [i for i, text in enumerate(texts) if word.isalnum() and text.strip().casefold() == word]
    return [Token(i, int(trace.tokens[i]), texts[i]) for i in same]
