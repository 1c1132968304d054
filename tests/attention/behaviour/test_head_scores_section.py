"""Sections about heads leave out what a layer does not have, and nothing else."""

from __future__ import annotations

import json
import math

import pytest
import torch
from typer.testing import CliRunner

from tests.models.decoder_classes import tiny_model
from unembed.attention import Circuits
from unembed.attention.behaviour.head_scores import heads_section
from unembed.attention.weights.one_head import head_sections
from unembed.language_model import load
from unembed.names import HeadBasis

BY_PATTERN = ("previous_token", "duplicate_token", "induction", "resting", "current_token")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("model_type", "basis", "copies", "matches", "why"),
    [
        (
            "deepseek_v3",
            "folded",
            True,
            False,
            "Matching: not available in any layer, because when the model runs, the content part of a key",
        ),
        ("deepseek_v3", "raw", True, True, ""),
        ("qwen3_next", "folded", False, True, "Copying: not available in any layer, because a gate of each position"),
        ("qwen3_next", "raw", True, True, ""),
        ("gemma4_text", "folded", True, True, "Copying: not available in layer 2, because it uses the keys and values"),
        ("granitemoehybrid", "folded", True, True, ""),
    ],
)
def test_only_what_needs_the_missing_circuit_is_missing(
    model_type: str, basis: HeadBasis, copies: bool, matches: bool, why: str, dtype: torch.dtype
) -> None:
    lm = load(tiny_model(model_type).to(dtype))
    circuits = Circuits(lm)
    section = heads_section(circuits, circuits.head_scores(n_sequences=2, length=6), basis, lm.provenance(basis=basis))
    tables = {exhibit.name: exhibit.table for exhibit in section.exhibits}
    weights = tables["heads_by_weights"]
    heads = [(n, h) for n in lm.attention_layers for h in range(4)]
    for name, table in tables.items():
        if name != "copying_histogram":
            assert sorted(zip(table["layer"], table["head"], strict=True)) == heads
    for exists, columns in (
        (copies, ("copying_score", "positive_eigenvalues")),
        (matches, ("matching_score", "positive_matching")),
    ):
        for column in columns:
            shared = (2, 3) if model_type == "gemma4_text" else ()
            assert [v is not None for v in weights[column]] == [exists and n not in shared for n in weights["layer"]]
    for kind in BY_PATTERN:
        assert all(value is not None and math.isfinite(value) for value in tables["heads"][kind])
    assert all(value is not None and math.isfinite(value) for value in tables["heads_copying"]["copying"])
    assert any(line.startswith(why) for line in section.text) and (bool(why) or len(section.text) == 1)
    if not copies:
        assert sum(tables["copying_histogram"]["heads"]) == 0


def test_heads_with_a_role_come_first_by_the_score_that_gives_it() -> None:
    lm = load()
    circuits = Circuits(lm)
    section = heads_section(circuits, circuits.head_scores(n_sequences=4, length=16), "folded", lm.provenance())
    tables = {exhibit.name: exhibit.table for exhibit in section.exhibits}
    heads = tables["heads"]
    roles = heads["role"]
    order = ["induction", "previous token", "duplicate token", ""]
    assert set(roles) <= set(order) and roles == sorted(roles, key=order.index) and roles[0] == "induction"
    for role, kind in (("induction", "induction"), ("previous token", "previous_token")):
        scores = [row[kind] for row in heads.rows() if row["role"] == role]
        assert scores == sorted(scores, reverse=True)
    copying = tables["heads_copying"]["copying"]
    assert copying == sorted(copying, reverse=True)


def test_the_command_writes_null_where_a_circuit_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    from unembed.cli import option_groups
    from unembed.cli.commands import app

    lm = load(tiny_model("qwen3_next"))
    monkeypatch.setattr(option_groups.Opening, "open", lambda self, seed=0: lm)
    result = CliRunner().invoke(app, ["circuits", "heads", "--sequences", "2", "--length", "6", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["tables"]["heads_by_weights"]["rows"]
    assert [row["copying_score"] for row in rows] == [None] * 4
    assert all(row["matching_score"] is not None for row in rows)
    shown = CliRunner().invoke(app, ["circuits", "heads", "--sequences", "2", "--length", "6"])
    assert shown.exit_code == 0, shown.output
    assert "Copying: not available in any layer" in " ".join(shown.output.split()) and "nan" not in shown.output.split()


@pytest.mark.parametrize(
    ("model_type", "layer", "there", "missing"),
    [
        ("qwen3_next", 3, "Matching score of its QK circuit", "Not available: the folded OV circuits of layer 3"),
        ("deepseek_v3", 0, "Copying score", "Not available: the whole keys of layer 0"),
        ("granitemoehybrid", 3, "Copying score", ""),
    ],
)
def test_one_head_is_shown_by_the_circuits_that_it_has(model_type: str, layer: int, there: str, missing: str) -> None:
    lm = load(tiny_model(model_type))
    sections = head_sections(Circuits(lm), layer, 1, 5, "folded", 0, lm.provenance(basis="folded"))
    text = sections[0].text
    assert text[0].startswith(there) and any(line.startswith(missing) for line in text)
    names = [exhibit.name for exhibit in sections[1].exhibits]
    assert names == ([] if "OV" in missing else ["ov_entries"]) + ([] if "keys" in missing else ["qk_entries"])
