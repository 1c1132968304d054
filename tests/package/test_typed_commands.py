"""Every command that the documentation tells a reader to type exists, with the options that it is given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.package.shown import README
from unembed.cli.commands import app

DOCS = README.parent / "docs"
COMMANDS = get_command(app)
PAGES = [README, *sorted(page for page in DOCS.rglob("*.md") if page.name != "cli-reference.md")]


def typed(text: str) -> Iterator[str]:
    """Lines of code blocks, indented lines and code spans that begin with the command."""
    for line in re.findall(r"^(?: {4})?(?:RAY_ADDRESS=\S+ )?(unembed [a-z].*)$", text, re.MULTILINE):
        if re.search(rf"^(?: {{4}}|RAY_ADDRESS=\S+ )?{re.escape(line)}$", _code(text), re.MULTILINE):
            yield line
    yield from re.findall(r"`(unembed [a-z][^`\n]*)`", text)


def _code(text: str) -> str:
    blocks = re.findall(r"^```(?:text|console|bash)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return "\n".join([*blocks, *re.findall(r"^ {4}unembed .*$", text, re.MULTILINE)])


def unknown(line: str) -> list[str]:
    """The words of a command that the command line does not know: subcommands and options."""
    words = shlex.split(line.replace(" ... ", " ").partition("  ")[0].partition(" #")[0], comments=True)[1:]
    found: Any = COMMANDS
    while words and hasattr(found, "commands"):
        names = words[0].split("|")  # "index build|status" names several
        if not set(names) <= set(found.commands):
            return [words[0]]
        found, words = found.commands[names[0]], words[1:]
    options = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    return [word for word in words if re.match(r"--?[a-zA-Z]", word) and word.partition("=")[0] not in options]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(Path(page).relative_to(README.parent)))
def test_every_command_on_a_page_exists_with_its_options(page: Path) -> None:
    lines = set(typed(page.read_text(encoding="utf-8")))
    assert {line: words for line in lines if (words := unknown(line))} == {}


def test_the_first_list_of_the_page_names_every_command() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8").split("```")[1]
    lines = {line.split()[1]: line.split()[2:3] for line in page.splitlines() if line.startswith("unembed ")}
    assert set(lines) == set(COMMANDS.commands)
    groups = {name: set(group.commands) for name, group in COMMANDS.commands.items() if hasattr(group, "commands")}
    assert {name: set(lines[name][0].split("|")) for name in groups} == groups


def test_a_missing_command_is_detected() -> None:
    assert unknown("unembed trase x") == ["trase"]
    assert unknown('unembed trace "x" --tpo 3') == ["--tpo"]
    assert unknown("unembed index build --corpus c --out d") == []
    assert sum(len(list(typed(page.read_text(encoding="utf-8")))) for page in PAGES) > 100
