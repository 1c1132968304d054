"""What pages show of real output: run, compared, and with `--write` put in (`make readme`).

A fenced block after a comment `<!-- shown: COMMAND -->` holds what the command prints at 80 columns, and after
`<!-- shown: COMMAND; rows REGEX -->` only the rows that begin so, with `...` where rows between them are left out.
After `<!-- shown: python -->` it holds code, and after each statement that prints, what it printed, as comments. The
blocks of a page run in order, in one folder and process, so that one may use what another left. The folder holds only
the examples and the published models of the source, at their places. A command on SmolLM2 runs where that model was
fetched (`unembed models get smollm2`); elsewhere its block stays as it is.
"""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"
TUTORIAL = README.parent / "docs" / "tutorial.md"
SMALL_MODEL = README.parent / "docs" / "small-model.md"
PAGES = (README, TUTORIAL, SMALL_MODEL)
SOURCES = ("examples", "tests/data/models")
REFERENCE = README.parent / "docs" / "cli-reference.md"
_BLOCK = re.compile(r"<!-- shown: (?P<what>.+?) -->\n```(?P<kind>\w+)\n(?P<body>.*?)```\n", re.DOTALL)


def blocks(text: str) -> list[tuple[str, str]]:
    """Each block as (what it shows, its text)."""
    return [(match["what"], match["body"]) for match in _BLOCK.finditer(text)]


def fresh(text: str) -> list[str]:
    """What each block of a page should hold now."""
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for source in map(Path, SOURCES):
            source.parent.mkdir(parents=True, exist_ok=True)
            source.symlink_to(README.parent / source)
        return [_python(body, names) if what == "python" else _command(what, body) for what, body in blocks(text)]


def command_of(what: str) -> str:
    """The command of a block, without the choice of rows."""
    return what.partition("; rows ")[0]


def is_real(what: str) -> bool:
    """Whether a block is on the real model, which not every machine has."""
    return "--model smollm2" in what


def _command(what: str, body: str) -> str:
    from typer.testing import CliRunner

    from unembed.cli.commands import app
    from unembed.models import is_fetched

    if is_real(what) and not is_fetched("smollm2"):
        return body
    program, *given = shlex.split(command_of(what))
    assert program == "unembed", what
    done = CliRunner().invoke(app, given, env={"COLUMNS": "80"})
    assert done.exit_code == 0, f"{what}: {done.output} {done.exception!r}"
    return "".join(f"{row}\n" for row in _chosen(done.stdout.splitlines(), what.partition("; rows ")[2]))


def _chosen(rows: list[str], pattern: str) -> Iterator[str]:
    matching = [number for number, row in enumerate(rows) if re.match(pattern, row)]
    for last, number in itertools.pairwise([matching[0] - 1, *matching]):
        if number > last + 1:
            yield "..."
        yield rows[number].rstrip()


def _python(body: str, names: dict[str, Any]) -> str:
    """The code with its output; comment lines that the last run put there are left out first."""
    rows = code(body)
    shown, done = [], 0
    for statement in ast.parse("\n".join(rows)).body:
        assert statement.end_lineno is not None
        shown += rows[done : statement.end_lineno]
        done = statement.end_lineno
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module([statement], []), "shown", "exec"), names)
        shown += [f"# {row}" for row in printed.getvalue().splitlines()]
    return "".join(f"{row}\n" for row in shown)


def code(body: str) -> list[str]:
    """The rows of a Python block that are not its output."""
    return [row for row in body.splitlines() if not row.startswith("# ")]


def written(text: str) -> str:
    """The page with every block filled in anew."""
    bodies = iter(fresh(text))
    return _BLOCK.sub(
        lambda match: f"<!-- shown: {match['what']} -->\n```{match['kind']}\n{next(bodies)}```\n",
        text,
    )


_NUMBER = re.compile(r"(?<!memory )(?!^\d+\.\d+ )[+−-]?\d[\d,]*(?:\.\d+)?(?:e[−-]?\d+)?%?")
"""Not `4.571` where it names a memory: first in a row, or after the word."""


def drift(was: str, now: str) -> list[str]:
    """The rows that differ by more than rounding: words must be the same, numbers may be one off in their last digit.

    Left out are bars, whose halves hang on that digit, and errors of sums, which are all rounding.
    """
    before, after = _compared(was), _compared(now)
    pairs = itertools.zip_longest(before, after, fillvalue=("(no row)", []))
    return [f"{old[0]}  ->  {new[0]}" for old, new in pairs if not _alike(old, new)]


_PLAIN = str.maketrans({"−": "-", ",": None, "%": None})


def _compared(text: str) -> list[tuple[str, list[str]]]:
    rows = [re.sub(r"[│█▌▐─]|relative error \S+", " ", row) for row in text.splitlines()]
    return [(" ".join(_NUMBER.sub("0", row).split()), _NUMBER.findall(row)) for row in rows]


def _alike(old: tuple[str, list[str]], new: tuple[str, list[str]]) -> bool:
    return old[0] == new[0] and all(map(_same_number, old[1], new[1]))


def _same_number(old: str, new: str) -> bool:
    """Counts and places are whole and must agree; a measured number shows a fraction, an exponent or %."""
    if old == new:
        return True
    first, second = (float(number.translate(_PLAIN)) for number in (old, new))
    return abs(first - second) <= 1.01 * max(_last_digit(old), _last_digit(new))


def _last_digit(number: str) -> float:
    mantissa, _, exponent = number.translate(_PLAIN).partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - decimals) if decimals or exponent or "%" in number else 0.0


def command_reference() -> str:
    """Every command with every option, as Markdown."""
    command = [sys.executable, "-m", "typer", "unembed.cli.commands", "utils", "docs", "--name", "unembed"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip() + "\n"
    # Typer cuts each line of a list of commands at 45 characters: take the first sentence of the command's section.
    summaries = dict(re.findall(r"^#+ `([^`]+)`\n\n(.+?(?:(?<!al)[.](?= |$)|$))", text, flags=re.MULTILINE))
    lines, group = [], ""
    for line in text.splitlines():
        group = line.strip("# `") if line.startswith("#") else group
        listed = re.match(r"\* `([a-z-]+)`: ", line)
        summary = listed and summaries.get(f"{group} {listed[1]}")
        lines.append(f"{listed[0]}{summary}" if listed and summary else line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # as in the tests; torch is not imported yet
    chosen = [page for page in PAGES if not sys.argv[2:] or page.name in sys.argv[2:]]
    pages = {page: written(page.read_text(encoding="utf-8")) for page in chosen}
    if "--write" in sys.argv:
        for page, text in {**pages, REFERENCE: command_reference()}.items():
            page.write_text(text, encoding="utf-8")
    else:
        print("\n".join(pages.values()))
