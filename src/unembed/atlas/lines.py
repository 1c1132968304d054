"""The lines of an atlas: for each memory (FFN neuron) and sign of its coefficient, the description and its test scores.

`SCHEMA` documents the columns of `memories.parquet`. The file contains the same sentences as metadata of its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from unembed.errors import InvalidInput
from unembed.names import Pole

VERSION = "unembed.atlas.lines/1"
Verdict = Literal[
    "described",
    "fires too rarely",
    "no rule found",
    "rule below its control",
    "rule misses too many firings",
    "words differ by passage",
    "words below their control",
]
"""The verdict "described", or the first reason why a memory has no description."""


@dataclass(frozen=True)
class Line:
    """One row of the atlas; `SCHEMA` explains the fields.

    Values named `test_...` are measured on text and passages that were used neither to find nor to select descriptions.
    The input side and the output side are None where no description was selected for that side.
    """

    memory: str
    layer: int
    index: int
    pole: Pole
    verdict: Verdict
    input: str | None = None
    output: str | None = None
    rule: str | None = None
    token_ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    concept: str | None = None
    firings: int | None = None
    test_accuracy: float | None = None
    test_area: float | None = None
    test_accuracy_control: float | None = None
    test_hits: float | None = None
    test_base: float | None = None
    input_passes: bool | None = None
    test_output: float | None = None
    test_output_control: float | None = None
    output_passes: bool | None = None
    random_input_passes: bool | None = None
    random_output_passes: bool | None = None

    @property
    def description(self) -> str | None:
        """The description in words: where the memory fires, and which tokens its value vector raises; None if none."""
        return _sentence(self.input, self.output) if self.verdict == "described" else None

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Line:
        """Build a line from a dict, such as a row of the Parquet file."""
        return cls(**{field.name: _as_tuple(row[field.name]) for field in fields(cls)})


_DOUBLE, _TEXT, _BOOL = pa.float32(), pa.string(), pa.bool_()
SCHEMA: dict[str, tuple[pa.DataType, str]] = {
    "memory": (_TEXT, "Name, such as L5M278; a minus sign in front: at negative coefficients"),
    "layer": (pa.int16(), "Layer, from 0"),
    "index": (pa.int32(), "Number of the memory in its layer, from 0"),
    "pole": (_TEXT, "positive, or negative: the sign of the coefficient that the line is about"),
    "verdict": (_TEXT, "described, or the first reason why there is no description"),
    "input": (_TEXT, "Where the memory fires, in words; null if no rule was found or it did not exceed its control"),
    "output": (
        _TEXT,
        "Tokens that adding the value vector raises, in words; null if there are none that exceed their control",
    ),
    "rule": (_TEXT, "The input side as JSON, which unembed.atlas.read_rule opens and runs"),
    "token_ids": (pa.list_(pa.int32()), "Ids of the tokens of the output side"),
    "tokens": (pa.list_(_TEXT), "Texts of these tokens"),
    "concept": (_TEXT, "The class that all these tokens are in; null if no class is named"),
    "firings": (pa.int32(), "Number of stored firings in the test documents"),
    "test_accuracy": (_DOUBLE, "Balanced accuracy of the rule on the test documents: 0.5 is chance, 1 is perfect"),
    "test_area": (_DOUBLE, "Area under the ROC curve for predicting from the coefficient whether the rule is true"),
    "test_accuracy_control": (
        _DOUBLE,
        "95 % quantile of this accuracy on other memories with a selected rule; null if too few",
    ),
    "test_hits": (_DOUBLE, "Share of the firings in the test documents at which the rule is true"),
    "test_base": (_DOUBLE, "Share of the other positions in the test documents at which the rule is true"),
    "input_passes": (_BOOL, "Whether test_accuracy exceeds its control"),
    "test_output": (_DOUBLE, "Mean share of equally frequent tokens that rise less than a named one: 0.5 is chance"),
    "test_output_control": (
        _DOUBLE,
        "95 % quantile of this share for tokens that other lines of the layer name; null if too few",
    ),
    "output_passes": (_BOOL, "Whether test_output exceeds its control"),
    "random_input_passes": (_BOOL, "Whether the rule of another memory of the layer passes the input test here"),
    "random_output_passes": (_BOOL, "Whether the tokens of another memory of the layer pass the output test here"),
}
"""Type and meaning of every column."""


def arrow_schema() -> pa.Schema:
    """Return the schema of `memories.parquet`, with the meaning of each column as metadata of its field."""
    columns = [pa.field(name, kind, metadata={"description": text}) for name, (kind, text) in SCHEMA.items()]
    return pa.schema(columns, metadata={"schema": VERSION})


def write_lines(path: Path, lines: Sequence[Line]) -> None:
    """Write lines to a Parquet file, as `write_table` does."""
    columns = {name: pa.array([getattr(line, name) for line in lines], kind) for name, (kind, _) in SCHEMA.items()}
    write_table(path, pa.table(columns, schema=arrow_schema()))


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table to a Parquet file; an interrupted write leaves no incomplete file at `path`."""
    writing = path.with_name(f".{path.name}.writing")
    pq.write_table(table, writing, compression="zstd", compression_level=12)
    writing.replace(path)


def read_lines(path: Path) -> list[Line]:
    """Read the lines of a Parquet file.

    Raises:
        InvalidInput: the file cannot be read, or was not written by `write_lines`.
    """
    found = _read(path)
    if (found.schema.metadata or {}).get(b"schema") != VERSION.encode():
        raise InvalidInput(f"{path} is not a file of atlas lines", why=f"its schema is not {VERSION}")
    return [Line.from_dict(row) for row in found.to_pylist()]


def rows_of(path: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of some columns of a Parquet file.

    Raises:
        InvalidInput: the file cannot be read.
    """
    return _read(path, list(names)).to_pylist()


def _read(path: Path, names: list[str] | None = None) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:  # pq.read_table would import pandas
            return file.read(columns=names)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInput(f"{path} cannot be read", why=" ".join(str(error).split())) from error


def description_columns(path: Path) -> dict[tuple[int, int, str], str]:
    """Read the descriptions of a Parquet file, by layer, index and pole (the sign of the coefficient).

    Descriptions with the largest product of their two test scores come first. Only the needed columns are read.

    Raises:
        InvalidInput: the file cannot be read.
    """
    names = ["layer", "index", "pole", "verdict", "input", "output", "test_accuracy", "test_output"]
    rows = rows_of(path, names)
    described = [row for row in rows if row["verdict"] == "described"]
    described.sort(key=lambda row: -(row["test_accuracy"] or 0.0) * (row["test_output"] or 0.0))
    return {(row["layer"], row["index"], row["pole"]): _sentence(row["input"], row["output"]) for row in described}


def _sentence(fires: str | None, raises: str | None) -> str:
    return f"{fires}: raises {raises}"


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def described(lines: Iterable[Line]) -> list[Line]:
    """Return the lines that have a description."""
    return [line for line in lines if line.verdict == "described"]
