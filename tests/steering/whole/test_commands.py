"""`unembed steer`, `toxicity` and `early-exit` on a tiny model, and how bad input looks."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.cli.conftest import save_model
from unembed.cli.commands import app

TEXT = "\n".join(
    ["The first month of the year is January", "The year is the first", "of the month The first year"] * 12
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("control") / "tiny")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(TEXT)
    return path


def ask(*arguments, status=0):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == status, done.output + repr(done.exception)
    return done


def test_greedy_refuses_comments_of_one_kind(folder, tmp_path):
    (tmp_path / "c.csv").write_text("You are kind,0\nThank you,0\n")
    done = ask(
        "toxicity", "select", "--method", "greedy", "--comments", tmp_path / "c.csv", "--model", folder, status=1
    )
    assert "the same label" in done.output


def test_steer_finds_sets_saves_and_loads(folder, tmp_path):
    saved = tmp_path / "edits.json"
    first = ("steer", "The first month", "--model", folder, "--new-tokens", 4, "--cost-tokens", 256, "--json")
    shown = json.loads(ask(*first, "--promote", "year", "--set", "1.3=9", "--save", saved, "--values", 1).stdout)
    assert shown["edits"][0]["layer"] == 1 and len(shown["edits"]) == 2
    assert shown["perplexity"]["edited"] != shown["perplexity"]["plain"]
    again = json.loads(ask(*first, "--edits", saved).stdout)
    assert again["edits"] == shown["edits"] and again["edited"] == shown["edited"]
    plain = ask("steer", "The first month", "--model", folder, "--set", "1.3=9", "--cost-tokens", 0, "--plain").stdout
    assert "edited" in plain and "next token" in plain


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("steer", "The"), 1, "steering without a change"),
        (("steer", "The", "--promote", "qqzzqq"), 1, "no form of it is a single token"),
        (("steer", "The", "--set", "1.3=3e38", "--cost-tokens", 0), 1, "hold NaN or infinity under these edits"),
        (("steer", "The", "--edits", "/no/such.json"), 1, "cannot read edits"),
        (("toxicity", "evaluate", "--prompts", "/no/such.jsonl"), 1, "cannot read prompts"),
        (("toxicity", "select", "--scorer", "/no/such/model", "--offline"), 1, "the scorer /no/such/model"),
        (("toxicity", "select", "--method", "greedy"), 1, "--comments"),
        (("toxicity", "select", "--method", "paper"), 1, "picked in gpt2-medium"),
        (("early-exit", "fit", "--out", "/no/such/folder/rule.npz"), 1, "does not exist"),
        (("early-exit", "fit", "--out", "rule.npz", "--threshold", "high"), 2, "precision"),
        (("early-exit", "generate", "/no/such.npz", "The"), 1, "cannot read an exit rule"),
    ],
)
def test_bad_input_is_one_line(folder, arguments, status, message):
    done = ask(*arguments, "--model", folder, status=status)
    text = " ".join((done.stderr or done.output).replace("│", " ").split())
    assert message in text
    if status == 1:
        assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_toxicity_selects_and_evaluates(folder, tmp_path):
    chosen = tmp_path / "values.json"
    ask("toxicity", "select", "--model", folder, "--values", 2, "--below", 1, "--save", chosen, "--json")
    prompts, words, texts = tmp_path / "p.jsonl", tmp_path / "w.txt", tmp_path / "t.jsonl"
    prompts.write_text('{"prompt": {"text": "The first month"}}\n{"prompt": {"text": "The year"}}\n')
    words.write_text("year\n")
    command = ("toxicity", "evaluate", "--model", folder, "--prompts", prompts, "--edits", chosen, "--words", words)
    command += ("--new-tokens", 3, "--clean-tokens", 128, "--json", "--save-texts", texts)
    rows = {row["arm"]: row for row in json.loads(ask(*command).stdout)["rows"]}
    assert set(rows) == {"plain", "values", "word filter"}
    assert len(texts.read_text().splitlines()) == 6
    stored = json.loads(ask(*command[:-2], "--scorer", f"stored:{texts}").stdout)["rows"]
    assert stored[0]["toxicity"] == rows["plain"]["toxicity"]
    prompts.write_text('{"prompt": {"text": "The"}}\nnot json\n')
    assert "line 2" in ask(*command, status=1).stderr


def test_greedy_selection_prints_its_curve(folder, tmp_path):
    comments = tmp_path / "c.csv"
    comments.write_text(
        "".join(
            f'"{t}",{i % 2}\n' for i, t in enumerate(f"{line} {n}" for n in range(9) for line in TEXT.splitlines()[:3])
        )
    )
    shown = ask(
        *("toxicity", "select", "--method", "greedy", "--comments", comments, "--model", folder),
        *("--values", 2, "--tokens", 256, "--budget", 0.5, "--json"),
    )
    rows = json.loads(shown.stdout)["rows"]
    assert rows[0]["step"] == 0 and {"unwanted_nats", "price_nats", "perplexity"} <= set(rows[0])


def test_early_exit_is_fitted_measured_and_used(folder, corpus, tmp_path):
    rule = tmp_path / "rule.npz"
    common = ("--model", folder, "--json")
    fitted = ask("early-exit", "fit", "--out", rule, "--corpus", corpus, "--examples", 30, "--clusters", 12, *common)
    assert sum(row["examples"] for row in json.loads(fitted.stdout)["rows"]) == 30
    row = json.loads(ask("early-exit", "evaluate", rule, "--corpus", corpus, "--examples", 20, *common).stdout)["rows"][
        0
    ]
    assert row["examples"] == 20 and 0 <= row["accuracy"] <= 100
    given = ("--corpus", corpus, "--examples", 20, "--model", folder)
    text = " ".join(ask("early-exit", "evaluate", rule, *given).stdout.split())
    assert "tokens as the full model's, %" in text and "layers saved of 2, mean" in text
    shown = json.loads(ask("early-exit", "generate", rule, "The first month", "--new-tokens", 5, *common).stdout)
    assert shown["text"].startswith("The first month") and shown["n_layers"] == 2
    other = save_model(tmp_path / "other", "llama")
    # The rule is read first: a corpus that does not exist is not even looked for.
    refused = ask("early-exit", "evaluate", rule, "--corpus", "nowhere.txt", "--model", other, status=1)
    assert "weights are not those of" in refused.stderr
