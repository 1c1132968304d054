"""One command for a small WikiLM: refusals, sizes, and a model that opens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tools.train_wikilm import main
from tools.training.wikilm_mini import Mini
from typer.testing import CliRunner

import unembed
from unembed.cli.commands import app
from unembed.models import find_checkpoints


def trained(capsys: pytest.CaptureFixture[str], out: Path, *options: str) -> str:
    """The folder that the command prints."""
    assert main(["--out", str(out), *options]) == 0
    return capsys.readouterr().out.strip()


def test_what_the_command_leaves_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(capsys, tmp_path, "--until", "1")
    assert folder == str(tmp_path / "wikilm-mini")
    lm = unembed.load(folder)
    assert lm.trace("The river").attribution(7).error < 1e-4


def test_as_many_layers_as_bands_of_the_vocabulary_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(capsys, tmp_path, "--layers", "3", "--steps", "1")
    lm = unembed.load(folder)
    assert (lm.n_layers, len(lm.hf.config.cutoffs) + 1) == (3, 3)
    assert lm.trace("The river").attribution(7).error < 1e-4
    shown = CliRunner().invoke(app, ["trace", "The river", "--model", folder])
    assert shown.exit_code == 0, shown.stderr


def test_another_size_is_named_after_it_and_narrows_the_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = unembed.load(trained(capsys, tmp_path, "--until", "1", "--layers", "2", "--width", "64", "--bfloat16"))
    assert lm.name == "wikilm-mini-2x64"
    assert (lm.n_layers, lm.d_model, lm.d_mlp, lm.n_heads) == (2, 64, 256, 2)
    assert lm.weights.W_U.dtype == torch.float32  # bfloat16 is for the products only
    assert Mini().sized(6, 192) == Mini()
    assert Mini().sized(8, 768).lr == pytest.approx(Mini().lr / 2)


def test_checkpoints_on_the_way_open_and_the_last_is_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--layers", "2", "--width", "64", "--steps", "3")
    folder = Path(trained(capsys, tmp_path / "a", *options, "--checkpoints", "2"))
    found = [one.model for one in find_checkpoints(str(folder), "step*")]
    assert [Path(path).name for path in found] == ["step1", "step3"]
    first, last, whole = (
        unembed.load(path).weights.W_in[0] for path in (*found, trained(capsys, tmp_path / "b", *options))
    )
    assert torch.equal(last, whole) and not torch.equal(first, last)
    assert not list(folder.glob("step*/checkpoint*"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--width", "100"], "multiple of 32"),
        (["--width", "288"], "multiple of 64"),
        (["--layers", "0"], "at least 1"),
        (["--steps", "0"], "at least 1"),
        (["--steps", "3", "--checkpoints", "9"], "each needs updates of its own"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert main([*options, "--out", str(tmp_path)]) == 1
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_below_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("a text")
    assert main(["--until", "1", "--out", str(tmp_path / "file" / "below")]) == 1
    assert "Not a directory" in capsys.readouterr().err
