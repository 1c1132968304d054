"""Shipped models trained with a developer's settings: earlier weights, another vocabulary."""

from __future__ import annotations

import json
import lzma
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from tools.train_models import main, train_model, train_series
from tools.training.networks import Shape
from tools.training.recipes import Phase, Recipe
from tools.warm_start import Milestone

import unembed
from tools.training import checkpoint_series
from unembed.models import find_checkpoints

TINY = Recipe(Shape(1, 8, 2, 4, 16, 8192, 512), (Phase(2, 512, 1), Phase(4, 512, 1, lr=(1.0, 0.0))), warmup=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    text = "the king and queen walked slowly into January . " * 6
    lines = "".join(json.dumps({"id": f"doc-{i}", "text": text}) + "\n" for i in range(200))
    (folder / "a.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    return folder


def test_the_command_names_what_is_wrong_and_fails(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["--corpus", str(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 1
    assert "no training text in" in capsys.readouterr().err


def test_the_values_that_change_are_chosen_when_a_phase_needs_them(corpus, tmp_path):
    recipe = replace(TINY, phases=(Phase(2, 512, 1), Phase(3, 512, 1, agreement=0.1)))
    call = {"corpus": corpus, "recipe": recipe, "compiled": False, "out": tmp_path}
    train_model("tiny", **call, until=2)
    assert not (tmp_path / "tiny" / "changing.npy").exists()
    folder = train_model("tiny", **call)
    assert Milestone.load(folder).step == 3
    assert np.load(tmp_path / "tiny" / "changing.npy").shape == (1, 16)


def test_an_exported_model_starts_a_run_at_its_place_in_the_text(corpus, tmp_path):
    call = {"corpus": corpus, "recipe": TINY, "compiled": False}
    earlier = train_model("tiny", **call, out=tmp_path / "a", until=2)
    milestone = Milestone.load(earlier)
    assert milestone is not None and milestone.step == 2
    settings = {"tokenizer": tmp_path / "a" / "tokenizer", "start": earlier}
    later = train_model("tiny", **call, **settings, out=tmp_path / "b", until=3)
    steps = [json.loads(line)["step"] for line in (later / "loss.jsonl").read_text().splitlines()]
    assert steps == [2, 3]


def test_a_series_of_checkpoints_opens_and_a_stopped_one_goes_on(corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(checkpoint_series.RECIPES, "attn-2l", replace(TINY, shape=Shape(2, 8, 2, 4, 0, 8192, 512)))
    call = {"corpus": corpus, "compiled": False, "checkpoints": 3}
    folder = train_series("attn-2l", **call, out=tmp_path)
    found = find_checkpoints(str(folder), "step*")
    assert [one.name for one in found] == ["step1", "step2", "step4"]
    models = {one.name: unembed.load(one.model) for one in found}
    assert models["step1"].tokenizer.get_vocab() == models["step4"].tokenizer.get_vocab()
    weights = {name: lm.weights.W_U for name, lm in models.items()}
    assert not torch.equal(weights["step1"], weights["step4"])
    shutil.rmtree(folder / "step4")
    rows = (folder / "loss.jsonl").read_text()
    assert train_series("attn-2l", **call, out=tmp_path) == folder and (folder / "loss.jsonl").read_text() == rows
    assert torch.equal(unembed.load(str(folder / "step4")).weights.W_U, weights["step4"])


def test_a_series_that_cannot_be_is_refused(corpus, tmp_path, capsys):
    for options in (["wren", "--checkpoints", "3"], ["attn-2l", "--checkpoints", "1"]):
        assert main([*options, "--corpus", str(corpus), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "no short recipe" in said and "1 checkpoints of 2,400 updates" in said
    assert checkpoint_series.spaced(3200, 4) == [32, 149, 689, 3200]
