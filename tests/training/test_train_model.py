"""One command for all models: names, refusals, and a model that opens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import unembed
from unembed.cli.commands import app
from unembed.errors import InvalidInput
from unembed.training.train_model import train
from unembed.training.wikilm_mini import Mini


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="wren, attn-0l, attn-1l, attn-2l, wikilm-mini"):
        train("sparrow", corpus=None, out=tmp_path)


def test_wren_needs_a_corpus(tmp_path: Path) -> None:
    failed = CliRunner().invoke(app, ["train", "wren", "--out", str(tmp_path)])
    assert failed.exit_code == 1
    assert failed.stderr.count("\n") == 1


def test_what_the_command_leaves_opens(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["train", "wikilm-mini", "--until", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    folder = done.stdout.strip()
    assert folder == str(tmp_path / "wikilm-mini")
    lm = unembed.load(folder)
    assert lm.trace("The river").attribution(7).error < 1e-4


def test_as_many_layers_as_bands_of_the_vocabulary_open(tmp_path: Path) -> None:
    command = ["train", "wikilm-mini", "--layers", "3", "--steps", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    folder = done.stdout.strip()
    lm = unembed.load(folder)
    assert (lm.n_layers, len(lm.hf.config.cutoffs) + 1) == (3, 3)
    assert lm.trace("The river").attribution(7).error < 1e-4
    shown = CliRunner().invoke(app, ["trace", "The river", "--model", folder])
    assert shown.exit_code == 0, shown.stderr


def test_another_size_is_named_after_it_and_narrows_the_rate(tmp_path: Path) -> None:
    command = ["train", "wikilm-mini", "--until", "1", "--layers", "2", "--width", "64", "--bfloat16"]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.stderr
    lm = unembed.load(done.stdout.strip())
    assert lm.name == "wikilm-mini-2x64"
    assert (lm.n_layers, lm.d_model, lm.d_mlp, lm.n_heads) == (2, 64, 256, 2)
    assert lm.weights.W_U.dtype == torch.float32  # bfloat16 is for the products only
    assert Mini().sized(6, 192) == Mini()
    assert Mini().sized(8, 768).lr == pytest.approx(Mini().lr / 2)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("wikilm-mini", {"width": 100}, "multiple of 32"),
        ("wikilm-mini", {"width": 288}, "multiple of 64"),
        ("wikilm-mini", {"layers": 0}, "at least 1"),
        ("wikilm-mini", {"steps": 0}, "at least 1"),
        ("wren", {"layers": 4}, "its recipe is fixed"),
        ("attn-1l", {"bfloat16": True}, "its recipe is fixed"),
    ],
)
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, name: str, options: dict, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        train(name, corpus=None, out=tmp_path, **options)
    assert not list(tmp_path.iterdir())
