"""A copy of a model that goes on training on comments."""

from __future__ import annotations

import json

from tests.cli.conftest import save_model

import unembed
from tools import fine_tune


def test_fine_tuning_teaches_the_comments(tmp_path):
    save_model(tmp_path / "tiny")
    (tmp_path / "c.csv").write_text("".join(f'"The first month of the year is January {i}",1\n' for i in range(200)))
    arguments = [str(tmp_path / "c.csv"), "--model", str(tmp_path / "tiny"), "--out", str(tmp_path / "out")]
    assert fine_tune.main([*arguments, "--tokens", "10240", "--length", "16", "--lr", "0.01"]) == 0
    facts = json.loads((tmp_path / "out" / "fine_tune.json").read_text())
    assert facts["last_loss"] < 0.6 * facts["first_loss"]
    assert unembed.load(str(tmp_path / "out")).n_layers == 2
