"""One command for all models: names, refusals, and a model that opens."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import unembed
from unembed.cli.commands import app
from unembed.errors import InvalidInput
from unembed.training.by_name import train


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="wren, attn-1l, attn-2l, wikilm-mini"):
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
    assert lm.trace("The river").account(7).error < 1e-4
