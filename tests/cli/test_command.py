"""Commands made from annotated functions: groups of options, former spellings, and one meaning for each option."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from unembed.analyses import listings
from unembed.cli import commands
from unembed.cli.analysis import command_of
from unembed.cli.command import COMMANDS, Command, add_command, command, fields_of, spellings
from unembed.cli.option_groups import Opening, Output
from unembed.names import HeadAddress
from unembed.options import Head, Option, Parameter, Token, Tokens, Top

OWN_DEFAULTS = {
    "--examples": "fitting needs more than evaluating",
    "--max-tokens": "a pass over a corpus costs as much as its analysis does for each token",
    "--method": "the methods are of one command",
    "--model": "an analysis of circuits opens a model that has them; an index knows its model",
    "--order": "an expansion is one prompt's, and is written out",
    "--seed": "where it is not given, the provenance of most commands holds none",
    "--sort": "the columns are of one command",
    "--tokens": "a card has room for more than a row",
}
"""Options whose default differs from command to command, and why."""


def run(function: Any, *words: str) -> tuple[Any, Any]:
    """The result of a command line with one command, and what the function was given."""
    seen: list[Any] = []

    def noted(**given: Any) -> None:
        seen.append(given)

    command("one", "")(function)
    declared = COMMANDS.pop()
    app = typer.Typer()
    add_command(app, "one", Command(declared.words, noted, declared.slots, declared.help, declared.example))
    done = CliRunner().invoke(app, list(words))
    return done, (seen or [None])[0]


def one(
    head: Head,
    *,
    top: Top = 3,
    token: Token = None,
    check: Annotated[bool, Option("Check.")] = False,
    opening: Opening = Opening(model="attn-2l"),
    output: Output = Output(),
) -> None:
    """Do one thing."""


def test_a_command_receives_each_group_whole_and_texts_as_read() -> None:
    done, given = run(one, "L1H5", "--tokenizer", "t", "--csv", "-k", "7")
    assert done.exit_code == 0, done.output
    assert given == {
        "head": HeadAddress(1, 5),
        "top": 7,
        "token": None,
        "check": False,
        "opening": Opening(model="attn-2l", tokenizer="t"),
        "output": Output(csv=True),
    }


def test_a_variable_names_the_model_of_a_command_that_is_given_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_MODEL", "smollm2")
    assert run(one, "L1H5")[1]["opening"] == Opening(model="smollm2")
    assert run(one, "L1H5", "--model", "wren")[1]["opening"] == Opening(model="wren")


@pytest.mark.parametrize("words", [["1.5"], ["1", "5"], ["--check", "L1H5"], ["--top", "3", "1", "5"]])
def test_a_head_is_written_in_three_ways(words: list[str]) -> None:
    done, given = run(one, *words)
    assert done.exit_code == 0 and given["head"] == (1, 5)


def test_a_former_spelling_is_understood_and_not_shown() -> None:
    for words in (["--answer", " year"], ["--answer= year"], ["--token", " year"]):
        assert run(one, "L1H5", *words)[1]["token"] == " year"
    shown, _ = run(one, "--help")
    assert "--token" in shown.output and "--answer" not in shown.output


def test_what_is_no_head_is_refused_with_the_name_of_the_argument() -> None:
    done, given = run(one, "L1M5")
    assert done.exit_code == 2 and given is None
    assert "HEAD" in done.stderr and "'L1M5' is not a head, such as L0H3" in done.stderr


def declared_options() -> list[tuple[str, Parameter]]:
    assert commands.app
    found: list[tuple[str, Parameter]] = []
    for declared in (*COMMANDS, *map(command_of, listings())):
        for slot in declared.slots.values():
            found += [(declared.words, p) for p in ([slot] if isinstance(slot, Parameter) else fields_of(slot))]
    return [(words, p) for words, p in found if not p.argument]


def test_the_name_of_an_option_means_one_thing_in_all_commands() -> None:
    meanings: dict[str, set[tuple[Any, ...]]] = {}
    for words, parameter in declared_options():
        kind = "choice" if parameter.choices else parameter.kind
        repeated = parameter.repeated and (words, parameter.name) != ("report", "model")  # it compares models
        meanings.setdefault(spellings(parameter)[0], set()).add((parameter.option.help, kind, repeated))
    assert len(meanings) > 100
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def test_an_option_has_one_default_unless_there_is_a_reason() -> None:
    defaults: dict[str, set[str]] = {}
    for _, parameter in declared_options():
        if not parameter.required:
            defaults.setdefault(spellings(parameter)[0], set()).add(str(parameter.default))
    assert {name for name, found in defaults.items() if len(found) > 1} == set(OWN_DEFAULTS)


def test_the_option_of_a_command_is_meant_where_it_is_the_former_spelling_of_another() -> None:
    def both(*, top: Top = 20, tokens: Tokens = 10) -> None:
        """Do one thing."""

    assert run(both, "--top", "3")[1] == {"top": 3, "tokens": 10}


def test_every_command_that_opens_a_model_takes_all_its_options() -> None:
    taken: dict[str, set[str]] = {}
    for words, parameter in declared_options():
        taken.setdefault(words, set()).add(parameter.name)
    opening = {words for words, names in taken.items() if "revision" in names}
    assert {"circuits composition", "report", "trace", "serve", "toxicity select"} <= opening
    for words in opening:
        assert taken[words] >= {p.name for p in fields_of(Opening())}, words


def test_a_path_without_a_value_is_none() -> None:
    def with_path(where: Annotated[Path | None, Option("A folder.")] = None) -> None:
        """Do one thing."""

    assert run(with_path)[1] == {"where": None}


FORMER = [
    "trace x --layer 3 --position 4 --top 8",
    "lens x --all-positions -k 5 --csv",
    'patch a b --answer " x" --against " y" --top 5',
    'paths a b --from L0H1 --to logits --to "layer 5"',
    'ablate x --answer " girl" --against " boy"',
    "ablate --corpus shipped --what layers --tokens 300",
    "value L7M985 --top 5",
    "value 7 985 -k 5",
    "memories --layer 5 --html gallery.html",
    "clusters --clusters 600 --layer 3 --layer 4",
    "concepts L3M17 --top 30 --layer 2",
    "steer x --promote happy --values 3 --top 4 -n 5",
    "annotate export sheet.json --top 30",
    "annotate import ann.json --index mine.index",
    "index build --layer 20 --layer 21 --top 5",
    'index promoting mine.index " x" --by rank',
    "index triggers mine.index 4 571 --top 5",
    "toxicity select --method greedy --tokens 512",
    "circuits offsets 0 0 --to 12",
    "circuits direct-path --tokens 5",
    "circuits in-context --windows 2 --window 64",
    "circuits head 1 0 --offset 2",
]
"""Command lines as the documentation of earlier versions had them."""
MEANT = {
    "index build --layer 20 --layer 21 --top 5": {"layers": [20, 21], "triggers": 5, "top_tokens": 30},
    "circuits direct-path --tokens 5": {"compared": 5, "max_tokens": 400_000},
    "clusters --clusters 600 --layer 3 --layer 4": {"n_clusters": 600, "layers": [3, 4]},
    "steer x --promote happy --values 3 --top 4 -n 5": {"per_word": 3, "tokens": 4, "new_tokens": 5},
}


@pytest.mark.parametrize("line", FORMER)
def test_a_command_line_of_earlier_versions_is_understood(line: str) -> None:
    from typer.main import get_command

    from unembed.cli.help_text import commands as all_commands

    known, words = dict(all_commands(get_command(commands.app))), shlex.split(line)
    n = 2 if " ".join(words[:2]) in known else 1
    given = known[" ".join(words[:n])].make_context(line, words[n:]).params
    for name, value in MEANT.get(line, {}).items():
        assert given[name] == value
