"""Run SQL over an index: one SELECT at a time, on views of its tables, without access to anything else.

DuckDB is locked down before the statement runs: it can open only the tables of the index, load no extension and change
no setting. COPY into an allowed file would still write, so only a statement that DuckDB parses as a SELECT is run.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from unembed.errors import IndexFault, InvalidInput, OutOfMemory
from unembed.results import format_setting

_VIEWS = {
    "vocabulary": "SELECT token_id, token FROM read_parquet('{vocabulary}')",
    "documents": "SELECT document, name, start FROM read_parquet('{documents}')",
    "statistics": "SELECT * FROM read_parquet('{statistics}')",
    "values": "SELECT v.layer, v.index, v.rank, v.token_id, t.token, v.score FROM read_parquet('{values}') v "
    "LEFT JOIN read_parquet('{vocabulary}') t USING (token_id)",
    "triggers": "SELECT r.layer, r.index, r.pole, r.rank, r.coefficient, r.document, r.sentence, r.position, "
    "r.token_id, t.token, r.next_token_id, n.token AS next_token, d.start + r.position AS stream_position FROM "
    "read_parquet('{triggers}') r JOIN read_parquet('{documents}') d USING (document) LEFT JOIN "
    "read_parquet('{vocabulary}') t USING (token_id) LEFT JOIN read_parquet('{vocabulary}') n ON n.token_id = "
    "r.next_token_id",
}
VIEWS = (*_VIEWS, "labels")
"""The tables that a statement can read."""


class Sql:
    """A DuckDB connection that can read only one index. Several threads can run statements at once."""

    def __init__(self, folder: Path, paths: dict[str, str]) -> None:
        """Create a view for every table of the index that is built.

        Raises:
            IndexFault: a file cannot be read, or was removed since it was checked.
        """
        self._connection = duckdb.connect(":memory:", config={"memory_limit": "2GB"})
        run = self._connection.execute
        run("SET threads = 2")
        places = {name: str(folder / path).replace("'", "''") for name, path in paths.items()}
        run("SET autoinstall_known_extensions = false")
        run("SET autoload_known_extensions = false")
        allowed = ", ".join(f"'{place}'" for place in places.values())
        run(f"SET allowed_paths = [{allowed}]")
        run("SET enable_external_access = false")
        for name, query in _VIEWS.items():
            if all("{" + needed + "}" not in query or needed in places for needed in _VIEWS):
                try:
                    run(f'CREATE VIEW "{name}" AS {query.format(**places)}')
                except duckdb.Error as error:
                    raise IndexFault(
                        f"cannot read the tables of {folder}",
                        why=_first_line(error),
                        instead="Run the build again: it repairs the index",
                    ) from error
        # Replacement scans are turned off, because with them a SELECT could read any Python variable that looks like a
        # table.
        run("SET python_enable_replacements = false")
        run("SET lock_configuration = true")

    def select(self, query: str, labels: Mapping[str, Sequence[Any]], *, timeout: float = 60.0) -> pa.Table:
        """Run one SELECT statement and return its rows; `labels` are the columns of the table labels.

        Errors are those of `Index.sql`; and `OutOfMemory`, if the query needs more than 2 GB.
        """
        try:
            statements = duckdb.extract_statements(query)
        except duckdb.Error as error:
            raise InvalidInput("the SQL cannot be read", why=_first_line(error)) from error
        if len(statements) != 1:
            raise InvalidInput(f"{len(statements)} SQL statements", why="one SELECT is run at a time")
        if statements[0].type != duckdb.StatementType.SELECT:
            kind = str(statements[0].type).rpartition(".")[2]
            article = "an" if kind[0] in "AEIOU" else "a"
            raise InvalidInput(f"{article} {kind} statement", why="an index is read-only", instead="Write one SELECT")
        cursor = self._connection.cursor()
        _create_labels(cursor, labels)
        timer = threading.Timer(timeout, cursor.interrupt)
        timer.start()
        try:
            found: Any = cursor.sql(query).to_arrow_table()
        except duckdb.InterruptException as error:
            raise InvalidInput("the query was stopped", why=f"it ran for {format_setting(timeout)} seconds") from error
        except duckdb.OutOfMemoryException as error:
            raise OutOfMemory("the query", why="it needs more than 2 GB", instead="Select fewer rows") from error
        except duckdb.Error as error:
            views = ", ".join(VIEWS)
            raise InvalidInput("the query failed", why=_first_line(error), instead=f"Use the tables {views}") from error
        finally:
            timer.cancel()
            cursor.close()
        return found


def _create_labels(cursor: duckdb.DuckDBPyConnection, labels: Mapping[str, Sequence[Any]]) -> None:
    """Create a table visible only to this cursor. Registering an Arrow table would import pandas (0.4 s)."""
    types = {"id": "BIGINT", "layer": "INTEGER", "index": "INTEGER"}
    columns = ", ".join(f'"{name}" {types.get(name, "VARCHAR")}' for name in labels)
    cursor.execute(f"CREATE TEMP TABLE labels ({columns})")
    values = ", ".join(f"unnest(?::{types.get(name, 'VARCHAR')}[])" for name in labels)
    cursor.execute(f"INSERT INTO labels SELECT {values}", [list(column) for column in labels.values()])


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
