"""`unembed patch` and `unembed ablate` print what the library returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unembed
from tests.models.decoder_classes import tiny_model
from tests.sweeps.recorder import lettered
from unembed.cli.commands import app

PROMPT = "Once upon a time there was a little"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_patch_prints_the_grid_and_gives_its_rows_as_json() -> None:
    pair = ("The king of France", "The king of England")
    shown = run("patch", *pair)
    assert "Fraction of" in shown and ":·England" in shown and "more rows (--csv" in shown
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
    scores = unembed.circuits(unembed.load("attn-2l")).head_scores(seed=0)
    sender = f"L0H{int(scores.previous_token[0].argmax())}"
    readers = {f"L1H{head}.k" for head in (scores.induction[1] > 0.2).nonzero().flatten().tolist()}
    assert rows[0]["sender"] == sender and rows[0]["receiver"] in readers and rows[0]["composition"] > 0.1
    one = json.loads(run("paths", *prompts, "--from", sender, "--to", "logits", *options))["rows"]
    assert [(row["sender"], row["receiver"]) for row in one] == [(sender, "logits")]
    wrong = CliRunner().invoke(app, ["paths", *prompts, "--from", "L9H0", "--model", "attn-2l"])
    assert wrong.exit_code == 1


def test_ablate_lists_heads_memories_and_the_screen() -> None:
    rows = json.loads(run("ablate", PROMPT, "--json"))["rows"]
    lm = unembed.load()
    assert len(rows) == lm.n_layers * lm.n_heads and abs(rows[0]["effect"]) >= abs(rows[-1]["effect"])
    one = json.loads(run("ablate", PROMPT, "--memory", "L5M955", "--json"))["rows"]
    same = json.loads(run("ablate", PROMPT, "--memory", "5.955", "--json"))["rows"]
    assert one == same and one[0]["ablated"] == "L5M955"
    assert "an approximation" in run("ablate", PROMPT, "--what", "screen", "-k", "4")


def test_ablate_takes_layers_clusters_and_labelled_memories(tmp_path: Path) -> None:
    rows = json.loads(run("ablate", PROMPT, "--what", "layers", "--json"))["rows"]
    assert sorted(row["ablated"] for row in rows) == [f"layer {n}" for n in range(unembed.load().n_layers)]
    lm = unembed.load()
    clusters = unembed.cluster_values(lm, lm.n_layers * lm.d_mlp // 10)
    members = clusters.members(clusters.of(5, 955))
    one = json.loads(run("ablate", PROMPT, "--cluster", "5.955", "--json"))["rows"][0]
    same = lm.ablate(PROMPT, memories=[members])
    assert str(len(members)) in one["ablated"] and one["metric"] == pytest.approx(float(same.values[0]))

    folder = tmp_path / "small.index"
    index = unembed.Index.build(lm, ["The king of France was old."], folder)
    from unembed.index.labels import Label

    index.add_labels([Label(5, 955, "Girls", "ann"), Label(4, 3, "girls", "ben")])
    labelled = json.loads(run("ablate", PROMPT, "--concept", "girls", "--index", str(folder), "--json"))["rows"]
    assert labelled[0]["ablated"] == "girls (2 memories)"
    expected = lm.ablate(PROMPT, memories=[[(5, 955), (4, 3)]])
    assert labelled[0]["metric"] == pytest.approx(float(expected.values[0]))
    wrong = CliRunner().invoke(app, ["ablate", PROMPT, "--concept", "cats", "--index", str(folder)])
    assert wrong.exit_code == 1


def test_ablate_over_a_corpus_lists_the_loss_and_its_tokens(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The cat sat on the mat.\nIt rained all day, and the cat sat in the house.\n" * 3)
    options = ("--corpus", str(text), "--what", "layers", "--tokens", "60", "--json")
    rows = json.loads(run("ablate", *options))["rows"]
    n_layers = unembed.load().n_layers
    assert len(rows) == n_layers and all(row["low"] <= row["loss_change"] <= row["high"] for row in rows)
    assert {row["ablated"] for row in json.loads(run("ablate", *options, "--to", "resample"))["rows"]} == {
        f"layer {n}" for n in range(n_layers)
    }
    tokens = json.loads(
        run("ablate", "--corpus", str(text), "--memory", "5.955", "--by-token", "--to", "position-mean", "--json")
    )["rows"]
    assert tokens and {"token", "times", "loss_change", "low", "high"} == set(tokens[0])


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (PROMPT, "--corpus", "shipped"),
        (PROMPT, "--by-token"),
        (PROMPT, "--to", "resample"),
        ("--corpus", "shipped", "--what", "screen"),
        ("--corpus", "shipped", "--answer", " girl"),
    ],
)
def test_options_of_ablate_that_do_not_go_together_are_refused_in_one_line(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["ablate", *arguments])
    assert result.exit_code == 1 and not result.stdout and len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("patch", "The king of France", "The old king of England"), "prompts of 4 and 5 tokens"),
        (("patch", "The king of France", "The king of France"), "in both runs"),
        (("patch", "The king of France", "The king of England", "--answer", " Antidisestablishment"), "Antidisest"),
        (("patch", "A king", "A queen", "--model", "attn-2l", "--points", "memories"), "coefficients"),
        (("patch", "A king", "A queen", "--model", "attn-0l"), "no layers"),
        (("ablate", PROMPT, "--answer", " Antidisestablishment"), "Antidisest"),
        (("ablate", PROMPT, "--model", "attn-2l", "--memory", "L0M3"), "memories"),
        (("ablate", PROMPT, "--memory", "L9M3"), "layer 9"),
        (("paths", "The king of France", "The king of France", "--from", "L0H1", "--to", "logits"), "in both runs"),
    ],
)
def test_what_cannot_be_answered_is_one_line_and_status_1(arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 1 and not result.stdout
    (line,) = result.stderr.strip().splitlines()
    assert words in line


def test_a_cluster_is_ablated_over_a_corpus(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The cat sat on the mat.\nIt rained all day, and the cat sat in the house.\n")
    rows = json.loads(run("ablate", "--corpus", str(text), "--cluster", "5.955", "--json"))["rows"]
    lm = unembed.load()
    clusters = unembed.cluster_values(lm, lm.n_layers * lm.d_mlp // 10)
    members = clusters.members(clusters.of(5, 955))
    same = lm.ablate(unembed.open_corpus(text), memories={"cluster of L5M955": members})
    assert rows[0]["loss_change"] == pytest.approx(float(same.effects[0])) and rows[0]["ablated"] == same.labels[0]


def test_the_cluster_of_an_experts_memory_is_ablated_by_its_name(tmp_path: Path) -> None:
    tiny_model("glm4_moe").save_pretrained(tmp_path)
    tokenizer = lettered("gpt2").tokenizer
    assert tokenizer is not None
    tokenizer.save_pretrained(tmp_path)
    lm = unembed.load(tmp_path)
    layer = next(n for n in range(lm.n_layers) if lm.experts_of(n) is not None)
    name = f"L{layer}E1M2"
    rows = json.loads(run("ablate", "ab", "--model", str(tmp_path), "--cluster", name, "--json"))["rows"]
    assert len(rows) == 1 and rows[0]["ablated"].startswith(f"cluster of {name} (")


def test_explain_shows_direct_and_total_effects() -> None:
    options = ("--token", " girl", "--against", " boy", "--effects", "--json")
    rows = json.loads(run("explain", PROMPT, *options))["rows"]
    assert {"writer", "direct_effect", "total_effect", "note"} == set(rows[0])
    assert any(row["writer"].startswith("memory L") for row in rows)


def test_against_without_a_token_is_refused() -> None:
    result = CliRunner().invoke(app, ["ablate", PROMPT, "--against", " boy"])
    assert result.exit_code == 1 and "Give --token too" in result.stderr


def test_the_map_of_patching_is_a_figure_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run("patch", "The king of France", "The king of England", "--html", str(page))
    html = page.read_text()
    assert "<svg" in html and "1: king" in html and html.count("recovered by patching") >= 1
