"""Concepts as people made them: memories that bear one name, what they share, how far their annotators agree."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from unembed.concepts.annotation.queue import NONE
from unembed.errors import InvalidInput

SCHEMA = "unembed.concept/1"
_TOP = 30


@dataclass(frozen=True)
class Member:
    """A memory that bears the name."""

    layer: int
    index: int
    authors: list[str]
    """Who gave it this name."""
    annotators: int
    """How many people have named it in any way, or said that it has no pattern."""
    top_tokens: list[str]


@dataclass(frozen=True)
class Concept:
    """All memories of one name."""

    schema: str
    name: str
    members: list[Member]
    tokens: list[tuple[str, int]]
    """Tokens that several members promote among their 30 top ones, and how many members do."""
    by_layer: list[int]
    """Members in each layer."""
    agreement: float | None
    """Of members that several people looked at, the mean share of them who gave this name; None without such."""

    def to_dict(self) -> dict[str, Any]:
        """The view as JSON can hold it."""
        return dataclasses.asdict(self)


def concepts(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every name among labels, with its number of memories and authors, the most used first."""
    found: dict[str, tuple[set[tuple[int, int]], set[str]]] = defaultdict(lambda: (set(), set()))
    for row in _of_memories(rows):
        if row["label"] != NONE:
            members, authors = found[_name(row)]
            members.add((row["layer"], row["index"]))
            authors.add(row["author"])
    listed = [{"name": n, "members": len(m), "authors": sorted(a)} for n, (m, a) in found.items()]
    return sorted(listed, key=lambda one: (-one["members"], one["name"]))


def concept(lm: Any, rows: Iterable[dict[str, Any]], name: str) -> Concept:
    """The memories that bear a name, letter case aside.

    Args:
        lm: the model.
        rows: labels of its index, as `Index.labels` lists them.
        name: the name.

    Raises:
        InvalidInput: no memory bears it.
    """
    of_memory = defaultdict(list)
    for row in _of_memories(rows):
        of_memory[row["layer"], row["index"]].append(row)
    name, members, counted = name.strip().casefold(), [], Counter[str]()
    for (layer, index), labels in sorted(of_memory.items()):
        authors = sorted({row["author"] for row in labels if _name(row) == name})
        if authors:
            top = lm.values.top_tokens(layer, index, _TOP)
            counted.update(set(top))
            members.append(Member(layer, index, authors, len({row["author"] for row in labels}), top[:12]))
    if not members:
        raise InvalidInput(f"concept {name!r}", why="no memory bears this name", instead="Choose one of GET /concepts")
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
    """The memories, layer and index, that one person has given a name, letter case aside.

    Raises:
        InvalidInput: the name is the one that says that there is no pattern.
    """
    if (name := name.strip().casefold()) == NONE.casefold():
        raise InvalidInput(f"concept {name!r}", why="it says that a memory has no pattern", instead="Choose another")
    named = (row for row in _of_memories(rows) if row["author"] == author and _name(row) == name)
    return {(row["layer"], row["index"]) for row in named}


def _of_memories(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Labels of memories; those of the blind queue's random vectors are not."""
    return [row for row in rows if row["kind"] != "random value"]


def _name(row: dict[str, Any]) -> str:
    return row["label"].strip().casefold()
