"""A frozen table with a title and a provenance: what every result prints, saves and shows itself as."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unembed.errors import InvalidInput, file_path, whole
from unembed.results.column_widths import column_widths
from unembed.results.files import write_whole
from unembed.results.provenance import Provenance
from unembed.results.token_text import visible_html, visible_rich

SCHEMA = "unembed.table/1"
"""Name of the JSON form; the number rises when a field changes its meaning or goes."""

_SHOWN_ROWS = 40

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #8884; }
td.number, th.number { text-align: right; }
.mark { opacity: .5; } .provenance { opacity: .7; font-size: .85em; }
"""


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length, in order, with the provenance of the numbers in them.

    Columns whose name is `token` or `tokens`, or ends in `_token` or `_tokens`, hold token text: it is saved as it is
    and shown with spaces and everything invisible marked. A cell may be a list (a memory's top tokens).

    Attributes:
        title: one line, shown above the table.
        columns: name -> values (list, tuple, NumPy array, one-axis tensor), or a `pyarrow.Table`.
        provenance: where the numbers come from.
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
        """Names of the columns, in order."""
        return list(self.columns) if isinstance(self.columns, dict) else list(self.columns.column_names)

    def __len__(self) -> int:
        """Number of rows."""
        if isinstance(self.columns, dict):
            return len(next(iter(self.columns.values()))) if self.columns else 0
        return int(self.columns.num_rows)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row as a mapping from column name to a plain Python value."""
        return self._rows(len(self))

    def _rows(self, stop: int) -> Iterator[dict[str, Any]]:
        """The first `stop` rows; only these are turned into Python values."""
        names = self.column_names
        if isinstance(self.columns, dict):
            values = [_plain(column[:stop]) for column in self.columns.values()]
        else:
            values = [column.to_pylist() for column in self.columns.slice(0, stop).columns]
        return (dict(zip(names, cells, strict=True)) for cells in zip(*values, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes: schema name, title, provenance, columns and rows; NaN and infinity become None."""
        return {
            "schema": SCHEMA,
            "title": self.title,
            "provenance": self.provenance.to_dict(),
            "columns": self.column_names,
            "rows": [{name: _finite(value) for name, value in row.items()} for row in self.rows()],
        }

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table as JSON text; written to `path` as well when one is given."""
        return _saved(json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False) + "\n", path)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """The rows as CSV text with a header line, list cells as JSON, without the provenance."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.column_names)
        for row in self.rows():
            writer.writerow([_csv_cell(value) for value in row.values()])
        return _saved(out.getvalue(), path)

    def to_arrow(self) -> Any:
        """A `pyarrow.Table` whose schema metadata holds title and provenance as JSON under `unembed`."""
        import pyarrow

        if isinstance(self.columns, dict):
            table = pyarrow.table({name: pyarrow.array(_plain(values)) for name, values in self.columns.items()})
        else:
            table = self.columns
        about = {"schema": SCHEMA, "title": self.title, "provenance": self.provenance.to_dict()}
        return table.replace_schema_metadata({**(table.schema.metadata or {}), b"unembed": json.dumps(about).encode()})

    def to_parquet(self, path: str | os.PathLike[str]) -> Path:
        """The path of a Parquet file (zstd) with title and provenance in its metadata."""
        import pyarrow
        import pyarrow.parquet

        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(self.to_arrow(), sink, compression="zstd")
        return write_whole(path, sink.getvalue().to_pybytes())

    @classmethod
    def from_parquet(cls, path: str | os.PathLike[str]) -> Table:
        """The table that `to_parquet` wrote.

        Raises:
            InvalidInput: the file is missing, no Parquet, or not written by unembed.
        """
        import pyarrow
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.read_table(file_path(path))
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
        """A self-contained page with the whole table; written to `path` as well when one is given."""
        page = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(self.title)}</title>'
            f"<style>{_STYLE}</style></head><body>{self._fragment(len(self))}</body></html>\n"
        )
        return _saved(page, path)

    def _repr_html_(self) -> str:
        return self._fragment(_SHOWN_ROWS)

    def _fragment(self, stop: int) -> str:
        numeric = self._numeric(stop)
        head = "".join(_html_cell("th", visible_html(name, prose=True), name in numeric) for name in self.column_names)
        body = "".join(
            "<tr>"
            + "".join(_html_cell("td", self._html_value(name, row[name]), name in numeric) for name in row)
            + "</tr>"
            for row in self._rows(stop)
        )
        caption = visible_html(self.title, prose=True)
        more = f"<p>{len(self) - stop:,} more rows</p>" if len(self) > stop else ""
        return (
            f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
            f'<p class="provenance">{visible_html(self.provenance.line(), prose=True)}</p>'
        )

    def _html_value(self, name: str, value: object) -> str:
        prose = not _holds_tokens(name)
        if isinstance(value, str | bytes):
            return visible_html(value, prose=prose)
        if isinstance(value, list | tuple):
            return " ".join(self._html_value(name, item) for item in value)
        return html.escape(_number(value))

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """Title, first rows and provenance as rich draws them."""
        from rich import box
        from rich.table import Table as RichTable

        headings = {name: name.replace("_", " ") for name in self.column_names}  # a long one breaks between words
        rows = [{name: self._rich_value(name, value) for name, value in row.items()} for row in self._rows(_SHOWN_ROWS)]
        texts = [[heading, *(row[name].plain for row in rows)] for name, heading in headings.items()]
        natural = [max(map(len, column)) for column in texts]
        least = [max((len(word) for text in column for word in text.split()), default=0) for column in texts]
        room = options.max_width - 2 * len(headings) - 1
        if len(rows) == 1 and sum(natural) > room:  # one row that is too wide reads better downwards
            shown = RichTable(box=None, pad_edge=False, show_header=False)
            for name, heading in headings.items():
                shown.add_row(visible_rich(heading, prose=True, style="dim"), rows[0][name])
        else:
            numeric = self._numeric(_SHOWN_ROWS)
            shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
            for (name, heading), width in zip(headings.items(), column_widths(natural, least, room), strict=True):
                justify = "right" if name in numeric else "left"
                shown.add_column(visible_rich(heading, prose=True), justify=justify, overflow="fold", width=width)
            for row in rows:
                shown.add_row(*row.values())
        yield visible_rich(self.title, prose=True, style="bold")
        yield shown
        if len(self) > _SHOWN_ROWS:
            yield visible_rich(f"{len(self) - _SHOWN_ROWS:,} more rows", prose=True)
        yield visible_rich(self.provenance.line(), prose=True, style="dim")

    def _rich_value(self, name: str, value: object) -> Any:
        from rich.text import Text

        prose = not _holds_tokens(name)
        if isinstance(value, str | bytes):
            return visible_rich(value, prose=prose)
        if isinstance(value, list | tuple):
            return Text(" ").join(self._rich_value(name, item) for item in value)
        return Text(_number(value))

    def to_text(self, width: int = 200) -> str:
        """The table as the terminal shows it, without colour, at most `width` columns wide."""
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=whole("width", width), color_system=None, legacy_windows=False).print(self)
        return out.getvalue()

    def __str__(self) -> str:
        """The same as `to_text()`."""
        return self.to_text()

    def _numeric(self, stop: int) -> set[str]:
        """Columns to align right: numbers in every row looked at."""
        numeric = set(self.column_names)
        for row in self._rows(stop):
            numeric -= {name for name, value in row.items() if not isinstance(value, int | float | None)}
        return numeric


def _holds_tokens(column: str) -> bool:
    return column in ("token", "tokens") or column.endswith(("_token", "_tokens"))


def _plain(values: Any) -> list[Any]:
    """Python values of an array, a tensor or a sequence; NumPy and torch scalars inside a list included."""
    if hasattr(values, "tolist"):
        return values.tolist()
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _number(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _csv_cell(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return json.dumps(_finite(value), ensure_ascii=False)
    return value


def _html_cell(tag: str, content: str, is_number: bool) -> str:
    return f'<{tag} class="number">{content}</{tag}>' if is_number else f"<{tag}>{content}</{tag}>"


def _saved(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        write_whole(path, text)
    return text
