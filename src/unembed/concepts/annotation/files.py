"""Concepts named by people: a file to fill in, read back, and how far annotators and the program agree.

A person sees each vector's top tokens, each with a short definition, finds patterns that at least four tokens share,
describes each and says whether it is semantic, syntactic or names. The file is JSON, made by `export` and returned with
`patterns` filled in:

    {"schema": "unembed.annotation/1", "annotator": "", "instructions": [...], "provenance": {...},
     "vectors": [{"vector": "L3.17", "tokens": [{"number": 0, "text": " dog", "about": "a member of ..."}, ...],
                  "patterns": [{"description": "animals", "kind": "semantic", "tokens": [0, 4, 5, 9]}]}]}

Source: Geva et al. 2022, section 4 and appendix A.2.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from unembed.concepts.annotation.agreement import cohen_kappa, fleiss_kappa
from unembed.concepts.annotation.queue import NONE
from unembed.concepts.token_classes import MIN_TOKENS
from unembed.concepts.value_concepts import VectorConcepts, model_classes
from unembed.concepts.wordnet import wordnet
from unembed.errors import InvalidInput
from unembed.index.labels import Label
from unembed.results import Provenance, Table, write_whole

SCHEMA = "unembed.annotation/1"
KINDS = ("semantic", "syntactic", "names", "stopwords")
INSTRUCTIONS = (
    "Each vector is shown by the tokens it promotes most, most promoted first. A token may be a word, a part of a "
    "word, a number or a sign; a space before it is part of it.",
    f"Look for patterns: anything that at least {MIN_TOKENS} of the tokens share and that you can put into words.",
    "For each pattern write a short description, its kind, and the numbers of its tokens.",
    "Kinds: semantic (what the tokens mean), syntactic (their part of speech or form), names (of people, places, "
    "organisations), stopwords (function words and punctuation).",
    "A token may be in several patterns or in none; a vector may have no pattern. Leave its list empty then.",
)


@dataclass(frozen=True)
class Pattern:
    """What one annotator sees in one vector."""

    description: str
    kind: str
    tokens: tuple[int, ...]
    """Places in the vector's list, from 0."""


@dataclass(frozen=True)
class Annotation:
    """One annotator's patterns for a set of vectors."""

    annotator: str
    vectors: tuple[str, ...]
    n_tokens: tuple[int, ...]
    ids: tuple[tuple[int, ...], ...]
    """Token ids of each vector's list, by which two files are known to be about the same lists."""
    patterns: tuple[tuple[Pattern, ...], ...]

    def coverage(self, kinds: Sequence[str] = KINDS) -> list[float]:
        """The share of each vector's tokens in at least one pattern of these kinds."""
        return [
            len({t for p in found if p.kind in kinds for t in p.tokens}) / n
            for found, n in zip(self.patterns, self.n_tokens, strict=True)
        ]

    def token_labels(self, kinds: Sequence[str]) -> list[bool]:
        """For every token of every vector whether it is in a pattern of these kinds."""
        return [
            any(t in p.tokens for p in found if p.kind in kinds)
            for found, n in zip(self.patterns, self.n_tokens, strict=True)
            for t in range(n)
        ]


def export(found: VectorConcepts, path: str | os.PathLike[str]) -> Path:
    """Write a file to annotate: instructions, and every vector's tokens with a definition where WordNet has one.

    The program's own concepts are left out, so that they cannot guide anyone.

    Raises:
        InvalidInput: the file cannot be written.
    """
    classes, net = model_classes(found.lm), wordnet()
    vectors = []
    for label, ids in zip(found.labels, found.ids.tolist(), strict=True):
        texts = found.lm.token_strings(ids)
        tokens = []
        for number, (token, text) in enumerate(zip(ids, texts, strict=True)):
            word = classes.tokens[token].word
            about = net.definition(word) if word else None
            tokens.append({"number": number, "id": token, "text": text, "about": about or ""})
        vectors.append({"vector": label, "tokens": tokens, "patterns": []})
    sheet = {
        "schema": SCHEMA,
        "annotator": "",
        "instructions": list(INSTRUCTIONS),
        "kinds": list(KINDS),
        "provenance": found.provenance.to_dict(),
        "vectors": vectors,
    }
    return write_whole(path, json.dumps(sheet, ensure_ascii=False, indent=1) + "\n")


def load(path: str | os.PathLike[str]) -> Annotation:
    """Read a filled-in file.

    Raises:
        InvalidInput: the file is missing or no such file, or a pattern is not as the instructions say.
    """
    try:
        sheet = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {path}", why=str(error), instead="Give a file that export wrote") from error
    if not isinstance(sheet, dict) or sheet.get("schema") != SCHEMA:
        raise InvalidInput(f"{path} is no annotation", why=f"its schema is not {SCHEMA!r}")
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
    return Annotation(annotator, names, tuple(len(row) for row in ids), ids, patterns)


def _pattern(stored: Any, where: str, n: int) -> Pattern:
    description, kind = str(stored["description"]).strip(), str(stored["kind"]).strip()
    tokens = tuple(sorted({int(t) for t in stored["tokens"]}))
    what = f"{where}: pattern {description!r}"
    if not description:
        raise InvalidInput(f"{where}: a pattern", why="it has no description")
    if kind not in KINDS:
        raise InvalidInput(what, why=f"its kind {kind!r} is none of {', '.join(KINDS)}")
    if tokens and not 0 <= tokens[0] <= tokens[-1] < n:
        raise InvalidInput(what, why=f"its tokens must be numbers from 0 to {n - 1}")
    if len(tokens) < MIN_TOKENS:
        raise InvalidInput(what, why=f"it has {len(tokens)} tokens, and a pattern needs {MIN_TOKENS}")
    return Pattern(description, kind, tokens)


