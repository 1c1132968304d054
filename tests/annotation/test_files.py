"""Annotation files: exported, filled in, read back, and appended to an index."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.annotation.conftest import filled
from unembed import annotation
from unembed.annotation.files import Pattern
from unembed.errors import InvalidInput
from unembed.results import Provenance, Table


def test_an_exported_file_comes_back_with_the_patterns_filled_in(found, tmp_path: Path):
    pattern = {"description": "letters", "kind": "semantic", "tokens": [3, 1, 0, 7, 1]}
    path = filled(found, tmp_path / "ann.json", [pattern], "Ann")
    sheet = json.loads(path.read_text())
    assert sheet["provenance"]["seed"] is None
    assert [t["text"] for t in sheet["vectors"][1]["tokens"]] == found.lm.token_strings(found.ids[1].tolist())
    read = annotation.load(path)
    assert (read.annotator, read.vectors) == ("Ann", found.labels)
    assert read.patterns == ((Pattern("letters", "semantic", (0, 1, 3, 7)),), ())
    assert read.coverage() == [4 / 20, 0.0]
    assert len(annotation.patterns_table([read])) == 1
    row = next(iter(annotation.summary([read]).rows()))
    assert (row["in_a_pattern"], row["patterns_per_vector"]) == (0.1, 0.5)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ({"description": "x", "kind": "odd", "tokens": [0, 1, 2, 3]}, "kind 'odd'"),
        ({"description": "x", "kind": "names", "tokens": [0, 1, 2]}, "needs 4"),
        ({"description": "x", "kind": "names", "tokens": [0, 1, 2, 20]}, "0 to 19"),
        ({"description": " ", "kind": "names", "tokens": [0, 1, 2, 3]}, "no description"),
        ({"kind": "names"}, "damaged"),
    ],
)
def test_a_pattern_that_breaks_the_instructions_is_refused_by_name(found, tmp_path: Path, pattern, message):
    with pytest.raises(InvalidInput, match=message):
        annotation.load(filled(found, tmp_path / "bad.json", [pattern]))


def test_files_that_are_not_annotations_are_refused(found, tmp_path: Path):
    with pytest.raises(InvalidInput, match="cannot read"):
        annotation.load(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InvalidInput, match="schema"):
        annotation.load(tmp_path / "other.json")


class Store:
    """Labels in a list, with an index's two methods."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def memory(self, layer, index):
        return layer, index if isinstance(index, int) else index[0] * 1000 + index[1]

    def add_labels(self, labels):
        new = [asdict(label) for label in labels]
        self.rows += new
        return [len(self.rows)] * len(new)

    def labels(self, layer=None, index=None):
        names = ("layer", "index", "label", "author")
        columns = {name: [row[name] for row in self.rows] for name in names}
        return Table("labels", columns, Provenance("m", None, "none"))


def test_patterns_become_labels_once_and_an_empty_vector_gets_the_label_for_none(found, tmp_path: Path):
    pattern = {"description": "letters", "kind": "semantic", "tokens": [0, 1, 2, 3]}
    read = [annotation.load(filled(found, tmp_path / "ann.json", [pattern], "Ann"))]
    store = Store()
    assert annotation.add_to_index(read, store) == 2
    assert annotation.add_to_index(read, store) == 0
    first, second = store.rows
    assert (first["layer"], first["index"], first["label"], first["author"]) == (0, 1, "letters", "Ann")
    assert first["notes"] == {"pattern": "semantic", "members": [0, 1, 2, 3]}
    assert second["notes"] == {"pattern": None, "members": []}
    odd = replace(read[0], vectors=("L0M1", "random 3"))
    with pytest.raises(InvalidInput, match="random 3"):
        annotation.add_to_index([odd], store)
    assert len(store.rows) == 2
    annotation.add_to_index([replace(read[0], vectors=("L1E2M5", "L1M7"))], store)
    assert [(row["layer"], row["index"]) for row in store.rows[2:]] == [(1, 2005), (1, 7)]
