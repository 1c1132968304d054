"""The training text, a folder of `*.jsonl.xz` with one document a line, and the share that is never trained on.

Each line is a JSON object with `text` and, where known, `id`, `source`, `title` and `url`. A hash decides what is held
back, so the rule needs no list and holds for any folder of this shape:

1. The *work* of a document is its `url`; for a book without one, its `title`; for any other document, its `id`.
2. A document is held back for measurement when the hash of its key is divisible by 80. The key is the `id`; where the
   `id` begins with `more-`, it is the work, so that a long page or a book is held back whole.
3. Any other document of a held-back work is set aside: neither trained on nor measured.

One Wikipedia page in five is read in the spelling of WikiText (` , `, ` @-@ `, ` = Title = `), which the papers' text
has.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tools.training.wikitext_spacing import tokenized
from unembed.errors import CorpusUnreadable

HELD_BACK_ONE_IN = 80
AS_WIKITEXT_ONE_IN = 5
MORE = "more-"  # ids of documents that continue pages and books of an older corpus begin with it


@dataclass(frozen=True)
class Document:
    """One text of the corpus, the source that it was taken from, and the page or book that it is part of."""

    id: str
    source: str
    text: str
    work: str

    @property
    def is_held_back(self) -> bool:
        """Whether this document is for measurement only."""
        return is_held_back(self.work if self.id.startswith(MORE) else self.id)


@dataclass(frozen=True)
class Split:
    """The documents of a folder by use; `set_aside` shares works with `held_back`."""

    trained: list[Document]
    held_back: list[Document]
    set_aside: list[Document]


def is_held_back(key: str) -> bool:
    """Whether the first eight bytes of SHA-256 of the key, as a big-endian number, are divisible by 80."""
    return _hash(key) % HELD_BACK_ONE_IN == 0


def as_read(document: Document) -> Document:
    """The document as training reads it: one Wikipedia page in five in the spelling of WikiText, others unchanged."""
    if document.source != "wikipedia" or _hash(document.work) % AS_WIKITEXT_ONE_IN:
        return document
    title, *paragraphs = tokenized(document.text).split("\n")
    lines = [f" = {title} = ", " ", *(f" {paragraph} " for paragraph in paragraphs)]
    return replace(document, text=" \n" + "\n".join(lines) + "\n")


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def split(every: Iterable[Document]) -> Split:
    """Split the documents by the rule at the head of this module, each part in their order."""
    every = list(every)
    works = {document.work for document in every if document.is_held_back}
    result = Split([], [], [])
    for document in every:
        if document.is_held_back:
            result.held_back.append(document)
        elif document.work in works:
            result.set_aside.append(document)
        else:
            result.trained.append(document)
    return result


def documents(folder: Path) -> Iterator[Document]:
    """Every document of a folder, shard by shard in the order of their names.

    Raises:
        CorpusUnreadable: the folder holds no `*.jsonl.xz`, a shard is damaged, or a line has no `text`.
    """
    shards = sorted(Path(folder).glob("*.jsonl.xz"))
    if not shards:
        raise CorpusUnreadable(
            f"no training text in {folder}",
            why="the folder contains no file that ends in .jsonl.xz",
            instead="Give a folder of xz-compressed JSON lines with a `text` in each",
        )
    for shard in shards:
        yield from _of_shard(shard)


def _of_shard(shard: Path) -> Iterator[Document]:
    line_number = 0
    try:
        with lzma.open(shard, "rt", encoding="utf-8") as lines:
            for line_number, line in enumerate(lines, start=1):
                yield _document(json.loads(line), default_id=f"{shard.name}:{line_number}")
    except (
        lzma.LZMAError,
        EOFError,
        UnicodeDecodeError,
        json.JSONDecodeError,
        KeyError,
        TypeError,
        AttributeError,
    ) as fault:
        raise CorpusUnreadable(
            f"{shard}, after line {line_number}",
            why=f"{type(fault).__name__}: {fault}",
            instead="Fetch the shard again; each line is a JSON object with a `text`",
        ) from fault


def _document(row: dict[str, str], *, default_id: str) -> Document:
    id_, source = str(row.get("id", default_id)), row.get("source", "")
    title = row.get("title", "") if source == "books" else ""
    return Document(id_, source, row["text"], work=row.get("url", "") or title or id_)
