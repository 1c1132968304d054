"""Search for memories (FFN neurons) with one query string.

| query | finds memories |
|---|---|
| `breakfast` | that promote the word in any of its single-token forms |
| `-breakfast` | that suppress it |
| `"·Paris"` | that promote exactly this token (`·` or a space in front) |
| `ctx:"capital of"` | with the words in one of their triggers |
| `name:city` | with the words in their label; heads too |
| `layer:3-5` | only in these layers |
| `L4M17`, `4.17` | this one |
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unembed.errors import IndexFault, InvalidInput
from unembed.memories.token_ranking import ScoredValue, values_scoring, word_forms
from unembed.memories.values import Values
from unembed.models.decoder import Decoder

if TYPE_CHECKING:
    from unembed.index.index import Index

SCHEMA = "unembed.search/1"
_PART = re.compile(r'(?P<kind>ctx:|name:|layer:|-)?(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+))')
_MEMORY = re.compile(r"[Ll](\d{1,6})[MmDd.](\d{1,7})")
_LAYERS = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True)
class ParsedQuery:
    """The parts of a query."""

    promote: list[str] = field(default_factory=list)
    suppress: list[str] = field(default_factory=list)
    exact: list[str] = field(default_factory=list)
    context: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    layers: tuple[int, int] | None = None
    memory: tuple[int, int] | None = None


@dataclass(frozen=True)
class Hit:
    """A memory, or a head found by its label, and why it matches."""

    layer: int
    index: int
    why: str
    """"promotes", "suppresses", "trigger" or "name"."""
    found: str
    """The token, the context or the label."""
    rank: int | None
    """Rank of the token among the top tokens of the value, from 1."""
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
    understood: ParsedQuery
    tokens: dict[str, list[str]]
    """How each word is split by the tokenizer."""
    hits: list[Hit]
    notes: list[str]
    """Parts of the query that failed, and why."""

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return dataclasses.asdict(self)


def understand(query: str) -> ParsedQuery:
    """The parts of a query; every string is a valid query."""
    found = ParsedQuery()
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


def search(lm: Decoder, index: Index | None, query: str, top: int = 50) -> Search:
    """The memories that match a query, best first within each part of it.

    Args:
        lm: the model.
        index: of the model. Without one, triggers and names cannot be searched, and values are scored directly.
        query: see the table above.
        top: hits for each part of the query.
    """
    parsed = understand(query)
    hits: list[Hit] = []
    notes: list[str] = []
    parts: list[Callable[[], Iterator[Hit]]] = []
    if parsed.memory is not None:
        layer, i = parsed.memory
        parts.append(lambda: iter([_hit(lm, layer, i, "memory", "", None, None)]))
    for word in parsed.promote:
        parts.append(lambda word=word: _promoting(lm, index, word_forms(lm, word), top))
    for text in parsed.exact:
        parts.append(lambda text=text: _promoting(lm, index, [lm.single_token(text)], top))
    for word in parsed.suppress:
        parts.append(lambda word=word: _suppressing(lm, word_forms(lm, word), top))
    for text in parsed.context:
        parts.append(lambda text=text: _triggered(_need(index, "ctx:"), text, top))
    for text in parsed.names:
        parts.append(lambda text=text: _named(lm, _need(index, "name:"), text))
    for part in parts:
        try:
            hits += part()
        except (InvalidInput, IndexFault) as error:
            notes.append(str(error))
    if parsed.layers is not None:
        low, high = parsed.layers
        hits = [hit for hit in hits if low <= hit.layer <= high]
    words = [*parsed.promote, *parsed.exact, *parsed.suppress]
    tokens = {word: lm.token_strings(lm.encode(word)[0]) for word in words}
    return Search(SCHEMA, query, parsed, tokens, hits, notes)


def _promoting(lm: Decoder, index: Index | None, ids: list[int], top: int) -> Iterator[Hit]:
    if index is None:
        for token in ids:
            text = lm.token_strings([token])[0]
            yield from _scoring(lm, values_scoring(lm, token, top), "promotes", text)
        return
    rows = [(row, token) for token in ids for row in index.promoting(token, top).rows()]
    for row, token in sorted(rows, key=lambda pair: -pair[0]["score"])[:top]:
        text = lm.token_strings([token])[0]
        yield Hit(row["layer"], row["index"], "promotes", text, row["rank"], row["score"], list(row["top_tokens"])[:12])


def _suppressing(lm: Decoder, ids: list[int], top: int) -> Iterator[Hit]:
    """The values with the lowest score for any form of a word, each under the form that it suppresses most."""
    lowest: dict[tuple[int, int], tuple[float, int, ScoredValue]] = {}
    for token in ids:
        for value in values_scoring(lm, token, top, lowest=True):
            memory, entry = (value.layer, value.index), (value.score, token, value)
            if memory not in lowest or entry[0] < lowest[memory][0]:
                lowest[memory] = entry
    for _, token, value in sorted(lowest.values(), key=lambda entry: entry[0])[:top]:
        yield from _scoring(lm, [value], "suppresses", lm.token_strings([token])[0])


def _triggered(index: Index, text: str, top: int) -> Iterator[Hit]:
    for row in index.search(f'"{text}"', top, context=12).rows():
        tokens = index.value_tokens(row["layer"], row["index"], 12).columns["token"]
        shown = f"{row['prefix']}[{row['token']}]"
        yield Hit(row["layer"], row["index"], "trigger", shown, row["rank"], row["coefficient"], list(tokens)[:12])


def _named(lm: Decoder, index: Index, text: str) -> Iterator[Hit]:
    for row in index.labels(of="all").rows():
        if text.lower() in row["label"].lower() and row["kind"] != "random value":
            if row["kind"] == "head":
                yield Hit(row["layer"], row["index"], "name", row["label"], None, None, [], "head")
            else:
                yield _hit(lm, row["layer"], row["index"], "name", row["label"], None, None)


def _scoring(lm: Decoder, values: list[ScoredValue], why: str, text: str) -> Iterator[Hit]:
    """Values that score a token, with their own top tokens, which are read layer by layer."""
    shown: dict[tuple[int, int], list[str]] = {}
    for layer in {value.layer for value in values}:
        indices = [value.index for value in values if value.layer == layer]
        ids, _ = Values(lm).top(layer, indices, 12)
        shown |= {(layer, i): lm.token_strings(row) for i, row in zip(indices, ids, strict=True)}
    for value in values:
        yield Hit(value.layer, value.index, why, text, None, value.score, shown[value.layer, value.index])


def _hit(lm: Decoder, layer: int, i: int, why: str, found: str, rank: int | None, score: float | None) -> Hit:
    lm.memory(layer, i)
    return Hit(layer, i, why, found, rank, score, Values(lm).top_tokens(layer, i, 12))


def _need(index: Index | None, what: str) -> Index:
    if index is None:
        raise IndexFault(f"{what} needs an index", why="none is open", instead="Start with `unembed serve --index DIR`")
    return index
