"""Memories found by what a person writes into one box, and how the box was understood.

`breakfast` promotes the word in any of its one-token forms; `-breakfast` suppresses it; `"·Paris"` is exactly that
token (`·` or a space in front); `ctx:"capital of"` has the words in its triggers; `name:city` has them in its label,
and finds heads too; `layer:3-5` keeps layers; `L4M17` is a memory.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from unembed.errors import IndexFault, InvalidInput, NotOneToken
from unembed.memories.token_suppression import values_scoring

SCHEMA = "unembed.search/1"
_PART = re.compile(r'(?P<kind>ctx:|name:|layer:|-)?(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+))')
_MEMORY = re.compile(r"[Ll](\d{1,6})[MmDd.](\d{1,7})")
_LAYERS = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True)
class Understood:
    """A query taken apart."""

    promote: list[str] = field(default_factory=list)
    suppress: list[str] = field(default_factory=list)
    exact: list[str] = field(default_factory=list)
    context: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    layers: tuple[int, int] | None = None
    memory: tuple[int, int] | None = None


@dataclass(frozen=True)
class Hit:
    """A memory, or a head by its label, that was found, and why."""

    layer: int
    index: int
    why: str
    """"promotes", "suppresses", "trigger" or "name"."""
    found: str
    """The token, the context or the label."""
    rank: int | None
    """Where the token stands among the value's top tokens, from 0."""
    score: float | None
    """The raw score of the token, or the coefficient on the trigger."""
    top_tokens: list[str]
    of: str = "memory"
    """Or "head"."""


@dataclass(frozen=True)
class Search:
    """The answer to a query."""

    schema: str
    query: str
    understood: Understood
    tokens: dict[str, list[str]]
    """How each word is split by the tokenizer."""
    hits: list[Hit]
    notes: list[str]
    """What could not be asked, and why."""

    def to_dict(self) -> dict[str, Any]:
        """The view as JSON can hold it."""
        return dataclasses.asdict(self)


def understand(query: str) -> Understood:
    """A query taken apart; nothing in it can fail."""
    found = Understood()
    for part in _PART.finditer(query):
        kind, quoted, text = part["kind"], part["quoted"] is not None, part["quoted"] or part["plain"] or ""
        if not text:
            continue
        if kind == "layer:" and (layers := _LAYERS.fullmatch(text)):
            found = dataclasses.replace(found, layers=(int(layers[1]), int(layers[2] or layers[1])))
        elif kind == "ctx:":
            found.context.append(text)
        elif kind == "name:":
            found.names.append(text)
        elif kind == "-":
            found.suppress.append(text.replace("·", " "))
        elif quoted:
            found.exact.append(text.replace("·", " "))
        elif memory := _MEMORY.fullmatch(text):
            found = dataclasses.replace(found, memory=(int(memory[1]), int(memory[2])))
        else:
            found.promote.append(text.replace("·", " "))
    return found


def search(lm: Any, index: Any, query: str, top: int = 50) -> Search:
    """The memories that a query finds, best first within each part of it.

    Args:
        lm: the model.
        index: of the model, or None: then triggers and names cannot be searched, and values are scored directly.
        query: what was written.
        top: hits for each part.
    """
    asked = understand(query)
    hits: list[Hit] = []
    notes: list[str] = []
    parts: list[Callable[[], Iterator[Hit]]] = []
    if asked.memory is not None:
        layer, i = asked.memory
        parts.append(lambda: iter([_hit(lm, layer, i, "memory", "", None, None)]))
    for word in asked.promote:
        parts.append(lambda word=word: _promoting(lm, index, _forms(lm, word), top))
    for text in asked.exact:
        parts.append(lambda text=text: _promoting(lm, index, [lm.single_token(text)], top))
    for word in asked.suppress:
        parts.append(lambda word=word: _suppressing(lm, _forms(lm, word), top))
    for text in asked.context:
        parts.append(lambda text=text: _triggered(_need(index, "ctx:"), text, top))
    for text in asked.names:
        parts.append(lambda text=text: _named(lm, _need(index, "name:"), text))
    for part in parts:
        try:
            hits += part()
        except (InvalidInput, IndexFault) as error:
            notes.append(str(error))
    if asked.layers is not None:
        low, high = asked.layers
        hits = [hit for hit in hits if low <= hit.layer <= high]
    words = [*asked.promote, *asked.exact, *asked.suppress]
    tokens = {word: lm.token_strings(lm.encode(word)[0]) for word in words}
    return Search(SCHEMA, query, asked, tokens, hits, notes)


