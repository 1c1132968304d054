"""`--help` reads alike everywhere, and its examples are command lines that are understood."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from unembed.cli.commands import app
from unembed.cli.help_text import commands

ALL = dict(commands(get_command(app)))
LEAVES = {words for words, command in ALL.items() if not hasattr(command, "commands")}
EXAMPLES = {words: str(ALL[words].epilog).removeprefix("Try: `").removesuffix("`") for words in LEAVES}


def test_every_command_has_an_example_and_every_example_a_command() -> None:
    assert {words for words, example in EXAMPLES.items() if example.startswith(f"unembed {words}")} == LEAVES


@pytest.mark.parametrize("words", sorted(LEAVES))
def test_an_example_is_understood_by_its_command(words: str) -> None:
    program, *given = shlex.split(EXAMPLES[words])
    names = words.split()
    assert (program, given[: len(names)]) == ("unembed", names)
    ALL[words].make_context(words, given[len(names) :])


def test_an_example_with_a_removed_option_is_detected() -> None:
    with pytest.raises(Exception, match="No such option"):
        ALL["trace"].make_context("trace", ["The first", "--gone"])


@pytest.mark.parametrize("words", sorted(LEAVES))
def test_help_names_values_in_capitals_and_ends_with_the_example(words: str) -> None:
    shown = CliRunner().invoke(app, [*words.split(), "--help"], env={"COLUMNS": "80"}).stdout
    usage = re.findall(r"Usage: (.*?)\n *\n", shown, re.DOTALL)[0]
    assert re.findall(r"\{[^}]*[a-z][^}]*\}", usage) == []
    options = shown.split("─ Options ─")[1]
    assert re.findall(r"<[a-z]+", options) == []
    assert " ".join(shown.split("Try: ")[1].split()) == " ".join(EXAMPLES[words].split())
    assert max(map(len, shown.splitlines())) <= 80
    assert not any(line.endswith(" ") for line in shown.splitlines())
