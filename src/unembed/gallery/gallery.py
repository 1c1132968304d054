"""The gallery: a ranked list of memories (FFN neurons) with their evidence, which can be saved as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from unembed.errors import InvalidInput
from unembed.gallery.evidence import INGREDIENTS, SIGNIFICANT, MemoryEvidence
from unembed.names import Pole
from unembed.results import Displayed, Provenance, Table, write_whole

SCHEMA = "unembed.memories/1"
FILE = "memories.json"
"""The name of the file of a saved gallery, in the folder of a shipped model or of an index."""
SAVED = 200
"""Number of memories in a saved gallery."""
ALIKE = 3
"""Two memories count as alike if they share at least this number of their listed top tokens."""
Order = Literal["score", "different first"]


@dataclass(frozen=True, eq=False, repr=False)
class Gallery(Displayed):
    """A ranked list of memories (FFN neurons), each with its evidence and a description; see `Index.memories`."""

    rows: tuple[MemoryEvidence, ...]
    provenance: Provenance
    order: Order = "score"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[MemoryEvidence]:
        """The memories, in the order of the gallery."""
        return iter(self.rows)

    def __getitem__(self, rank: int) -> MemoryEvidence:
        """The memory at a position of the list, from 0."""
        return self.rows[rank]

    @property
    def lens(self) -> str | None:
        """The identity (`lens_identity`) of the fitted lens that read the tokens; None if none did, or if unknown."""
        return self.provenance.notes.get("lens")

    def is_read_by(self, lens: str | None) -> bool:
        """Return whether a lens, given by its identity (None: no fitted lens), read the tokens of this gallery."""
        return self.lens == lens and (self.provenance.basis == "jacobian") == (lens is not None)

    def other_lens(self, lens: str | None) -> str | None:
        """Return a sentence that names the lens of this gallery and the given one; None if they are the same."""
        if self.is_read_by(lens):
            return None
        now = reader(lens, fitted=lens is not None)
        return f"the saved descriptions were made with {self.reader}; tokens are now read by {now}"

    @property
    def reader(self) -> str:
        """The lens that read the tokens, in words."""
        return reader(self.lens, fitted=self.provenance.basis == "jacobian")

    def row_of(self, layer: int, index: int, pole: Pole) -> MemoryEvidence | None:
        """Return the row of a memory (FFN neuron) at a sign of its coefficient; None if it is not in the gallery."""
        return next((row for row in self.rows if (row.layer, row.index, row.pole) == (layer, index, pole)), None)

    def to_table(self) -> Table:
        """Return a table with one row for each memory: rank, score, description, top tokens, and each measure."""
        columns: dict[str, list[Any]] = {
            "rank": list(range(1, len(self.rows) + 1)),
            "memory": [row.name for row in self.rows],
            "layer": [row.layer for row in self.rows],
            "index": [row.index for row in self.rows],
            "pole": [row.pole for row in self.rows],
            "score": [row.score for row in self.rows],
            "description": [row.description for row in self.rows],
            "top_tokens": [list(row.top_tokens) for row in self.rows],
            "concept_tokens": [list(row.concept_tokens) for row in self.rows],
        }
        for name in INGREDIENTS:
            found = [row.evidence[name] for row in self.rows]
            columns[name] = [None if one is None else one.size for one in found]
            columns[f"{name}_p"] = [None if one is None else one.p for one in found]
        if any(row.truth is not None for row in self.rows):
            columns["truth"] = [None if row.truth is None else row.truth.correlation for row in self.rows]
            columns["truth_control"] = [None if row.truth is None else row.truth.control for row in self.rows]
        order = "in order of score" if self.order == "score" else "different ones first"
        return Table(f"Memories (FFN neurons) ranked by evidence, {order}", columns, self.provenance)

    def to_dict(self) -> dict[str, Any]:
        """Return the gallery as JSON values."""
        return {
            "schema": SCHEMA,
            "provenance": self.provenance.to_dict(),
            "ingredients": list(INGREDIENTS),
            "significant": SIGNIFICANT,
            "order": self.order,
            "memories": [{"rank": n, **row.to_dict()} for n, row in enumerate(self.rows, start=1)],
        }

    def first(self, n: int) -> Gallery:
        """Return the first `n` memories."""
        return replace(self, rows=self.rows[:n])

    def different(self) -> Gallery:
        """Return the memories that are not similar to any memory above them, in order.

        Two memories are similar if they have the same concept, fire on texts with the same pattern, or share at least
        `ALIKE` of their listed top tokens.
        """
        chosen: list[MemoryEvidence] = []
        for row in self.rows:
            if not any(_alike(row, other) for other in chosen):
                chosen.append(row)
        return replace(self, rows=tuple(chosen))

    def varied(self) -> Gallery:
        """Return the memories in another order: first those that `different` returns, then the others."""
        different = self.different().rows
        names = {row.name for row in different}
        others = tuple(row for row in self.rows if row.name not in names)
        return replace(self, rows=different + others, order="different first")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the gallery as JSON. The file is complete or, after an error, unchanged.

        Raises:
            UnembedError: the disk is full, or the path cannot be written to.
        """
        write_whole(path, json.dumps(self.to_dict(), ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Gallery:
        """Read what `save` wrote.

        Raises:
            InvalidInput: the file cannot be read, or is not a saved gallery of this version.
        """
        try:
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
            if stored["schema"] != SCHEMA:
                raise ValueError(f"its schema is {stored['schema']}, not {SCHEMA}")
            rows = tuple(MemoryEvidence.from_dict(row) for row in stored["memories"])
            return cls(rows, Provenance.from_dict(stored["provenance"]), stored.get("order", "score"))
        except (OSError, ValueError, KeyError, TypeError) as fault:
            raise InvalidInput(
                f"gallery {path}", why=f"it is not a saved gallery: {fault}", instead="Make it again: unembed memories"
            ) from fault


def reader(lens: str | None, *, fitted: bool) -> str:
    """Return the name of what decodes vectors to tokens: "the fitted lens" with its identity, or "the logit lens"."""
    if not fitted:
        return "the logit lens"
    return f"the fitted lens {lens}" if lens else "a fitted lens that is not recorded"


def _alike(one: MemoryEvidence, other: MemoryEvidence) -> bool:
    return (
        (one.concept is not None and one.concept == other.concept)
        or (one.pattern is not None and one.pattern == other.pattern)
        or len(set(one.top_ids) & set(other.top_ids)) >= ALIKE
    )
