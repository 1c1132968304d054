"""Define the table, with title and provenance, in which results are displayed, converted and saved."""

from __future__ import annotations

import csv
import html
import importlib
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from unembed.errors import ExtraMissing, InvalidInput
from unembed.results.column_widths import column_blocks, column_widths
from unembed.results.files import write_whole
from unembed.results.html_table import html_table
from unembed.results.number_format import column_format
from unembed.results.provenance import Provenance
from unembed.results.token_text import visible_html, visible_rich
from unembed.validation import as_path, positive_int

SCHEMA = "unembed.table/1"
"""The schema of a table's JSON; its number increases when a field is removed or changes its meaning."""

_SHOWN_ROWS = 40
_REPR_ROWS = 8

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  overflow-wrap: anywhere; }
th, td { overflow-wrap: normal; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #8884; }
td.number, th.number { text-align: right; }
.mark { opacity: .5; } .provenance { opacity: .7; font-size: .85em; }
"""


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length, in order, with the provenance of the numbers in them.

    Columns named `token` or `tokens`, or ending in `_token` or `_tokens`, contain token text. It is saved unchanged,
    and displayed with marks for spaces and invisible characters. A cell may be a list, such as a memory's top tokens.

    Attributes:
        title: one line, displayed above the table.
        columns: a dict from names to values (list, tuple, NumPy array or tensor with one axis), or a `pyarrow.Table`.
        provenance: the model, data and settings with which the values were computed.
    """

    title: str
    columns: Any
    provenance: Provenance

    def __post_init__(self) -> None:
        if isinstance(self.columns, Mapping):
            columns = dict(self.columns)
            lengths = {name: len(values) for name, values in columns.items()}
            if len(set(lengths.values())) > 1:
                raise InvalidInput(
                    f"table {self.title!r} has columns of unequal length",
                    why=", ".join(f"{name} {length}" for name, length in lengths.items()),
                    instead="Give every column one value per row",
                )
            object.__setattr__(self, "columns", columns)
        elif not hasattr(self.columns, "column_names"):
            raise InvalidInput(
                f"table {self.title!r} of {type(self.columns).__name__}",
                why="columns are a mapping from name to values or a pyarrow.Table",
                instead="Give one of these",
            )

    @property
    def column_names(self) -> list[str]:
        """The names of the columns, in order."""
        return list(self.columns) if isinstance(self.columns, dict) else list(self.columns.column_names)

    def __len__(self) -> int:
        if isinstance(self.columns, dict):
            return len(next(iter(self.columns.values()))) if self.columns else 0
        return int(self.columns.num_rows)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a mapping from column name to a plain Python value."""
        return self._rows(len(self))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.rows()

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> "Table": ...
    def __getitem__(self, key: str | int | slice) -> Any:
        """Return a column by name (as a list), a row by number (as a dict), or a slice of rows (as a table).

        Raises:
            InvalidInput: the table has no such column or row.
        """
        if isinstance(key, str):
            if key not in self.column_names:
                raise InvalidInput(
                    f"column {key!r}",
                    why=f"table {self.title!r} does not have it",
                    instead=f"Use one of {', '.join(self.column_names)}",
                )
            return _plain(self.columns[key]) if isinstance(self.columns, dict) else self.columns[key].to_pylist()
        n = len(self)
        if isinstance(key, slice):
            return self._take(range(n)[key])
        if not -n <= key < n:
            raise InvalidInput(f"row {key}", why=f"table {self.title!r} has {n:,} rows, counted from 0")
        return next(self._take(range(key % n, key % n + 1)).rows())

    def __contains__(self, name: object) -> bool:
        return name in self.column_names

    def head(self, n: int = 5) -> "Table":
        """Return the first `n` rows."""
        return self[: positive_int("n", n)]

    def sort_by(self, column: str, *, descending: bool = False) -> "Table":
        """Return a table with the rows sorted by a column; empty cells and NaN come last. The sort is stable.

        Raises:
            InvalidInput: the table has no such column, or its values cannot be ordered.
        """
        values = self[column]
        missing = [i for i, value in enumerate(values) if value is None or value != value]
        present = [i for i in range(len(values)) if i not in set(missing)]
        try:
            present.sort(key=lambda i: values[i], reverse=descending)
        except TypeError as error:
            raise InvalidInput(f"sorting by {column!r}", why=f"its values cannot be ordered: {error}") from error
        return self._take([*present, *missing])

    def _take(self, rows: Sequence[int]) -> "Table":
        if isinstance(self.columns, dict):
            columns: Any = {name: [values[i] for i in rows] for name, values in self.columns.items()}
        else:
            columns = self.columns.take(list(rows))
        return Table(self.title, columns, self.provenance)

    def _rows(self, stop: int) -> Iterator[dict[str, Any]]:
        """Yield the first `stop` rows; later rows are not converted to Python values."""
        names = self.column_names
        if isinstance(self.columns, dict):
            values = [_plain(column[:stop]) for column in self.columns.values()]
        else:
            values = [column.to_pylist() for column in self.columns.slice(0, stop).columns]
        return (dict(zip(names, cells, strict=True)) for cells in zip(*values, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the table as a dict for JSON: schema, title, provenance, columns and rows.

        NaN and infinity become None.
        """
        return {
            "schema": SCHEMA,
            "title": self.title,
            "provenance": self.provenance.to_dict(),
            "columns": self.column_names,
            "rows": [{name: _finite(value) for name, value in row.items()} for row in self.rows()],
        }

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the table as JSON text; if a path is given, also write it to a file."""
        return _saved(json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False) + "\n", path)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the rows as CSV text, without the provenance; if a path is given, also write it to a file.

        The first line has the names of the columns. Cells that are lists are written as JSON.
        """
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.column_names)
        for row in self.rows():
            writer.writerow([_csv_cell(value) for value in row.values()])
        return _saved(out.getvalue(), path)

    def to_arrow(self) -> Any:
        """Return a `pyarrow.Table`; its schema metadata has title and provenance as JSON under the key `unembed`."""
        import pyarrow

        if isinstance(self.columns, dict):
            table = pyarrow.table({name: pyarrow.array(_plain(values)) for name, values in self.columns.items()})
        else:
            table = self.columns
        about = {"schema": SCHEMA, "title": self.title, "provenance": self.provenance.to_dict()}
        return table.replace_schema_metadata({**(table.schema.metadata or {}), b"unembed": json.dumps(about).encode()})

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the Arrow C stream of `to_arrow()`, through which polars, DuckDB, pandas and others read the table."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        """Return the dataframe interchange object of `to_arrow()`. This protocol does not support columns of lists."""
        return self.to_arrow().__dataframe__(nan_as_null, allow_copy)

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` whose `attrs` hold the title and the provenance.

        Raises:
            ExtraMissing: pandas is not installed.
        """
        _require("pandas")
        frame = self.to_arrow().to_pandas()
        frame.attrs = {"title": self.title, "provenance": self.provenance.to_dict()}
        return frame

    def to_polars(self) -> Any:
        """Return a `polars.DataFrame`.

        Raises:
            ExtraMissing: polars is not installed.
        """
        return _require("polars").from_arrow(self.to_arrow())

    def to_parquet(self, path: str | os.PathLike[str]) -> Path:
        """Write a Parquet file (zstd) with title and provenance in its metadata, and return its path."""
        import pyarrow
        import pyarrow.parquet

        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(self.to_arrow(), sink, compression="zstd")
        return write_whole(path, sink.getvalue().to_pybytes())

    @classmethod
    def of_rows(cls, title: str, names: Sequence[str], rows: Iterable[Sequence[Any]], provenance: Provenance) -> Table:
        """Make a table from rows, each with one value for every column."""
        listed = list(rows)
        return cls(title, {name: [row[i] for row in listed] for i, name in enumerate(names)}, provenance)

    @classmethod
    def from_parquet(cls, path: str | os.PathLike[str]) -> Table:
        """Read the table that `to_parquet` wrote.

        Raises:
            InvalidInput: the file is missing, is not Parquet, or was not written by unembed.
        """
        import pyarrow
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.read_table(as_path(path))
        except (OSError, pyarrow.ArrowException) as error:
            raise InvalidInput(
                f"cannot read {path}", why=str(error), instead="Give a file that to_parquet wrote"
            ) from error
        metadata = table.schema.metadata or {}
        if b"unembed" not in metadata:
            raise InvalidInput(
                f"{path} has no provenance", why="unembed did not write it", instead="Open it with pyarrow"
            )
        about = json.loads(metadata[b"unembed"])
        return cls(about["title"], table.replace_schema_metadata(None), Provenance.from_dict(about["provenance"]))

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a self-contained HTML page with the table; if a path is given, also write it to a file."""
        page = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width"><title>{html.escape(self.title)}</title>'
            f"<style>{_STYLE}</style></head><body>{self.fragment(len(self))}</body></html>\n"
        )
        return _saved(page, path)

    def _repr_html_(self) -> str:
        return self.fragment(_SHOWN_ROWS)

    def fragment(self, stop: int = _SHOWN_ROWS) -> str:
        """Return the first `stop` rows as an HTML table, followed by the provenance, for use in a page."""
        numeric, numbers = self._numeric(stop), self._number_formats(stop)
        table = html_table(
            [visible_html(name, prose=True) for name in self.column_names],
            ([self._html_value(name, row[name], numbers[name]) for name in row] for row in self._rows(stop)),
            ["number" if name in numeric else "" for name in self.column_names],
            caption=visible_html(self.title, prose=True),
        )
        more = f"<p>{len(self) - stop:,} more rows</p>" if len(self) > stop else ""
        return (
            '<div style="overflow-x: auto" tabindex="0">'  # a wide table has its own scroll bar
            f"{table}</div>{more}"
            f'<p class="provenance">{visible_html(self.provenance.line(), prose=True)}</p>'
        )

    def _html_value(self, name: str, value: object, number: Callable[[object], str]) -> str:
        prose = not holds_tokens(name)
        if isinstance(value, str | bytes):
            return visible_html(value, prose=prose)
        if isinstance(value, list | tuple):
            return " ".join(self._html_value(name, item, number) for item in value)
        return html.escape(number(value))

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """Yield the title, the first rows and the provenance, for rich to print."""
        yield from self.drawn(options.max_width)
        yield visible_rich(self.provenance.line(), prose=True, style="dim")

    def drawn(
        self,
        width: int,
        formats: Mapping[str, Callable[[object], str]] | None = None,
        most: int = _SHOWN_ROWS,
        unbroken: Sequence[str] = (),
    ) -> Iterator[Any]:
        """Yield the title and the first rows, for rich to print.

        Args:
            width: the maximum width in characters.
            formats: functions that format the numbers of some columns; other columns have a common number of decimals.
            most: maximum number of rows.
            unbroken: columns whose cells are not wrapped.
        """
        from rich import box
        from rich.table import Table as RichTable

        headings = {
            name: name.replace("_", " ") for name in self.column_names
        }  # long headings are wrapped between words
        numbers = self._number_formats(most) | dict(formats or {})
        rows = [
            {name: self._rich_value(name, value, numbers[name]) for name, value in row.items()}
            for row in self._rows(most)
        ]
        texts = [[heading, *(row[name].plain for row in rows)] for name, heading in headings.items()]
        natural = [max(map(len, column)) for column in texts]
        least = [max((len(word) for text in column for word in text.split()), default=0) for column in texts]
        for i, name in enumerate(headings):
            if name in unbroken:
                least[i] = max([least[i], *(len(row[name].plain) for row in rows)])
        room = width - 2 * len(headings) - 1
        if len(rows) == 1 and sum(natural) > room:  # a single row that is too wide is shown as one line per column
            shown = RichTable(box=None, pad_edge=False, show_header=False)
            for name, heading in headings.items():
                shown.add_row(visible_rich(heading, prose=True, style="dim"), rows[0][name])
            tables = [shown]
        else:
            numeric, names = self._numeric(most), list(headings)
            tables = []
            # If the columns do not fit side by side without breaking words, they are split into several tables, one
            # below the other.
            for block in column_blocks(least, width - 1, gap=2):
                shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
                columns = [names[i] for i in block]
                room = width - 2 * len(columns) - 1
                widths = column_widths([natural[i] for i in block], [least[i] for i in block], room)
                for name, wide in zip(columns, widths, strict=True):
                    justify = "right" if name in numeric else "left"
                    heading = visible_rich(headings[name], prose=True)
                    shown.add_column(heading, justify=justify, overflow="fold", width=wide)
                for row in rows:
                    shown.add_row(*(row[name] for name in columns))
                tables.append(shown)
        yield visible_rich(self.title, prose=True, style="bold")
        yield from tables
        if len(self) > most:
            yield visible_rich(f"{len(self) - most:,} more rows", prose=True)

    def _rich_value(self, name: str, value: object, number: Callable[[object], str]) -> Any:
        from rich.text import Text

        prose = not holds_tokens(name)
        if isinstance(value, str | bytes):
            return visible_rich(value, prose=prose)
        if isinstance(value, list | tuple):
            return Text(" ").join(self._rich_value(name, item, number) for item in value)
        return Text(number(value))

    def to_text(self, width: int = 200) -> str:
        """Return the table as text, as the terminal shows it, without colour and at most `width` characters wide."""
        from rich.console import Console

        out, width = io.StringIO(), positive_int("width", width)
        # In a Jupyter kernel, without `force_jupyter=False`, rich would display the text and not write it to `file`.
        Console(file=out, width=width, color_system=None, legacy_windows=False, force_jupyter=False).print(self)
        return out.getvalue()

    def __str__(self) -> str:
        """Return `to_text()`: the first rows, and the number of rows that are left out."""
        return self.to_text()

    def __repr__(self) -> str:
        """Return size, title and the first rows as text, at most 100 characters wide."""
        size = f"Table: {len(self):,} rows x {len(self.column_names)} columns"
        first = self if len(self) <= _REPR_ROWS else self[:_REPR_ROWS]
        more = f"\n... {len(self) - _REPR_ROWS:,} more rows" if len(self) > _REPR_ROWS else ""
        return f"{size}\n{first.to_text(width=100).rstrip()}{more}"

    def _number_formats(self, stop: int) -> dict[str, Callable[[object], str]]:
        """Return a function for each column that formats its numbers, chosen from the first `stop` rows."""
        rows = list(self._rows(stop))
        return {name: column_format(row[name] for row in rows) for name in self.column_names}

    def _numeric(self, stop: int) -> set[str]:
        """Return the names of columns with numbers in all of the first `stop` rows; these are aligned right."""
        numeric = set(self.column_names)
        for row in self._rows(stop):
            numeric -= {name for name, value in row.items() if not isinstance(value, int | float | None)}
        return numeric


def _require(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            f"a {package} data frame", why=f"{package} is not installed", instead=f"pip install {package}"
        ) from error


def holds_tokens(column: str) -> bool:
    """Return whether a column of this name contains token text."""
    return column in ("token", "tokens") or column.endswith(("_token", "_tokens"))


def _plain(values: Any) -> list[Any]:
    """Convert an array, a tensor or a sequence, which may contain NumPy or torch scalars, to a list of plain values."""
    if hasattr(values, "tolist"):
        return values.tolist()
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _csv_cell(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return json.dumps(_finite(value), ensure_ascii=False)
    return value


def _saved(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        write_whole(path, text)
    return text
