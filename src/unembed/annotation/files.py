"""Read annotation files, in which people describe the patterns that they see in the top tokens of value vectors.

The file lists each vector's top tokens with short definitions. The annotator looks for patterns that at least four
tokens share, describes each, and states whether it is semantic, syntactic or names. The file is JSON, written by
`from_values.export`; the annotator fills in `patterns`:

    {"schema": "unembed.annotation/1", "annotator": "", "instructions": [...], "provenance": {...},
     "vectors": [{"vector": "L3M17", "tokens": [{"number": 0, "text": " dog", "about": "a member of ..."}, ...],
                  "patterns": [{"description": "animals", "kind": "semantic", "tokens": [0, 4, 5, 9]}]}]}

Source: Geva et al. 2022, section 4 and appendix A.2.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from unembed.annotation.label import Label
from unembed.annotation.rules import NONE, RULES, check_pattern
from unembed.errors import InvalidInput, reading
from unembed.names import MemoryIndex, parse_signed_memory
from unembed.results import Provenance, Table

SCHEMA = "unembed.annotation/1"
KINDS = (*RULES["value"].kinds, "stopwords")
INSTRUCTIONS = (
    "Each vector is shown by the tokens it promotes most, most promoted first. A token may be a word, a part of a "
    "word, a number or a sign; a space before it is part of it.",
    f"Look for patterns: anything that at least {RULES['value'].at_least} of the tokens share and that you can put "
    "into words.",
    "For each pattern write a short description, its kind, and the numbers of its tokens.",
    "Kinds: semantic (what the tokens mean), syntactic (their part of speech or form), names (of people, places, "
    "organisations), stopwords (function words and punctuation).",
    "A token may be in several patterns or in none; a vector may have no pattern. Leave its list empty then.",
)


@dataclass(frozen=True)
class Pattern:
    """A pattern that one annotator found in one vector."""

    description: str
    kind: str
    tokens: tuple[int, ...]
    """Positions of the pattern's tokens in the vector's list, counted from 0."""


@dataclass(frozen=True)
class Annotation:
    """One annotator's patterns for a set of vectors."""

    annotator: str
    vectors: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    """Ids of the tokens in each vector's list; two annotations can be compared if these are equal."""
    patterns: tuple[tuple[Pattern, ...], ...]

    def coverage(self, kinds: Sequence[str] = KINDS) -> list[float]:
        """Return, for each vector, the share of its tokens that are in at least one pattern of these kinds."""
        return [
            len({t for p in found if p.kind in kinds for t in p.tokens}) / len(ids)
            for found, ids in zip(self.patterns, self.ids, strict=True)
        ]

    def token_labels(self, kinds: Sequence[str]) -> list[bool]:
        """Return, for each token of each vector, True if it is in a pattern of these kinds."""
        return [
            any(t in p.tokens for p in found if p.kind in kinds)
            for found, ids in zip(self.patterns, self.ids, strict=True)
            for t in range(len(ids))
        ]


def load(path: str | os.PathLike[str]) -> Annotation:
    """Read an annotation file that a person has filled in.

    Raises:
        InvalidInput: the file cannot be read or is not an annotation file, or a pattern breaks the instructions.
    """
    with reading(f"cannot read {path}", instead="Give a file that `unembed annotate export` wrote"):
        sheet = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(sheet, dict) or sheet.get("schema") != SCHEMA:
        raise InvalidInput(
            f"{path} is not an annotation file",
            why=f"its schema is not {SCHEMA!r}",
            instead="Give a file that `unembed annotate export` wrote",
        )
    try:
        vectors = sheet["vectors"]
        ids = tuple(tuple(int(t["id"]) for t in v["tokens"]) for v in vectors)
        patterns = tuple(
            tuple(_pattern(p, f"{path}, {v['vector']}", len(v["tokens"])) for p in v["patterns"]) for v in vectors
        )
        names = tuple(str(v["vector"]) for v in vectors)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path} is damaged", why=f"{type(error).__name__} {error}") from error
    annotator = str(sheet.get("annotator") or Path(path).stem)
    return Annotation(annotator, names, ids, patterns)


def _pattern(stored: Any, where: str, n: int) -> Pattern:
    description, kind = str(stored["description"]).strip(), str(stored["kind"]).strip()
    if not description:
        raise InvalidInput(f"a pattern of {where}", why="it has no description")
    members = check_pattern(
        f"{where}: pattern {description!r}", kind, [int(t) for t in stored["tokens"]], RULES["value"], KINDS, n
    )
    return Pattern(description, kind, tuple(members))


def patterns_table(annotations: Sequence[Annotation]) -> Table:
    """Return a table with one row for each pattern of each annotator."""
    rows = [
        (a.annotator, vector, p.description, p.kind, list(p.tokens), [ids[t] for t in p.tokens])
        for a in annotations
        for vector, ids, found in zip(a.vectors, a.ids, a.patterns, strict=True)
        for p in found
    ]
    names = ("annotator", "vector", "description", "kind", "positions", "ids")
    return Table.of_rows("Patterns named by people", names, rows, Provenance("annotations", None, "none"))


def summary(annotations: Sequence[Annotation]) -> Table:
    """Return a table with each annotator's number of vectors, patterns per vector, and share of tokens in a pattern."""
    columns: dict[str, list] = {"annotator": [a.annotator for a in annotations]}
    columns["vectors"] = [len(a.vectors) for a in annotations]
    columns["patterns_per_vector"] = [sum(map(len, a.patterns)) / max(len(a.vectors), 1) for a in annotations]
    for name, kinds in {"in_a_pattern": KINDS[:3], **{kind: (kind,) for kind in KINDS}}.items():
        columns[name] = [sum(a.coverage(kinds)) / max(len(a.vectors), 1) for a in annotations]
    return Table("Annotations", columns, Provenance("annotations", None, "none"))


@runtime_checkable
class LabelStore(Protocol):
    """The methods that an index needs to store and list labels."""

    def memory(self, layer: int, index: MemoryIndex) -> tuple[int, int]:
        """Return layer and index of a memory, after checking that the index contains it."""
        ...

    def add_labels(self, labels: Iterable[Label]) -> list[int]:
        """Append all labels, or none if one is invalid; return their ids."""
        ...

    def labels(self, layer: int | None = None, index: int | None = None) -> Table:
        """Return the current labels: all, or those of one layer or one memory."""
        ...


def add_to_index(annotations: Sequence[Annotation], store: LabelStore) -> int:
    """Add every pattern to an index, as a label of the memory whose value vector it describes.

    A vector without patterns gets the label `NONE`. A label that the index already has from the same author is not
    added again.

    Returns:
        The number of labels that were added.

    Raises:
        InvalidInput: a vector is not the value vector of a memory; then nothing is appended.
        OutOfRange: the index has no such memory; then nothing is appended.
    """
    rows = []
    for annotation in annotations:
        for vector, found in zip(annotation.vectors, annotation.patterns, strict=True):
            if (written := parse_signed_memory(vector)) is None:
                raise InvalidInput(f"vector {vector!r}", why="an index labels memories only, such as L3M17")
            layer, index = store.memory(*written.address)
            pole = {"pole": written.pole} if written.pole == "negative" else {}
            for p in found or (Pattern(NONE, "", ()),):
                notes = {"pattern": p.kind or None, "members": list(p.tokens), **pole}
                rows.append(Label(layer, index, p.description, annotation.annotator, "value", notes))
    known = {(r["layer"], r["index"], r["label"], r["author"]) for r in store.labels().rows()}
    return len(store.add_labels(r for r in rows if (r.layer, r.index, r.label, r.author) not in known))