def _forms(lm: Any, word: str) -> list[int]:
    """The single tokens that write a word: as it stands, with a space before it, and capitalised.

    Raises:
        NotOneToken: no form is one token; the message of the form with a space is the most useful one.
    """
    found: list[int] = []
    bare = word.strip()
    for text in dict.fromkeys([word, f" {bare}", bare, f" {bare.capitalize()}", bare.capitalize()]):
        try:
            token = lm.single_token(text)
        except NotOneToken:
            continue
        if token not in found:
            found.append(token)
    return found or [lm.single_token(f" {bare}")]


def _promoting(lm: Any, index: Any, ids: list[int], top: int) -> Iterator[Hit]:
    if index is None:
        for token in ids:
            text = lm.token_strings([token])[0]
            yield from _scoring(lm, values_scoring(lm, token, top), "promotes", text)
        return
    rows = [(row, token) for token in ids for row in index.promoting(token, top).rows()]
    for row, token in sorted(rows, key=lambda pair: -pair[0]["score"])[:top]:
        text = lm.token_strings([token])[0]
        yield Hit(row["layer"], row["index"], "promotes", text, row["rank"], row["score"], list(row["top_tokens"])[:12])


def _suppressing(lm: Any, ids: list[int], top: int) -> Iterator[Hit]:
    for token in ids[:1]:
        text = lm.token_strings([token])[0]
        yield from _scoring(lm, values_scoring(lm, token, top, lowest=True), "suppresses", text)


def _triggered(index: Any, text: str, top: int) -> Iterator[Hit]:
    for row in index.search(f'"{text}"', top, context=12).rows():
        tokens = index.value_tokens(row["layer"], row["index"], 12).columns["token"]
        shown = f"{row['prefix']}[{row['token']}]"
        yield Hit(row["layer"], row["index"], "trigger", shown, row["rank"], row["coefficient"], list(tokens)[:12])


def _named(lm: Any, index: Any, text: str) -> Iterator[Hit]:
    for row in index.labels(of="all").rows():
        if text.lower() in row["label"].lower() and row["kind"] != "random value":
            if row["kind"] == "head":
                yield Hit(row["layer"], row["index"], "name", row["label"], None, None, [], "head")
            else:
                yield _hit(lm, row["layer"], row["index"], "name", row["label"], None, None)


def _scoring(lm: Any, values: list[Any], why: str, text: str) -> Iterator[Hit]:
    """Values that score a token, with their own top tokens, which are read layer by layer."""
    shown: dict[tuple[int, int], list[str]] = {}
    for layer in {value.layer for value in values}:
        indices = [value.index for value in values if value.layer == layer]
        ids, _ = lm.values.top(layer, indices, 12)
        shown |= {(layer, i): lm.token_strings(row) for i, row in zip(indices, ids, strict=True)}
    for value in values:
        yield Hit(value.layer, value.index, why, text, None, value.score, shown[value.layer, value.index])


def _hit(lm: Any, layer: int, i: int, why: str, found: str, rank: int | None, score: float | None) -> Hit:
    lm.memory(layer, i)
    return Hit(layer, i, why, found, rank, score, lm.values.top_tokens(layer, i, 12))


def _need(index: Any, what: str) -> Any:
    if index is None:
        raise IndexFault(f"{what} needs an index", why="none is open", instead="Start with `unembed serve --index DIR`")
    return index
