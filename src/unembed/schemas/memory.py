"""One memory's value: what it promotes and suppresses, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unembed.attention.paths.memory_connections import Connection, memory_connections
from unembed.memories.top_sub_updates import SubUpdate
from unembed.schemas.numbers import numbers
from unembed.schemas.tokens import question_tokens, scored
from unembed.schemas.trace import Scored, Token

if TYPE_CHECKING:
    from unembed.index.index import Index
    from unembed.language_model import LanguageModel
    from unembed.trace.question import Question
    from unembed.trace.trace import Trace

SCHEMA = "unembed.memory/1"
SCHEMA_ON_PROMPT = "unembed.memory_on_prompt/1"
SCHEMA_CONNECTIONS = "unembed.memory_connections/1"
"""Names of the JSON forms; the number rises when a field changes its meaning or is removed."""


@dataclass(frozen=True)
class MemoryView:
    """A memory as its value shows it."""

    schema: str
    provenance: dict[str, Any]
    layer: int
    index: int
    norm: float
    """The norm of the value, in units of the stream."""
    promoted: list[Scored]
    suppressed: list[Scored]
    edges: list[float]
    """Bounds of the bins of a histogram of all tokens' scores, one more than counts."""
    counts: list[int]
    """Tokens in each bin."""


def memory_view(lm: LanguageModel, layer: int, index: int, top: int = 20, *, hide_unlearned: bool = True) -> MemoryView:
    """The tokens at both ends of a value, best first; scores are in the raw basis."""
    layer, index = lm.memory(layer, index)
    ends = [lm.values.top(layer, index, top, bottom=b, show_unlearned=not hide_unlearned) for b in (False, True)]
    provenance = lm.provenance(basis="raw", notes={"hide_unlearned": hide_unlearned})
    promoted, suppressed = (scored(lm, *end) for end in ends)
    edges, counts = lm.values.score_histogram(layer, index, show_unlearned=not hide_unlearned)
    norm = lm.values.norm(layer, index)
    spread = numbers(edges), numbers(counts)
    return MemoryView(SCHEMA, provenance.to_dict(), layer, index, norm, promoted, suppressed, *spread)


@dataclass(frozen=True)
class MemoryOnPrompt:
    """A memory on a prompt: its coefficient at every token, and what it adds to a question at one position."""

    schema: str
    layer: int
    index: int
    tokens: list[str]
    coefficients: list[float]
    position: int
    target: Token
    against: Token | None
    here: SubUpdate
    """Its sub-update at the position; `score` is its effect on the question."""


def memory_on_prompt(
    trace: Trace,
    layer: int,
    memory: int,
    question: Question,
    position: int,
    index: Index | None = None,
) -> MemoryOnPrompt:
    """A memory on a trace's prompt, under the trace's edits.

    Raises:
        OutOfRange: there is no such memory or position.
    """
    here = trace.memory_effect(layer, memory, question, position, index=index)
    position %= len(trace)
    return MemoryOnPrompt(
        SCHEMA_ON_PROMPT,
        layer,
        memory,
        trace.token_strings,
        numbers(trace.run.at("coefficients", layer)[0, :, memory]),
        position,
        *question_tokens(trace.lm, question, position),
        here,
    )


@dataclass(frozen=True)
class ConnectedMemory:
    """A memory wired to another one by the weights alone."""

    layer: int
    index: int
    strength: float
    """Cosine of the value of the earlier one and the key of the later one."""
    top_tokens: list[str]


@dataclass(frozen=True)
class ConnectionsView:
    """What writes to a memory's key and what reads its value, the strongest first."""

    schema: str
    layer: int
    index: int
    basis: str
    heads: list[Connection]
    writers: list[ConnectedMemory]
    readers: list[ConnectedMemory]
    chance_head: float
    chance_memory: float


def connections_view(lm: LanguageModel, layer: int, index: int, top: int = 6) -> ConnectionsView:
    """The heads and memories wired most strongly to a memory; see `memory_connections`."""
    found = memory_connections(lm, layer, index, top)
    memories = [*found.writers, *found.readers]
    ends = lm.values.top_and_bottom([(one.layer, [one.index]) for one in memories], 8) if memories else []
    shown = [
        ConnectedMemory(one.layer, one.index, one.strength, lm.token_strings(ids[0]))
        for one, (ids, _) in zip(memories, ends, strict=True)
    ]
    writers, readers = shown[: len(found.writers)], shown[len(found.writers) :]
    chance = found.chance_head, found.chance_memory
    return ConnectionsView(
        SCHEMA_CONNECTIONS, found.layer, found.index, found.basis, found.heads, writers, readers, *chance
    )
