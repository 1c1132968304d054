"""Every command and every Python line of docs/questions.md works as typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.package.shown import README
from unembed.cli.commands import app

PAGE = (README.parent / "docs" / "questions.md").read_text(encoding="utf-8")
CELLS = [row.split(" | ") for row in re.findall(r"^\| (.+\? \| .+) \|$", PAGE, re.MULTILINE)]
ROWS = [re.findall(r"`([^`]+)`", cells[1]) for cells in CELLS]
SMALL_INDEX = next(lines[0] for lines in ROWS if "small.index" in lines[0] and " build " in lines[0])
LIGHTER = {
    "unembed report ": "--option sequences=2 --option tokens=100 --option windows=4 --option control=false",
    "unembed ablate --corpus ": "--max-tokens 300",
}
LIGHTER_PYTHON = "sequences=2, tokens=100, windows=4, control=False, out="
"""What a test adds to the lines of a report and of a whole text, so that they take seconds: smaller samples."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder, a ready index of two articles where `make run` builds one of twelve, and the page's own index.

    A worker may run the row that queries the page's index without the row that builds it.
    """
    made = tmp_path_factory.mktemp("questions")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setenv("UNEMBED_CACHE", str(made / "cache"))
        built = CliRunner().invoke(app, ["index", "build", "--detokenize", "--max-documents", "2"])
        assert built.exit_code == 0, built.output
        assert CliRunner().invoke(app, shlex.split(SMALL_INDEX)[1:]).exit_code == 0
        yield made


@pytest.fixture(scope="module")
def names(folder: Path) -> dict[str, Any]:
    """What the block at the top of the page defines."""
    found: dict[str, Any] = {}
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    exec(block[1], found)
    return found


def test_every_row_has_a_question_a_command_a_python_line_and_its_limits() -> None:
    assert len(CELLS) >= 20
    assert [row[0] for row in CELLS if len(row) != 4 or not all(cell.strip() for cell in row)] == []
    assert [lines for lines in ROWS if len(lines) != 2 or not lines[0].startswith("unembed ")] == []


@pytest.mark.parametrize("command", [lines[0] for lines in ROWS])
def test_a_command_of_the_page_works_as_typed(command: str, folder: Path) -> None:
    if command == SMALL_INDEX:
        return  # run by the fixture, which asserts its exit status
    added = next((options for start, options in LIGHTER.items() if command.startswith(start)), "")
    done = CliRunner().invoke(app, shlex.split(command)[1:] + shlex.split(added))
    assert done.exit_code == 0, f"{command}: {done.stderr} {done.exception!r}"
    assert done.stdout or "--out" in command


@pytest.mark.parametrize("line", [lines[1] for lines in ROWS])
def test_a_python_line_of_the_page_works_as_typed(line: str, names: dict[str, Any]) -> None:
    lighter = line.replace("out=", LIGHTER_PYTHON) if line.startswith("unembed.report(") else line
    if line.startswith("lm.attach("):  # what the command of this row trains
        command = next(lines[0] for lines in ROWS if lines[1] == line)
        assert CliRunner().invoke(app, shlex.split(command)[1:]).exit_code == 0
    assert eval(lighter, names) is not None
