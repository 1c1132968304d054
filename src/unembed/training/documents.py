"""The training text: a folder of `*.jsonl.xz`, one document a line, a documented share of it never trained on.

Each line is a JSON object with `text` and, where known, `id` and `source`. A document is held back when a hash of its
id says so, so the rule needs no list, does not depend on order, and holds for any folder of this shape.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unembed.errors import CorpusUnreadable

HELD_BACK_ONE_IN = 80


@dataclass(frozen=True)
class Document:
    """One text of the corpus with the source that it was taken from."""

    id: str
    source: str
    text: str

    @property
    def is_held_back(self) -> bool:
        """Whether this document is kept for measurement and never trained on."""
        return is_held_back(self.id)


def is_held_back(document_id: str) -> bool:
    """Whether the first eight bytes of SHA-256 of the id, as a big-endian number, are divisible by 80."""
    digest = hashlib.sha256(document_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_BACK_ONE_IN == 0


def documents(folder: Path) -> Iterator[Document]:
    """Every document of a folder, shard by shard in the order of their names.

    Raises:
        CorpusUnreadable: the folder holds no `*.jsonl.xz`, a shard is damaged, or a line has no `text`.
    """
    shards = sorted(Path(folder).glob("*.jsonl.xz"))
    if not shards:
        raise CorpusUnreadable(
            f"no training text in {folder}",
            why="the folder holds no file that ends in .jsonl.xz",
            instead="Give a folder of xz-compressed JSON lines with a `text` in each",
        )
    for shard in shards:
        yield from _of_shard(shard)


def _of_shard(shard: Path) -> Iterator[Document]:
    line_number = 0
    try:
        with lzma.open(shard, "rt", encoding="utf-8") as lines:
            for line_number, line in enumerate(lines, start=1):
                row = json.loads(line)
                yield Document(str(row.get("id", f"{shard.name}:{line_number}")), row.get("source", ""), row["text"])
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
