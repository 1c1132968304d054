"""Put the tokens, edits and events of a trace into words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unembed.errors import Unsupported
from unembed.models.named_tokens import Token
from unembed.names import head_name
from unembed.results import format_setting, visible
from unembed.trace.view import READERS, EventView

if TYPE_CHECKING:
    from unembed.memories.events import Event
    from unembed.models.decoder import Decoder
    from unembed.stream.interventions import Edit
    from unembed.trace.question import Question
    from unembed.trace.trace import Trace


def prompt_tokens(trace: Trace) -> list[Token]:
    """Return the tokens of a trace's prompt."""
    return [Token(i, int(trace.tokens[i]), text) for i, text in enumerate(trace.token_strings)]


def prompt_roles(trace: Trace) -> list[str | None] | None:
    """Return the role of each token of a conversation, None for tokens that the chat template adds.

    The result is None if the prompt is plain text.
    """
    roles = None if trace.lm.tokenizer is None else trace.lm.vocabulary.roles(trace.tokens.tolist())
    return None if roles is None else list(roles)


def question_tokens(lm: Decoder, question: Question, position: int) -> tuple[Token, Token | None]:
    """Return the token that a question explains, and the token that it is compared with."""
    ids = [question.token] if question.against is None else [question.token, question.against]
    target, *against = (Token(position, i, text) for i, text in zip(ids, lm.token_strings(ids), strict=True))
    return target, against[0] if against else None


def edit_in_words(edit: Edit, lm: Decoder, n_positions: int) -> str:
    """Describe an edit in words, and say if its positions come after the `n_positions` tokens of the prompt."""
    if edit.target == "head" and isinstance(edit.index, int):
        what = f"head {head_name(edit.layer, edit.index)}"
    elif edit.target == "coefficient":
        what = f"memory {lm.memory_name(edit.layer, lm.memory(edit.layer, edit.index)[1])}"
    else:
        is_stream = edit.target == "stream"
        what = f"the stream after layer {edit.layer}" if is_stream else f"{edit.target} {edit.layer}"
    if edit.vector is not None:
        change = {"set": "replaced by a vector", "add": f"plus {format_setting(edit.value)} times a vector"}
    else:
        change = {
            "set": f"set to {format_setting(edit.value)}",
            "scale": f"times {format_setting(edit.value)}",
            "add": f"plus {format_setting(edit.value)}",
        }
    where = {"all": "", "last": " at the last position"}
    if isinstance(edit.positions, str):
        return f"{what} {change[edit.action]}{where[edit.positions]}"
    after = ", after the prompt: in a continuation only" if min(edit.positions, default=0) >= n_positions else ""
    return f"{what} {change[edit.action]} at {', '.join(map(str, edit.positions))}{after}"


def event_views(trace: Trace, position: int | None = None) -> list[EventView]:
    """Return the events at one position or at all; none if the model has no FFN."""
    try:
        reader = "" if trace.basis == "final" else READERS["final"]
        return describe_events(trace.lm, trace.events(position), reader)
    except Unsupported:
        return []


def describe_events(lm: Decoder, events: Sequence[Event], reader: str = "") -> list[EventView]:
    """Describe events in words, with the texts of their tokens; `reader` names the lens that found them, if given."""
    texts = lm.token_strings([event.token for event in events])
    return [_event_view(lm, event, text, reader) for event, text in zip(events, texts, strict=True)]


def _event_view(lm: Decoder, e: Event, text: str, reader: str) -> EventView:
    update = {"ffn": "FFN", "embedding": "embedding"}.get(e.cause) or lm.mixer_name(e.layer)
    plain = EventView(e.kind, e.layer, e.position, e.token, text, e.rank_before, e.rank_after, e.cause, update=update)
    notes = [] if e.kind in ("rise", "fall") else [e.kind]
    notes += [f"by {reader}"] if reader else []
    note = f" ({', '.join(notes)})" if notes else ""
    sentence = f"{plain.place[0].upper()}{plain.place[1:]}: {visible(text)} {plain.happened}{note}."
    return dataclasses.replace(plain, sentence=sentence)
