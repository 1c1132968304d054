"""Shipped models trained with a developer's settings: branches, earlier weights, another vocabulary."""

from __future__ import annotations

import json
import lzma

import pytest
from tools.decay_branch import with_decay
from tools.train_models import main, train_model
from tools.warm_start import Milestone
from transformers import AutoModelForCausalLM

from unembed.errors import CheckpointFault, InvalidInput
from unembed.training import recipes
from unembed.training.networks import Shape
from unembed.training.recipes import Phase, Recipe

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


def test_a_branch_leaves_the_trunk_as_it_was(corpus, tmp_path):
    call = {"corpus": corpus, "out": tmp_path, "recipe": TINY, "compiled": False}
    train_model("tiny", **call, until=2)
    trunk = (tmp_path / "tiny" / "checkpoint.pt").read_bytes()
    train_model("tiny", **call, decay=3, until=3)
    branch = train_model("tiny", **call, decay=3)
    assert (tmp_path / "tiny" / "checkpoint.pt").read_bytes() == trunk
    assert branch == tmp_path / "tiny-decay" / "model"
    walked = recipes.load(tmp_path / "tiny-decay" / "recipe.json")
    assert walked == with_decay(TINY, 2, 3)
    assert walked.steps == 5
    assert AutoModelForCausalLM.from_pretrained(branch).config.n_layer == 1


def test_a_branch_needs_a_trunk(corpus, tmp_path):
    with pytest.raises(CheckpointFault, match="Train tiny first"):
        train_model("tiny", corpus=corpus, out=tmp_path, recipe=TINY, compiled=False, decay=3)


def test_an_exported_model_starts_a_run_at_its_place_in_the_text(corpus, tmp_path):
    call = {"corpus": corpus, "recipe": TINY, "compiled": False}
    earlier = train_model("tiny", **call, out=tmp_path / "a", until=2)
    milestone = Milestone.load(earlier)
    assert milestone is not None and milestone.step == 2
    settings = {"tokenizer": tmp_path / "a" / "tokenizer", "start": earlier}
    later = train_model("tiny", **call, **settings, out=tmp_path / "b", until=3)
    steps = [json.loads(line)["step"] for line in (later / "loss.jsonl").read_text().splitlines()]
    assert steps == [3]


def test_a_model_without_layers_has_no_branch(corpus, tmp_path):
    flat = Recipe(Shape(0, 8, 2, 4, 0, 8192, 512), (Phase(2, 1, 4),), warmup=1)
    with pytest.raises(InvalidInput, match="bigram counts"):
        train_model("flat", corpus=corpus, out=tmp_path, recipe=flat, decay=2)
