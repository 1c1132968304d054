"""docs/formats.md names the fields and columns that commands, schemas and indexes have."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.package.shown import README
from unembed.atlas import lines
from unembed.atlas.heads import HEAD_COLUMNS
from unembed.cli.commands import app
from unembed.index.index import Index
from unembed.results import Table
from unembed.results.provenance import Provenance
from unembed.trace import view as schema

PAGE = (README.parent / "docs" / "formats.md").read_text(encoding="utf-8")
COMMANDS = {
    "trace --csv": 'trace "The war lasted from 1861" --csv',
    "explain --csv": 'explain "The war lasted from 1861" --csv',
    "explain --effects --csv": 'explain "The war lasted from 1861" --by component --effects --csv',
    "patch": 'patch "The king of France" "The king of England" --csv',
    "patch --points heads": 'patch "The king of France" "The king of England" --points heads --csv',
    "ablate": 'ablate "The war lasted from 1861" --memory L7M985 --csv',
    "ablate --what screen": 'ablate "The war lasted from 1861" --what screen --csv',
    "ablate --corpus": "ablate --corpus shipped --what layers --tokens 200 --csv",
    "value": "value L7M985 --csv",
    "clusters": "clusters --clusters 600 --memory L7M985 --csv",
    "concepts L7M985": "concepts L7M985 --csv",
    "index triggers": "index triggers small.index L7M985 --csv",
    "index search": "index search small.index lake --csv",
    "index promoting": 'index promoting small.index " lake" --csv',
    "index similar": "index similar small.index L7M985 --csv",
    "memories --csv": "memories --index small.index --layer 5 --top 1 --csv",
}


def rows(heading: str, first: str) -> list[list[str]]:
    """The rows of the table under a heading whose first column has this name."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = re.search(rf"^\| {first} \|.*\n\|---.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[1].splitlines()]


def names(cell: str) -> list[str]:
    return [name for name in re.split(r",\s*", cell) if name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a small index."""
    made = tmp_path_factory.mktemp("formats")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setenv("UNEMBED_CACHE", str(made / "cache"))
        build = ["index", "build", "--detokenize", "--max-documents", "1", "--out", "small.index"]
        assert CliRunner().invoke(app, build).exit_code == 0
        yield made


TABLES = {row[0].strip("`"): names(row[2]) for row in rows("`unembed.table/1`", "command")}


def test_the_page_and_the_test_name_the_same_commands() -> None:
    assert set(TABLES) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_the_columns_that_the_page_names(name: str, folder: Path) -> None:
    import shlex

    done = CliRunner().invoke(app, shlex.split(COMMANDS[name]))
    assert done.exit_code == 0, done.output
    assert next(csv.reader(io.StringIO(done.stdout))) == TABLES[name]


def test_a_table_as_json_has_the_named_fields(folder: Path) -> None:
    done = CliRunner().invoke(app, ["index", "triggers", "small.index", "L7M985", "--json"])
    found = json.loads(done.stdout)
    assert list(found) == ["schema", "title", "provenance", "columns", "rows"]
    assert found["schema"] == "unembed.table/1" and list(found["rows"][0]) == found["columns"]


def test_every_column_of_a_command_has_a_meaning_and_no_other_has() -> None:
    described = {name for row in rows("`unembed.table/1`", "column") for name in names(row[0])}
    assert described == {name for columns in TABLES.values() for name in columns}


def test_every_table_of_an_index_has_the_columns_that_the_page_names(folder: Path) -> None:
    index = Index.open(folder / "small.index")
    shown = {row[0].strip("`"): names(row[2]) for row in rows("The tables of an index", "table")}
    assert set(shown) == {"triggers", "values", "statistics", "vocabulary", "documents", "labels"}
    for table, columns in shown.items():
        assert index.sql(f"SELECT * FROM {table} LIMIT 0").column_names == columns
    explained = {name for row in rows("The tables of an index", "column") for name in names(row[0])}
    common = {name for row in rows("`unembed.table/1`", "column") for name in names(row[0])} | {"token_id", "name"}
    assert {name for columns in shown.values() for name in columns} - common - {"next_token_id"} == explained


def test_every_parquet_file_has_the_schema_that_the_page_gives(folder: Path) -> None:
    pages = {row[0].split("`")[1]: row[1].strip("`") for row in rows("Schemas of the Parquet files", "file")}
    heads = pq.read_schema(README.parent / "docs/atlas/smollm2/heads.parquet")
    found = {"memories.parquet": _words(lines.arrow_schema()), "heads.parquet": _words(heads)}
    assert heads.names == list(HEAD_COLUMNS)
    for file in (folder / "small.index" / "tables").glob("*.parquet"):
        found[f"tables/{file.name}"] = _words(pq.read_schema(file))
    assert pages == found


def _words(schema: pa.Schema) -> str:
    """`name type` of every column."""
    kinds = {"dictionary<values=string, indices=int8, ordered=0>": "dictionary<string>"}
    texts = [str(field.type).replace("item: ", "").replace("element: ", "") for field in schema]
    return ", ".join(f"{name} {kinds.get(kind, kind)}" for name, kind in zip(schema.names, texts, strict=True))


def test_a_result_as_parquet_has_its_columns_and_its_provenance(tmp_path: Path) -> None:
    table = Table(
        "t", {"layer": [0, 1], "share": [0.5, None], "token": ["a", "b"]}, Provenance("wren", "abc", "float32")
    )
    schema = pq.read_schema(table.to_parquet(tmp_path / "t.parquet"))
    assert _words(schema) == "layer int64, share double, token string"
    assert json.loads(schema.metadata[b"unembed"])["provenance"]["model"] == "wren"
    assert list(Table.from_parquet(tmp_path / "t.parquet").rows()) == list(table.rows())


def test_every_field_of_a_trace_is_on_the_page() -> None:
    section = PAGE.split("## `unembed.trace/3` and `unembed.explain/3`")[1].split("\n## ")[0]
    assert (schema.SCHEMA_TRACE, schema.SCHEMA_EXPLAIN) == ("unembed.trace/3", "unembed.explain/3")
    views = (
        schema.TraceView, schema.LayerView, schema.SubUpdateView, schema.Candidate, schema.EventView, schema.Finding,
        schema.AttributionView, schema.Row, schema.MemoriesView, schema.GridView, schema.TriggerView,
        schema.DescribedMemory, schema.HeadUpdate,
    )  # fmt: skip
    missing = {f"{view.__name__}.{f.name}" for view in views for f in fields(view) if not _word(f.name, section)}
    assert missing == set()
    assert {f.name for f in fields(Provenance) if not _word(f.name, PAGE)} == set()


def _word(name: str, text: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


def test_every_schema_of_a_command_is_on_the_page() -> None:
    package = README.parent / "src" / "unembed"
    sources = [*package.glob("cli/**/*.py"), package / "results/table.py", package / "gallery/gallery.py"]
    found = {name for path in sources for name in re.findall(r"\"(unembed\.\w+/\d)\"", path.read_text("utf-8"))}
    assert len(found) >= 6 and {name for name in found if name not in PAGE} == set()
