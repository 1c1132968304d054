"""The first time a page or a command's help speaks of a memory, it says that it is an FFN neuron."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from tests.package.shown import README
from unembed.cli.commands import app
from unembed.cli.help_text import commands

ROOT = README.parent
WRITTEN = {"cli-reference.md", "decoder-classes.md"}  # by the program, from texts that are checked here or elsewhere
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(ROOT.glob("docs/**/*.md")) if page.name not in WRITTEN),
]
COMPUTER = re.compile(
    r"(?:(?:main|GPU|CPU|host|unified|virtual|shared|peak|of|in|into|from|needs?|less|more|free) memory"
    r"|key-value memor(?:y|ies)|memory (?:maps?|limits?|budget)|memory-map\w*|disk and memory"
    r"|memory,? (?:and|then|or) disk|device, memory|devices, memory)\b",
    re.IGNORECASE,
)


def first_unexplained(text: str) -> str | None:
    """The first mention of a memory, where "(FFN neuron)" does not follow it; None where there is no such mention."""
    prose = re.sub(r"<!--.*?-->|```.*?```|`[^`]*`|^    .*?$|\]\([^)]*\)", " ", text, flags=re.DOTALL | re.MULTILINE)
    prose = COMPUTER.sub("RAM", " ".join(prose.split()))
    found = re.search(r"\bmemor(?:y|ies)\b", prose, re.IGNORECASE)
    if found is None or re.match(r"[’']?s? \(FFN neurons?|, an FFN neuron|: a key", prose[found.end() :]):
        return None
    return prose[max(0, found.start() - 30) : found.end() + 30]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_explains_a_memory_where_it_first_names_one(page: Path) -> None:
    assert first_unexplained(page.read_text(encoding="utf-8")) is None


HELPS = {words: command for words, command in [("unembed", get_command(app)), *commands(get_command(app))]}


@pytest.mark.parametrize("words", sorted(HELPS))
def test_a_help_explains_a_memory_where_it_first_names_one(words: str) -> None:
    command = HELPS[words]
    parts = [command.help or ""]
    parts += [getattr(parameter, "help", None) or "" for parameter in command.params]
    parts += [below.get_short_help_str(300) for below in getattr(command, "commands", {}).values()]
    assert first_unexplained("\n".join(parts)) is None


def test_an_unexplained_memory_is_found() -> None:
    assert first_unexplained("A list of memories. A memory (FFN neuron) is a pair.") is not None
    assert first_unexplained("A list of memories (FFN neurons). A memory is a pair.") is None
    assert first_unexplained("It fits in memory, and on disk; `memory` is code.") is None
