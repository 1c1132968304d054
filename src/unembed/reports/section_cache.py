"""Store the finished sections and tables of a report on disk, so that an interrupted run need not make them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unembed.document.model import Section
from unembed.reports.stages import Work
from unembed.results import Provenance, Table


def cached_sections(work: Work, name: str, make: Callable[[], Sequence[Section]]) -> list[Section]:
    """Return the sections that `make` returns, from the report's folder if an earlier run stored them there.

    Args:
        name: the name under which they are stored, unique in the study.
        make: makes the sections; their tables may contain numbers, booleans, text, None and lists of these.
    """

    def compute() -> dict[str, Any]:
        sections = make()
        tables = {e.name: _table(e.table) for s in sections for e in s.exhibits}
        return {"sections": [s.to_dict() for s in sections], "tables": tables}

    stored = work.json_stage(name, compute)
    tables = _opened(stored["tables"])
    return [Section.from_dict(s, tables) for s in stored["sections"]]


def cached_tables(
    work: Work, name: str, make: Callable[[], tuple[Mapping[str, Table], Sequence[str]]]
) -> tuple[dict[str, Table], list[str]]:
    """Return the named tables and the notes that `make` returns, from the report's folder if they were stored there.

    Args:
        name: the name under which they are stored, unique in the study.
        make: makes the tables and the notes; what it raises is raised, and nothing is stored.
    """

    def compute() -> dict[str, Any]:
        tables, notes = make()
        return {"tables": {k: _table(t) for k, t in tables.items()}, "notes": [*notes]}

    stored = work.json_stage(name, compute)
    return _opened(stored["tables"]), stored["notes"]


def _opened(tables: Mapping[str, Any]) -> dict[str, Table]:
    return {k: Table(t["title"], t["columns"], Provenance.from_dict(t["provenance"])) for k, t in tables.items()}


def _table(table: Table) -> dict[str, Any]:
    """Convert a table to JSON; unlike `Table.to_dict`, this keeps NaN and infinity."""
    rows = list(table.rows())
    columns = {name: [row[name] for row in rows] for name in table.column_names}
    return {"title": table.title, "provenance": table.provenance.to_dict(), "columns": columns}
