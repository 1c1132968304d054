"""Edits survive a file; broken files are refused."""

from __future__ import annotations

import json

import pytest

import unembed
from unembed.errors import InvalidInput
from unembed.steering.edit_files import load_edits, save_edits


def test_edits_survive_a_file(tmp_path):
    edits = [
        unembed.set_coefficient(1, 2, 3.0),
        unembed.scale_coefficient(0, 4, 0.5, positions=(1, 2)),
        unembed.scale_head(1, 0, 0.0, positions="last"),
    ]
    path = save_edits(edits, tmp_path / "edits.json", model="wren")
    assert load_edits(path, model="wren") == edits
    with pytest.raises(InvalidInput, match="chosen for wren"):
        load_edits(path, model="gpt2")


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "x", "edits": []}', '{"schema": "unembed.edits/1"}'])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    path = tmp_path / "edits.json"
    path.write_text(text)
    with pytest.raises(InvalidInput):
        load_edits(path)


def test_a_broken_edit_names_its_row(tmp_path):
    path = save_edits([unembed.set_coefficient(0, 0, 3.0)] * 2, tmp_path / "edits.json")
    stored = json.loads(path.read_text())
    stored["edits"][1]["value"] = "NaN"
    path.write_text(json.dumps(stored))
    with pytest.raises(InvalidInput, match="edit 1"):
        load_edits(path)
