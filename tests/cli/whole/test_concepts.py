"""`unembed concepts`: the library's concepts in every form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unembed as package


def test_forms_agree_with_the_library(unembed, gpt2_folder: Path) -> None:
    lm = package.load(gpt2_folder)
    shares = unembed("concepts", "--model", gpt2_folder, "--per-layer", 3, "--seed", 2, "--json")
    assert shares.exit_code == 0, shares.stderr
    found = package.value_concepts(lm, per_layer=3, seed=2)
    assert json.loads(shares.stdout)["rows"] == list(found.by_layer().rows())
    listed = unembed("concepts", "1.3", "--model", gpt2_folder, "--json")
    assert json.loads(listed.stdout)["rows"] == list(package.value_concepts(lm, [(1, 3)]).to_table().rows())
    assert unembed("concepts", "--list", "--model", gpt2_folder).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [(("9.0",), 1, "layer 9"), (("x",), 2, "not a memory"), (("--top", 2), 2, "--top")],
)
def test_bad_input_is_one_line(unembed, gpt2_folder: Path, arguments, status, message) -> None:
    result = unembed("concepts", *arguments, "--model", gpt2_folder)
    assert result.exit_code == status
    assert message in result.stderr


def test_a_memory_without_a_concept_has_a_row(unembed, gpt2_folder: Path) -> None:
    lm = package.load(gpt2_folder)
    memories = [(n, i) for n in range(lm.n_layers) for i in range(4)]
    found = package.value_concepts(lm, memories)
    without = {name for name, row in zip(found.labels, found.concepts, strict=True) if not row}
    shown = unembed("concepts", *found.labels, "--model", gpt2_folder).stdout
    lines = [line.split() for line in shown.splitlines()]
    assert {line[0] for line in lines if line[1:] == ["none", "found"]} == without
    assert without
