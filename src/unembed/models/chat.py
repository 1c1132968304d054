"""Turn conversations into text and tokens with the tokenizer's chat template, and find the role of each token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from unembed.errors import InvalidInput, first_sentence, reading

Message = Mapping[str, str]
"""One turn: {"role": "user", "content": "Hello"}."""
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Chat:
    """A conversation as text and as tokens.

    Attributes:
        text: the text that the chat template makes, including its special tokens.
        ids: the token ids of that text. The tokenizer adds no special tokens, since the template has written them all.
        roles: for each token, the role of the message that contains it; None for a token that the template adds. The
            tuple is empty if the template changes the text of the messages, so that the roles are not known.
    """

    text: str
    ids: tuple[int, ...]
    roles: tuple[str | None, ...]


def chat_of(tokenizer: PreTrainedTokenizerBase, messages: str | Sequence[Message], system: str | None = None) -> Chat:
    """Return a conversation as the model reads it, up to the start of the next answer.

    If the last message has the role "assistant", the text ends with it, so that the model continues that message.

    Args:
        messages: the messages in order; a string is one message of the user.
        system: a system message to put before the others.

    Raises:
        InvalidInput: the tokenizer has no chat template, or its template refuses these messages.
    """
    turns = _checked(messages, system)
    text = _written(tokenizer, turns)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=bool(tokenizer.is_fast), verbose=False)
    ids: list[int] = encoded["input_ids"]  # pyright: ignore[reportAssignmentType]
    spans = _spans(tokenizer, turns, text) if tokenizer.is_fast else None
    if spans is None:
        return Chat(text, tuple(ids), ())
    places: list[tuple[int, int]] = encoded["offset_mapping"]  # pyright: ignore[reportAssignmentType]
    return Chat(text, tuple(ids), tuple(_role_at(place, spans) for place in places))


def read_messages(path: Path) -> list[Message]:
    """Read the messages in a file: a JSON list, or one JSON object on each line.

    Raises:
        InvalidInput: the file cannot be read, or does not contain messages.
    """
    remedy = 'Give a JSON list of {"role": ..., "content": ...}, or one such object on each line'
    with reading(f"messages {path}", instead=remedy):
        text = path.read_text(encoding="utf-8-sig").strip()
        found = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.split("\n") if line]
    return _checked(found, None)


def _checked(messages: Any, system: str | None) -> list[Message]:
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    if not isinstance(turns, Sequence) or not turns:
        raise InvalidInput("messages", why="there are none", instead='Give [{"role": "user", "content": "Hello"}]')
    for turn in turns:
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise InvalidInput(
                f"message {turn!r:.60}",
                why="a message has a role and a content, both text",
                instead=f"Use the roles {', '.join(ROLES)}",
            )
    return [*([] if system is None else [{"role": "system", "content": system}]), *turns]


def _written(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Message]) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidInput(
            "a conversation", why="the model's tokenizer has no chat template", instead="Give the text as it is"
        )
    goes_on = turns[-1]["role"] == "assistant"
    try:
        return str(
            tokenizer.apply_chat_template(
                [dict(turn) for turn in turns],
                tokenize=False,
                add_generation_prompt=not goes_on,
                continue_final_message=goes_on,
            )
        )
    except Exception as fault:  # templates raise many kinds of error, for example for a system message
        raise InvalidInput("a conversation", why=f"the chat template refuses it: {first_sentence(fault)}") from fault


def _spans(
    tokenizer: PreTrainedTokenizerBase, turns: Sequence[Message], text: str
) -> list[tuple[int, int, str]] | None:
    """Return where each message's content lies in the text, as (start, end, role); None if that cannot be found.

    The template is applied once more with marks in place of the contents. All text between the marks is what the
    template adds.
    """
    marks = [f"\ue000{i}\ue001" for i in range(len(turns))]
    try:
        around = _written(tokenizer, [{**turn, "content": mark} for turn, mark in zip(turns, marks, strict=True)])
    except InvalidInput:
        return None
    spans: list[tuple[int, int, str]] = []
    at = 0
    for turn, mark in zip(turns, marks, strict=True):
        before, found, around = around.partition(mark)
        if not found:
            return None
        if not text.startswith(before, at):
            return None
        at += len(before)
        content = next(
            (c for c in (turn["content"], turn["content"].strip()) if text.startswith(c + around[:1], at)), None
        )
        if content is None:
            return None
        spans.append((at, at + len(content), turn["role"]))
        at += len(content)
    return spans if text[at:] == around else None


def _role_at(place: tuple[int, int], spans: Sequence[tuple[int, int, str]]) -> str | None:
    start, end = place
    return next((role for first, last, role in spans if start < last and end > first), None)
