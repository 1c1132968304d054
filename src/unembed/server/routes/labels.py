"""Routes for labels of memories (FFN neurons) and heads: add, list, export, import, annotate, measure agreement."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BaseModel, Field, ValidationError

from unembed import annotation
from unembed.annotation import Concept, concept, concepts, memories_named
from unembed.errors import InvalidInput
from unembed.index import Label
from unembed.server import requests as r
from unembed.server.state import ServerState

if TYPE_CHECKING:
    from unembed.annotation.queue import Item

routes = APIRouter(tags=["labels"])

What = Literal["key", "value"]
OptionalNumber = Annotated[int | None, Query(ge=0, le=r.LARGEST)]


class ConceptAdded(BaseModel):
    """The labels that were added when a person gave several memories the same name (a concept)."""

    ids: list[int] = Field(description="the new labels, by which they are withdrawn")
    known: int = Field(description="memories to which this author had given the name before")


@routes.get("/labels")
async def get_labels(
    state: r.State,
    layer: OptionalNumber = None,
    index: OptionalNumber = None,
    of: Literal["memory", "head", "all"] = "memory",
) -> dict[str, Any]:
    """The current labels (those not withdrawn) of one memory or head, of a layer, or of all."""
    if index is not None and layer is None:
        raise InvalidInput("the index of a memory is given without its layer", instead="Give both")
    return state.require_index().labels(layer, index, of=of).to_dict()


@routes.post("/labels")
async def post_label(state: r.State, query: r.LabelRequest) -> dict[str, Any]:
    """Add a label to a memory or a head."""
    notes = query.model_dump(include={"note", "tags", "confidence", "verdict"})
    number = state.require_index().add_label(
        query.layer,
        query.index,
        query.label,
        author=query.author,
        kind=query.kind,
        notes={name: value for name, value in notes.items() if value},
    )
    state.label_version += 1
    return {"id": number}


@routes.post("/labels/{number}/withdraw")
async def post_withdrawal(state: r.State, number: r.Index, query: r.WithdrawRequest) -> dict[str, Any]:
    """Withdraw a label. Its row stays in the database, and a row that withdraws it is added."""
    state.require_index().withdraw_label(number, author=query.author)
    state.label_version += 1
    return {"withdrawn": number}


@routes.get("/concepts")
async def get_concepts(state: r.State) -> dict[str, Any]:
    """The names that people have given to memories, each with the number of memories that have it."""
    return {"concepts": concepts(state.require_index().labels().rows())}


@routes.post("/concepts")
def post_concept(state: r.State, query: r.ConceptRequest) -> ConceptAdded:
    """Give several memories the same label. An error is returned if one of them does not exist."""
    corpus = state.require_index()
    members = dict.fromkeys((member.layer, member.index) for member in query.members)
    for layer, index in members:
        corpus.memory(layer, index)
    known = memories_named(corpus.labels().rows(), query.name, query.author)
    new = [member for member in members if member not in known]
    name, author = query.name.strip(), query.author
    ids = corpus.add_labels(Label(layer, index, name, author) for layer, index in new)
    state.label_version += bool(ids)
    return ConceptAdded(ids=ids, known=len(members) - len(ids))


@routes.get("/concepts/{name:path}", responses={200: {"model": Concept}})
async def get_concept(state: r.State, name: Annotated[str, Path(max_length=2000)]) -> dict[str, Any]:
    """All memories with one label: the tokens that several of them promote, their layers, and annotator agreement."""
    rows = state.require_index().labels().rows()
    return await state.run_in_pool(lambda: dataclasses.asdict(concept(state.lm, rows, name)), "long")


@dataclasses.dataclass(frozen=True)
class Queue:
    """The settings with which the items of an annotation queue are drawn at random."""

    what: What = "value"
    seed: r.Seed = 0
    per_layer: Annotated[int, Query(ge=1, le=100)] = 10
    random_per_layer: Annotated[int, Query(ge=0, le=100)] = 5

    def items(self, state: ServerState) -> list[Item]:
        """Return the items in order."""
        return annotation.annotation_queue(
            state.lm, self.what, per_layer=self.per_layer, random_per_layer=self.random_per_layer, seed=self.seed
        )


@routes.get("/annotations/queue")
def get_queue(
    state: r.State, queue: Annotated[Queue, Depends()], author: Annotated[str, Query(max_length=80)] = ""
) -> dict[str, Any]:
    """How many items there are to annotate, which of them this author has annotated, and the rules for annotators."""
    corpus = state.require_index()
    found = queue.items(state)
    labelled = {(row["kind"], row["layer"], row["index"]) for row in corpus.labels().rows() if row["author"] == author}
    done = [item.number for item in found if (item.what, item.layer, item.index) in labelled]
    return {
        "what": queue.what,
        "items": len(found),
        "done": done,
        "rules": dataclasses.asdict(annotation.RULES[queue.what]),
    }


@routes.get("/annotations/order")
def get_order(state: r.State, queue: Annotated[Queue, Depends()]) -> dict[str, Any]:
    """The numbers of the items to annotate; items that probably have a pattern come first.

    These are the items whose tokens are words with similar embeddings.
    """
    corpus, items = state.require_index(), queue.items(state)
    if queue.what == "value":
        shown = list(annotation.tokens_of_items(state.lm, items, queue.seed))
    else:
        most = annotation.RULES["key"].shown
        shown = [torch.as_tensor(corpus.trigger_tokens(item.layer, item.index, most)) for item in items]
    return {"numbers": annotation.nameable_first(state.lm, shown)}


def _is_word(text: str) -> bool:
    """Return True if a token is certainly a whole word: a space, then at least three lowercase letters.

    Definitions of other tokens would mislead: "age" may be a part of "language", and " Inter" the beginning of a name.
    """
    word = text[1:]
    return text[:1].isspace() and len(word) > 2 and word.isalpha() and word.islower()


@routes.get("/annotations/queue/{number}")
def get_item(state: r.State, number: r.Index, queue: Annotated[Queue, Depends()]) -> dict[str, Any]:
    """One item to annotate: 25 texts on which a memory fires most, or 30 tokens that it promotes, with definitions."""
    corpus = state.require_index()
    item = _item(queue.items(state), number)
    if queue.what == "key":
        table = corpus.triggers(item.layer, item.index, annotation.RULES["key"].shown, context=40)
        columns = ("prefix", "token", "next_token")
        return {"number": number, "prefixes": [{name: row[name] for name in columns} for row in table.rows()]}
    texts = state.lm.token_strings(annotation.tokens_of_items(state.lm, [item], queue.seed)[0])
    tokens = [
        {"token": text, "description": definition if _is_word(text) else None}
        for text, definition in zip(texts, annotation.definitions(texts), strict=True)
    ]
    return {"number": number, "tokens": tokens}


@routes.post("/annotations")
def post_annotation(state: r.State, query: r.AnnotationRequest) -> dict[str, Any]:
    """Store the patterns that an annotator found in an item, one label for each, or a label that says there is none."""
    corpus = state.require_index()
    queue = Queue(query.what, query.seed, query.per_layer, query.random_per_layer)
    item = _item(queue.items(state), query.number)
    patterns = query.patterns or [r.PatternRequest(label=annotation.NONE, kind="")]
    notes = [annotation.pattern_notes(query.what, one.label, one.kind, one.members) for one in patterns]
    common = {"seed": query.seed, "item": query.number}
    ids = corpus.add_labels(
        Label(item.layer, item.index, one.label, query.author, item.what, {**note, **common, **one.confidence_note()})
        for one, note in zip(patterns, notes, strict=True)
    )
    state.label_version += 1
    return {"ids": ids}


@routes.get("/annotations/agreement")
def get_agreement(state: r.State) -> dict[str, Any]:
    """Cohen's and Fleiss' kappa over all items that at least two people annotated."""
    corpus = state.require_index()
    return {"questions": [dataclasses.asdict(one) for one in annotation.label_agreement(corpus.labels().rows())]}


@routes.get("/annotations/export")
async def get_export(state: r.State) -> Response:
    """All current labels (those not withdrawn), one JSON object per line."""
    rows = state.require_index().labels(of="all").rows()
    text = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)
    headers = {"content-disposition": 'attachment; filename="labels.jsonl"', "cache-control": "no-store"}
    return Response(text, media_type="application/x-ndjson", headers=headers)


@routes.post("/annotations/import")
def post_import(state: r.State, query: r.ImportRequest) -> dict[str, Any]:
    """Add labels from an export, except those that the index already has. If a line is invalid, no label is added."""
    corpus = state.require_index()
    known = {_identity(row) for row in corpus.labels(of="all").rows()}
    rows = [_parse(number, line) for number, line in enumerate(query.jsonl.split("\n"), 1) if line.strip()]
    new = {key: row for row in rows if (key := _identity(row)) not in known}
    corpus.add_labels(
        Label(
            one["layer"], one["index"], one["label"], one["author"], one["kind"], {**one["notes"], "made": one["made"]}
        )
        for one in new.values()
    )
    state.label_version += bool(new)
    return {"added": len(new), "known": len(rows) - len(new)}


def _item(items: Sequence[Item], number: int) -> Item:
    if number >= len(items):
        raise InvalidInput(f"item {number}", why=f"the queue has {len(items)} items, counted from 0")
    return items[number]


def _identity(row: dict[str, Any]) -> tuple[object, ...]:
    made = row["notes"].get("made", row["made"])
    return (row["layer"], row["index"], row["kind"], row["label"], row["author"], made)


def _parse(number: int, line: str) -> dict[str, Any]:
    """Parse and check one line of an export."""
    try:
        label = r.ExportedLabel.model_validate_json(line)
        return label.model_dump() | {"notes": label.notes.model_dump(exclude_unset=True)}
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = ": ".join(["it is not a label", *map(str, first["loc"]), first["msg"]])
        raise InvalidInput(f"line {number} of the import", why=why) from error
