"""Groups of options: written into a command once, checked before anything costs time."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from unembed.cli import help_text
from unembed.cli.commands import app
from unembed.cli.option_groups import Opening, Output, grouped

OPENING = {"model", "revision", "tokenizer", "offline", "dtype", "device"}


def test_a_command_receives_each_group_whole() -> None:
    seen: list[Any] = []
    one = typer.Typer()

    @one.command()
    @grouped
    def command(word: str, opening: Opening = Opening(model="attn-2l"), output: Output = Output()) -> None:
        """Take a word."""
        seen.append((word, opening, output))

    assert CliRunner().invoke(one, ["x", "--tokenizer", "t", "--csv"]).exit_code == 0
    assert CliRunner().invoke(one, ["y", "-m", "wren"]).exit_code == 0
    assert seen == [
        ("x", Opening(model="attn-2l", tokenizer="t"), Output(csv=True)),
        ("y", Opening(model="wren"), Output()),
    ]


def test_every_command_that_opens_a_model_takes_all_its_options() -> None:
    commands = dict(help_text.commands(get_command(app)))
    opening = {words for words, c in commands.items() if "revision" in {p.name for p in c.params}}
    assert {"circuits heads", "circuits stream", "report", "trace", "serve", "toxicity select"} <= opening
    for words in opening:
        assert {p.name for p in commands[words].params} >= OPENING, words


def test_two_forms_for_stdout_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="choose one"):
        Output(as_json=True, csv=True)
