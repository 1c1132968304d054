"""`unembed patch` and `unembed ablate` print what the library returns."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import unembed
from unembed.cli.commands import app

PROMPT = "Once upon a time there was a little"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_patch_prints_the_grid_and_gives_its_rows_as_json() -> None:
    pair = ("The king of France", "The king of England")
    assert "Fraction of" in run("patch", *pair) and "·England" in run("patch", *pair)
    rows = json.loads(run("patch", *pair, "--points", "heads", "--json"))["rows"]
    found = unembed.load().patch(*pair, points="z")
    assert len(rows) == found.values.numel()
    assert rows[0]["recovered"] == pytest.approx(float(found.recovered.flatten()[found.recovered.abs().argmax()]))


def test_paths_lists_edges_with_their_composition() -> None:
    text = (
        "The concert was led by{} Gordon, and the songs were written in the summer. A year later the band met Charles"
    )
    prompts = (text.format(" Charles"), text.format(" Thomas"))
    options = ("--model", "attn-2l", "--answer", " Gordon", "--noising", "--json")
    rows = json.loads(run("paths", *prompts, *options))["rows"]
    assert len(rows) == 8 * 8 * 3
    assert (rows[0]["sender"], rows[0]["receiver"]) == ("L0H5", "L1H5.k") and rows[0]["composition"] > 0.1
    one = json.loads(run("paths", *prompts, "--from", "L0H5", "--to", "logits", *options))["rows"]
    assert [(row["sender"], row["receiver"]) for row in one] == [("L0H5", "logits")]
    wrong = CliRunner().invoke(app, ["paths", *prompts, "--from", "L9H0", "--model", "attn-2l"])
    assert wrong.exit_code == 1


def test_ablate_lists_heads_memories_and_the_screen() -> None:
    rows = json.loads(run("ablate", PROMPT, "--json"))["rows"]
    assert len(rows) == 48 and abs(rows[0]["effect"]) >= abs(rows[-1]["effect"])
    one = json.loads(run("ablate", PROMPT, "--memory", "L5M955", "--json"))["rows"]
    same = json.loads(run("ablate", PROMPT, "--memory", "5.955", "--json"))["rows"]
    assert one == same and one[0]["ablated"] == "L5M955"
    assert "an approximation" in run("ablate", PROMPT, "--what", "screen", "-k", "4")


def test_explain_shows_direct_beside_total_effects() -> None:
    options = ("--token", " girl", "--against", " boy", "--effects", "--json")
    rows = json.loads(run("explain", PROMPT, *options))["rows"]
    assert {"writer", "direct_effect", "total_effect", "note"} == set(rows[0]) and rows[0]["writer"].startswith(
        "memory L"
    )


def test_against_without_an_answer_is_wrong_usage() -> None:
    assert CliRunner().invoke(app, ["ablate", PROMPT, "--against", " boy"]).exit_code == 2
