"""Group memories (FFN neurons) by the label that people gave them; a group is called a concept."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from unembed.annotation.rules import NONE
from unembed.errors import InvalidInput
from unembed.memories.values import Values
from unembed.models.decoder import Decoder

SCHEMA = "unembed.concept/1"
_TOP = 30


@dataclass(frozen=True)
class Member:
    """A memory to which at least one annotator gave the concept's label."""

    layer: int
    index: int
    authors: list[str]
    annotators: int
    """Number of people who labelled it, or reported that it has no pattern."""
    top_tokens: list[str]


@dataclass(frozen=True)
class Concept:
    """All memories with one label."""

    schema: str
    name: str
    members: list[Member]
    tokens: list[tuple[str, int]]
    """Tokens that are among the 30 top tokens of at least two members, with the number of these members."""
    by_layer: list[int]
    agreement: float | None
    """The share of a member's annotators who gave this label, averaged over members with at least two annotators; None
    if there are no such members."""


def concepts(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every label as a dict with its name, number of memories and authors; most frequent labels first."""
    found: dict[str, tuple[set[tuple[int, int]], set[str]]] = defaultdict(lambda: (set(), set()))
    for row in _of_memories(rows):
        if row["label"] != NONE:
            members, authors = found[_name(row)]
            members.add((row["layer"], row["index"]))
            authors.add(row["author"])
    listed = [{"name": n, "members": len(m), "authors": sorted(a)} for n, (m, a) in found.items()]
    return sorted(listed, key=lambda one: (-one["members"], one["name"]))


def concept(lm: Decoder, rows: Iterable[dict[str, Any]], name: str) -> Concept:
    """Return the concept of a label: all memories that have this label. Upper and lower case count as equal.

    Args:
        rows: the labels of the model's index, as `Index.labels` lists them.

    Raises:
        InvalidInput: no memory has this label.
    """
    of_memory = defaultdict(list)
    for row in _of_memories(rows):
        of_memory[row["layer"], row["index"]].append(row)
    name, members, counted = name.strip().casefold(), [], Counter[str]()
    for (layer, index), labels in sorted(of_memory.items()):
        authors = sorted({row["author"] for row in labels if _name(row) == name})
        if authors:
            top = Values(lm).top_tokens(layer, index, _TOP)
            counted.update(set(top))
            members.append(Member(layer, index, authors, len({row["author"] for row in labels}), top[:12]))
    if not members:
        raise InvalidInput(
            f"concept {name!r}", why="no memory has this label", instead="Use a label that GET /concepts lists"
        )
    shares = [len(one.authors) / one.annotators for one in members if one.annotators > 1]
    layers = Counter(one.layer for one in members)
    return Concept(
        SCHEMA,
        name,
        members,
        [(token, n) for token, n in counted.most_common(_TOP) if n > 1],
        [layers[n] for n in range(lm.n_layers)],
        sum(shares) / len(shares) if shares else None,
    )


def memories_named(rows: Iterable[dict[str, Any]], name: str, author: str) -> set[tuple[int, int]]:
    """Return (layer, index) of the memories to which one author gave a label. Upper and lower case count as equal.

    Raises:
        InvalidInput: the label is `NONE`.
    """
    if (name := name.strip().casefold()) == NONE.casefold():
        raise InvalidInput(
            f"concept {name!r}", why="this label means that a memory has no pattern", instead="Choose another"
        )
    named = (row for row in _of_memories(rows) if row["author"] == author and _name(row) == name)
    return {(row["layer"], row["index"]) for row in named}


def _of_memories(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the labels of random vectors, which are mixed into the annotation queue as a control."""
    return [row for row in rows if row["kind"] != "random value"]


def _name(row: dict[str, Any]) -> str:
    return row["label"].strip().casefold()
