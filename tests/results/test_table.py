"""Tables and provenances: what is saved comes back, what is shown is complete or says so."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from unembed.errors import InvalidInput, UnembedError
from unembed.results import Provenance, Table, write_whole

PROVENANCE = Provenance("wren", "abc", "float32", basis="final", seed=3, notes={"hide_unlearned": True})
COLUMNS = {
    "layer": np.array([0, 1]),
    "token": [" January", "[red]<b>"],
    "share": [1.5, float("nan")],
    "top_tokens": [[" a", "\n"], []],
}


def table() -> Table:
    return Table("Sub-updates", COLUMNS, PROVENANCE)


def test_provenance_survives_its_dictionary() -> None:
    assert Provenance.from_dict(json.loads(json.dumps(PROVENANCE.to_dict()))) == PROVENANCE
    assert pickle.loads(pickle.dumps(PROVENANCE)) == PROVENANCE


def test_provenance_line_names_what_changes_numbers() -> None:
    line = PROVENANCE.line()
    assert line.startswith("wren@abc · float32 · basis final · seed 3 · hide unlearned yes · unembed ")


def test_provenance_is_frozen_and_keeps_its_own_notes() -> None:
    notes = {"a": 1}
    provenance = Provenance("m", None, "float32", notes=notes)
    notes["a"] = 2
    assert provenance.notes == {"a": 1}
    with pytest.raises(dataclasses.FrozenInstanceError):
        provenance.model = "other"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(("stored", "part"), [({"modle": "x"}, "'modle'"), ({"model": "x"}, "'revision'")])
def test_provenance_with_a_wrong_field_is_refused(stored: dict[str, str], part: str) -> None:
    with pytest.raises(InvalidInput, match=part):
        Provenance.from_dict(stored)


def test_rows_are_plain_python() -> None:
    first = next(iter(table().rows()))
    assert first == {"layer": 0, "token": " January", "share": 1.5, "top_tokens": [" a", "\n"]}
    assert type(first["layer"]) is int


def test_json_has_a_stable_schema() -> None:
    stored = json.loads(table().to_json())
    assert list(stored) == ["schema", "title", "provenance", "columns", "rows"]
    assert stored["schema"] == "unembed.table/1"
    assert stored["columns"] == list(COLUMNS)
    assert stored["rows"][1] == {"layer": 1, "token": "[red]<b>", "share": None, "top_tokens": []}
    assert Provenance.from_dict(stored["provenance"]) == PROVENANCE


def test_csv_keeps_token_text_as_it_is(tmp_path: Path) -> None:
    text = table().to_csv(tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[0]["token"] == " January"
    assert json.loads(rows[0]["top_tokens"]) == [" a", "\n"]


def test_parquet_brings_title_and_provenance_back(tmp_path: Path) -> None:
    back = Table.from_parquet(table().to_parquet(tmp_path / "t.parquet"))
    assert (back.title, back.provenance) == ("Sub-updates", PROVENANCE)
    assert json.loads(back.to_json())["rows"] == json.loads(table().to_json())["rows"]


def test_a_parquet_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(InvalidInput, match="did not write it"):
        Table.from_parquet(tmp_path / "other.parquet")
    with pytest.raises(InvalidInput, match="cannot read"):
        Table.from_parquet(tmp_path / "absent.parquet")


def test_arrow_and_mapping_give_the_same_table() -> None:
    arrow = Table("Sub-updates", table().to_arrow(), PROVENANCE)
    assert arrow.to_text() == table().to_text()
    assert len(arrow) == len(table()) == 2


def test_terminal_form_shows_tokens_and_provenance() -> None:
    text = table().to_text(width=100)
    assert "·January" in text
    assert "[red]<b>" in text
    assert "·a ↵" in text
    assert "wren@abc" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_a_single_row_that_is_too_wide_is_shown_downwards_whole() -> None:
    columns = {f"column_number_{n}": [f"value {n}"] for n in range(9)} | {"exits_by_layer": [[0, 0, 17, 0, 400]]}
    text = Table("One row", columns, Provenance("wren", None, "float32", notes={"fitted": {"examples": 4}})).to_text(80)
    assert all(f"column number {n}  value {n}" in text for n in range(9))
    assert "exits by layer   0 0 17 0 400" in text and "fitted examples 4" in text


def test_html_page_is_self_contained_and_escaped(tmp_path: Path) -> None:
    page = table().to_html(tmp_path / "t.html")
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "http" not in page
    assert page == (tmp_path / "t.html").read_text()


def test_a_long_table_shows_how_many_rows_are_left_out_and_saves_all() -> None:
    long = Table("Long", {"n": list(range(1000))}, PROVENANCE)
    assert "960 more rows" in long.to_text()
    assert "960 more rows" in long._repr_html_()
    assert len(json.loads(long.to_json())["rows"]) == 1000
    assert "more rows" not in long.to_html()


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(InvalidInput, match="a 1, b 2"):
        Table("t", {"a": [1], "b": [1, 2]}, PROVENANCE)
    with pytest.raises(InvalidInput, match="list"):
        Table("t", [1, 2], PROVENANCE)


def test_an_empty_table_prints_and_saves() -> None:
    empty = Table("Nothing", {"a": []}, PROVENANCE)
    assert "Nothing" in empty.to_text()
    assert json.loads(empty.to_json())["rows"] == []


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_whole(tmp_path / "result.txt", "first")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unembed.results.files.os.replace", full)
    with pytest.raises(UnembedError, match="No space left on device"):
        write_whole(target, "second")
    assert target.read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]


def test_a_missing_folder_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"does not exist\. Create it first"):
        write_whole(tmp_path / "absent" / "result.txt", "text")
    with pytest.raises(InvalidInput, match="it is a folder"):
        write_whole(tmp_path, "text")


def test_results_need_neither_torch_nor_pyarrow_to_be_imported() -> None:
    code = "import sys, unembed.results; print([m for m in ('torch', 'pyarrow', 'rich', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def numbered(n: int = 30) -> Table:
    return Table("Numbers", {"n": list(range(n)), "x": [float(i % 7) for i in range(n)]}, PROVENANCE)


@pytest.mark.parametrize("arrow", [False, True])
def test_a_table_is_iterated_indexed_sliced_and_sorted(arrow: bool) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    plain = numbered()
    t = Table(plain.title, pyarrow.table(plain.columns), PROVENANCE) if arrow else plain
    assert [row["n"] for row in t] == list(range(30)) and len(t) == 30
    assert t["x"][:8] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0]
    assert t[-1] == {"n": 29, "x": 1.0} and "x" in t and "y" not in t
    assert [row["n"] for row in t[4:10:2]] == [4, 6, 8] and t[4:10].provenance == PROVENANCE
    assert [row["n"] for row in t.head(2)] == [0, 1]
    assert t.sort_by("x", descending=True)["n"][:4] == [6, 13, 20, 27]
    for wrong in ("y", 30, -31):
        with pytest.raises(InvalidInput, match="Numbers"):
            t[wrong]


def test_sorting_leaves_missing_values_last_and_refuses_what_has_no_order() -> None:
    t = Table("T", {"x": [2.0, float("nan"), None, 1.0], "mixed": ["a", 1, None, 2]}, PROVENANCE)
    assert t.sort_by("x")["x"][:2] == [1.0, 2.0] and t.sort_by("x", descending=True)["x"][:2] == [2.0, 1.0]
    with pytest.raises(InvalidInput, match="mixed"):
        t.sort_by("mixed")


def test_repr_shows_the_size_and_the_first_rows_only() -> None:
    text = repr(numbered(5000))
    assert text.startswith("Table: 5,000 rows x 2 columns") and text.endswith("... 4,992 more rows")
    assert len(text) < 1000


def test_other_libraries_read_a_table_through_arrow() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    t = numbered()
    assert pyarrow.table(t).column("n").to_pylist() == list(range(30))
    assert t.__dataframe__().num_rows() == 30
    pandas = pytest.importorskip("pandas")
    frame = t.to_pandas()
    assert frame["x"].sum() == sum(t["x"]) and frame.attrs["provenance"] == PROVENANCE.to_dict()
    assert isinstance(frame, pandas.DataFrame)
    polars = pytest.importorskip("polars")
    assert t.to_polars()["n"].to_list() == list(range(30)) and polars.DataFrame(t).height == 30


def test_a_missing_data_frame_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(UnembedError, match="pip install polars"):
        numbered().to_polars()