def automatic(found: VectorConcepts) -> Annotation:
    """The program's concepts in the form of an annotation, by the annotator "unembed"."""
    patterns = []
    for ids, concepts in zip(found.ids.tolist(), found.concepts, strict=True):
        patterns.append(
            tuple(
                Pattern(c.name, c.kind, tuple(i for i, t in enumerate(ids) if t in c.members))
                for c in concepts
                if c.kind in KINDS
            )
        )
    ids = tuple(tuple(row) for row in found.ids.tolist())
    return Annotation("unembed", found.labels, tuple(len(row) for row in ids), ids, tuple(patterns))


def agreement(annotations: Sequence[Annotation], provenance: Provenance | None = None) -> Table:
    """Kappa of all pairs and of all annotators together, token by token: is it in a concept, in all and by kind?

    Columns: question, annotators, tokens, share of tokens said yes by each, Cohen's kappa for two annotators or Fleiss'
    for all.

    Raises:
        InvalidInput: fewer than two annotations, or they are not of the same lists.
    """
    if len(annotations) < 2:
        raise InvalidInput(f"{len(annotations)} annotation", why="agreement is between two or more")
    first = annotations[0]
    for other in annotations[1:]:
        if other.vectors != first.vectors or other.ids != first.ids:
            raise InvalidInput(
                f"annotations of {first.annotator} and {other.annotator}",
                why="they are not of the same lists of tokens",
            )
    columns: dict[str, list] = {n: [] for n in ("question", "annotators", "tokens", "said_yes", "kappa", "statistic")}
    questions = {"in a concept": KINDS[:3], **{kind: (kind,) for kind in KINDS}}
    for question, kinds in questions.items():
        labels = [a.token_labels(kinds) for a in annotations]
        groups = [tuple(pair) for pair in combinations(range(len(annotations)), 2)]
        if len(annotations) > 2:
            groups.append(tuple(range(len(annotations))))
        for group in groups:
            chosen = [labels[i] for i in group]
            pair = len(group) == 2
            kappa = cohen_kappa(*chosen) if pair else fleiss_kappa(list(zip(*chosen, strict=True)))
            row = (
                question,
                " and ".join(annotations[i].annotator for i in group),
                len(chosen[0]),
                [sum(c) / len(c) for c in chosen],
                kappa,
                "Cohen" if pair else "Fleiss",
            )
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
    return Table("Agreement of annotators", columns, provenance or Provenance("annotations", None, "none"))


def patterns_table(annotations: Sequence[Annotation]) -> Table:
    """One row for each pattern of each annotator."""
    rows = [
        (a.annotator, vector, p.description, p.kind, list(p.tokens), [ids[t] for t in p.tokens])
        for a in annotations
        for vector, ids, found in zip(a.vectors, a.ids, a.patterns, strict=True)
        for p in found
    ]
    names = ("annotator", "vector", "description", "kind", "places", "ids")
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    return Table("Patterns named by people", columns, Provenance("annotations", None, "none"))


def summary(annotations: Sequence[Annotation]) -> Table:
    """For each annotator: vectors, patterns for each, and the share of tokens in a pattern, in all and by kind."""
    columns: dict[str, list] = {"annotator": [a.annotator for a in annotations]}
    columns["vectors"] = [len(a.vectors) for a in annotations]
    columns["patterns_per_vector"] = [sum(map(len, a.patterns)) / max(len(a.vectors), 1) for a in annotations]
    for name, kinds in {"in_a_pattern": KINDS[:3], **{kind: (kind,) for kind in KINDS}}.items():
        columns[name] = [sum(a.coverage(kinds)) / max(len(a.vectors), 1) for a in annotations]
    return Table("Annotations", columns, Provenance("annotations", None, "none"))


@runtime_checkable
class LabelStore(Protocol):
    """What an index offers for labels."""

    def add_labels(self, labels: Iterable[Label]) -> list[int]:
        """Append labels, all or none; their numbers."""
        ...

    def labels(self, layer: int | None = None, index: int | None = None) -> Table:
        """The labels that hold."""
        ...


def add_to_index(annotations: Sequence[Annotation], store: LabelStore) -> int:
    """Append every pattern to an index as a label of its value; how many were new.

    A vector in which an annotator found nothing gets the label that says so. What the same person has said of the same
    value in the same words is not said twice.

    Raises:
        InvalidInput: a vector is no memory; nothing is appended then.
    """
    rows = []
    for annotation in annotations:
        for vector, found in zip(annotation.vectors, annotation.patterns, strict=True):
            place = _MEMORY.fullmatch(vector)
            if place is None:
                raise InvalidInput(f"vector {vector!r}", why="an index labels memories only, such as L3.17")
            for p in found or (Pattern(NONE, "", ()),):
                notes = {"pattern": p.kind or None, "members": list(p.tokens)}
                rows.append(Label(int(place[1]), int(place[2]), p.description, annotation.annotator, "value", notes))
    known = {(r["layer"], r["index"], r["label"], r["author"]) for r in store.labels().rows()}
    return len(store.add_labels(r for r in rows if (r.layer, r.index, r.label, r.author) not in known))


_MEMORY = re.compile(r"L(\d+)\.(\d+)")
