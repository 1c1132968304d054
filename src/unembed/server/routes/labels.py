"""Names that people give memories and heads: one by one, from the blind queue, in files; how far people agree."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from unembed.concepts.label_concepts import Concept, concept, concepts, memories_named
from unembed.errors import InvalidInput
from unembed.index.labels import Label
from unembed.server import requests as a
from unembed.server.state import Session

_Text = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"\S")]
_Author = Annotated[str, Field(min_length=1, max_length=80, pattern=r"\S")]


class LabelAsked(BaseModel):
    """A name for a memory or an attention head."""

    model_config = ConfigDict(extra="forbid")
    layer: int = Field(ge=0, le=a.LARGEST)
    index: int = Field(ge=0, le=a.LARGEST)
    label: _Text
    author: _Author
    kind: Literal["memory", "head"] = "memory"
    note: str = Field("", max_length=4000)
    tags: list[Annotated[str, Field(max_length=80)]] = Field(default_factory=list, max_length=16)
    confidence: int | None = Field(None, ge=1, le=5)
    verdict: Literal["clear", "mixed", "unclear"] | None = None


class PatternAsked(BaseModel):
    """A pattern that an annotator found."""

    model_config = ConfigDict(extra="forbid")
    label: _Text
    kind: str = Field("", max_length=40)
    members: list[Annotated[int, Field(ge=0, le=1000)]] = Field(default_factory=list, max_length=1000)


class AnnotatedAsked(BaseModel):
    """All that an annotator says of one item of the queue; no patterns means that there is none."""

    model_config = ConfigDict(extra="forbid")
    what: Literal["key", "value"]
    number: int = Field(ge=0, le=a.LARGEST)
    author: _Author
    seed: int = Field(0, ge=0, le=a.LARGEST)
    per_layer: int = Field(10, ge=1, le=100)
    random_per_layer: int = Field(5, ge=0, le=100)
    patterns: list[PatternAsked] = Field(default_factory=list, max_length=12)


class ImportAsked(BaseModel):
    """Labels as the export wrote them, one JSON object a line."""

    model_config = ConfigDict(extra="forbid")
    jsonl: str = Field(max_length=8_000_000)


class MemberAsked(BaseModel):
    """A memory."""

    model_config = ConfigDict(extra="forbid")
    layer: int = Field(ge=0, le=a.LARGEST)
    index: int = Field(ge=0, le=a.LARGEST)


class ConceptAsked(BaseModel):
    """Memories that one person gives one name."""

    model_config = ConfigDict(extra="forbid")
    name: _Text
    author: _Author
    members: list[MemberAsked] = Field(min_length=1, max_length=1000)


class Joined(BaseModel):
    """What became of the memories that were given a name."""

    ids: list[int] = Field(description="the labels that were written, by which they are withdrawn")
    known: int = Field(description="memories that this author had given the name before")


class WithdrawAsked(BaseModel):
    """Who takes a label back."""

    model_config = ConfigDict(extra="forbid")
    author: _Author


_What = Annotated[Literal["key", "value"], Query()]
_Seed = Annotated[int, Query(ge=0, le=a.LARGEST)]
_Each = Annotated[int, Query(ge=1, le=100)]
_Random = Annotated[int, Query(ge=0, le=100)]


def router(session: Session) -> APIRouter:
    """The routes, over what is open."""
    routes = APIRouter(tags=["labels"])

    def items(what: Literal["key", "value"], seed: int, per_layer: int, random_per_layer: int) -> list[Any]:
        from unembed.concepts.annotation.queue import queue

        return queue(session.lm, what, per_layer=per_layer, random_per_layer=random_per_layer, seed=seed)

    @routes.get("/labels")
    async def get_labels(
        layer: Annotated[int | None, Query(ge=0, le=a.LARGEST)] = None,
        index: Annotated[int | None, Query(ge=0, le=a.LARGEST)] = None,
        of: Literal["memory", "head", "all"] = "memory",
    ) -> dict[str, Any]:
        """Labels that hold, of one memory or head, a layer or all."""
        if index is not None and layer is None:
            raise InvalidInput("an index without its layer", instead="Give both")
        return session.need_index().labels(layer, index, of=of).to_dict()

    @routes.post("/labels")
    async def post_label(asked: LabelAsked) -> dict[str, Any]:
        """Append a label."""
        given = {"note": asked.note, "tags": asked.tags, "confidence": asked.confidence, "verdict": asked.verdict}
        notes = {name: value for name, value in given.items() if value}
        number = session.need_index().add_label(
            asked.layer, asked.index, asked.label, author=asked.author, kind=asked.kind, notes=notes
        )
        session.labelled += 1
        return {"id": number}

    @routes.post("/labels/{number}/withdraw")
    async def withdraw(number: a.Index, asked: WithdrawAsked) -> dict[str, Any]:
        """Append that a label no longer holds; the row itself stays."""
        session.need_index().withdraw_label(number, author=asked.author)
        session.labelled += 1
        return {"withdrawn": number}

    @routes.get("/concepts")
    async def get_concepts() -> dict[str, Any]:
        """Names that people have given, with how many memories bear each."""
        return {"concepts": concepts(session.need_index().labels().rows())}

    @routes.post("/concepts")
    async def post_concept(asked: ConceptAsked) -> Joined:
        """Give memories a name, one label each: they join the concept, or make it. All of them must exist."""
        held = session.need_index()

        def work() -> Joined:
            members = dict.fromkeys((member.layer, member.index) for member in asked.members)
            for layer, index in members:
                held.memory(layer, index)
            known = memories_named(held.labels().rows(), asked.name, asked.author)
            new = [member for member in members if member not in known]
            name, author = asked.name.strip(), asked.author
            ids = held.add_labels(Label(layer, index, name, author) for layer, index in new)
            session.labelled += bool(ids)
            return Joined(ids=ids, known=len(members) - len(ids))

        return await session.beside(work, "files")

    @routes.get("/concepts/{name:path}", responses={200: {"model": Concept}})
    async def get_concept(name: Annotated[str, Path(max_length=2000)]) -> dict[str, Any]:
        """All memories of one name: what they share, where they lie, how far their annotators agree."""
        rows = session.need_index().labels().rows()
        return await session.beside(lambda: concept(session.lm, rows, name).to_dict(), "long")

    @routes.get("/annotations/queue")
    async def get_queue(
        what: _What = "value",
        seed: _Seed = 0,
        per_layer: _Each = 10,
        random_per_layer: _Random = 5,
        author: Annotated[str, Query(max_length=80)] = "",
    ) -> dict[str, Any]:
        """How long the queue is, which items this author has done, and the rules; it does not tell what an item is."""
        held = session.need_index()

        def work() -> dict[str, Any]:
            from unembed.concepts.annotation.queue import RULES

            found = items(what, seed, per_layer, random_per_layer)
            done = {(r["kind"], r["layer"], r["index"]) for r in held.labels().rows() if r["author"] == author}
            finished = [item.number for item in found if (item.what, item.layer, item.index) in done]
            return {"what": what, "items": len(found), "done": finished, "rules": dataclasses.asdict(RULES[what])}

        return await session.beside(work, "files")

    @routes.get("/annotations/queue/{number}")
    async def get_item(
        number: a.Index,
        what: _What = "value",
        seed: _Seed = 0,
        per_layer: _Each = 10,
        random_per_layer: _Random = 5,
    ) -> dict[str, Any]:
        """What one item shows: 25 trigger prefixes of a key, or 30 tokens of a value with descriptions."""
        held = session.need_index()

        def work() -> dict[str, Any]:
            from unembed.concepts.annotation import queue

            item = _item(items(what, seed, per_layer, random_per_layer), number)
            if what == "key":
                table = held.triggers(item.layer, item.index, queue.RULES["key"].shown, context=40)
                columns = ("prefix", "token", "next_token")
                return {"number": number, "prefixes": [{name: row[name] for name in columns} for row in table.rows()]}
            texts = session.lm.token_strings(queue.item_tokens(session.lm, item, seed))
            said = queue.definitions(texts)
            return {
                "number": number,
                "tokens": [{"token": t, "description": d} for t, d in zip(texts, said, strict=True)],
            }

        return await session.beside(work, "files")

    @routes.post("/annotations")
    async def post_annotation(asked: AnnotatedAsked) -> dict[str, Any]:
        """Store what an annotator found in an item: one label for each pattern, or one that says there is none."""
        held = session.need_index()

        def work() -> dict[str, Any]:
            from unembed.concepts.annotation.queue import NONE, pattern_notes

            item = _item(items(asked.what, asked.seed, asked.per_layer, asked.random_per_layer), asked.number)
            said = asked.patterns or [PatternAsked(label=NONE, kind="")]
            notes = [pattern_notes(asked.what, p.label, p.kind, p.members) for p in said]
            common = {"seed": asked.seed, "item": asked.number}
            ids = held.add_labels(
                Label(item.layer, item.index, p.label, asked.author, item.what, {**note, **common})
                for p, note in zip(said, notes, strict=True)
            )
            session.labelled += 1
            return {"ids": ids}

        return await session.beside(work, "files")

    @routes.get("/annotations/agreement")
    async def get_agreement() -> dict[str, Any]:
        """Cohen's and Fleiss' kappa over all items that several people annotated."""
        held = session.need_index()

        def work() -> dict[str, Any]:
            from unembed.concepts.annotation.agreement import label_agreement

            return {"questions": [dataclasses.asdict(one) for one in label_agreement(held.labels().rows())]}

        return await session.beside(work, "files")

    @routes.get("/annotations/export")
    async def export() -> Response:
        """All labels that hold, one JSON object a line."""
        rows = session.need_index().labels(of="all").rows()
        text = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)
        return Response(
            text,
            media_type="application/x-ndjson",
            headers={"content-disposition": 'attachment; filename="labels.jsonl"', "cache-control": "no-store"},
        )

    @routes.post("/annotations/import")
    async def bring(asked: ImportAsked) -> dict[str, Any]:
        """Append labels that an export wrote, all or none, without those of an author, time and text known here."""
        held = session.need_index()

        def work() -> dict[str, Any]:
            known = {_identity(row) for row in held.labels(of="all").rows()}
            rows = [_row(number, line) for number, line in enumerate(asked.jsonl.splitlines(), 1) if line.strip()]
            new = {key: row for row in rows if (key := _identity(row)) not in known}
            held.add_labels(_label(row) for row in new.values())
            session.labelled += bool(new)
            return {"added": len(new), "known": len(rows) - len(new)}

        return await session.beside(work, "files")

    return routes


def _item(found: list[Any], number: int) -> Any:
    if number >= len(found):
        raise InvalidInput(f"item {number}", why=f"the queue has {len(found)}, counted from 0")
    return found[number]


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    made = row["notes"].get("made", row["made"])
    return (row["layer"], row["index"], row["kind"], row["label"], row["author"], made)


def _label(row: dict[str, Any]) -> Label:
    notes = {**row["notes"], "made": row["made"]}
    return Label(row["layer"], row["index"], row["label"], row["author"], row["kind"], notes)


def _row(number: int, line: str) -> dict[str, Any]:
    """One line of an export, checked."""
    try:
        row = json.loads(line)
        checked = LabelAsked(
            layer=row["layer"],
            index=row["index"],
            label=row["label"],
            author=row["author"] or "?",
            note="",
            confidence=None,
        )
        notes, kind, made = row.get("notes") or {}, row.get("kind") or "memory", row.get("made") or ""
        if not isinstance(notes, dict) or not isinstance(kind, str) or not isinstance(made, str) or len(kind) > 40:
            raise ValueError("kind and made are texts, notes an object")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(f"line {number} of the import", why=f"it is no label ({type(error).__name__})") from error
    return {
        **checked.model_dump(include={"layer", "index", "label", "author"}),
        "kind": kind,
        "notes": notes,
        "made": made,
    }
