"""Describe a memory on a prompt as plain Python values: its coefficient at each token, its effect at one position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unembed.memories.top_sub_updates import SubUpdate
from unembed.models.named_tokens import Token
from unembed.results.lists import numbers
from unembed.trace.words import question_tokens

if TYPE_CHECKING:
    from unembed.index.index import Index
    from unembed.trace.question import Question
    from unembed.trace.trace import Trace

SCHEMA = "unembed.memory_on_prompt/1"
"""Name of the JSON form; the number rises when a field changes its meaning or is removed."""


@dataclass(frozen=True)
class MemoryOnPrompt:
    """A memory on a prompt: its coefficient at every token, and its effect on a logit difference at one position."""

    schema: str
    layer: int
    index: int
    tokens: list[str]
    coefficients: list[float]
    position: int
    target: Token
    against: Token | None
    here: SubUpdate
    """The memory at the position; `score` is what it adds to the logit of `target`, or to the difference."""


def memory_on_prompt(
    trace: Trace,
    layer: int,
    memory: int,
    question: Question,
    position: int,
    index: Index | None = None,
) -> MemoryOnPrompt:
    """Return a memory's coefficients on a trace's prompt, and its effect at a position, under the trace's edits.

    Raises:
        OutOfRange: there is no such memory or position.
    """
    here = trace.memory_effect(layer, memory, question, position, index=index)
    position %= len(trace)
    return MemoryOnPrompt(
        SCHEMA,
        layer,
        memory,
        trace.token_strings,
        numbers(trace.everywhere("coefficients", [layer]).at("coefficients", layer)[0, :, memory]),
        position,
        *question_tokens(trace.lm, question, position),
        here,
    )
