"""What README.md shows of real output: run, compared, and with `--write` put in (`make readme`).

A fenced block after a comment `<!-- shown: COMMAND -->` holds what the command prints at 80 columns; after
`<!-- shown: python -->` it holds code, and after each statement that prints, what it printed, as comments.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
REFERENCE = README.parent / "docs" / "cli-reference.md"
_BLOCK = re.compile(r"<!-- shown: (?P<what>.+?) -->\n```(?P<kind>\w+)\n(?P<body>.*?)```\n", re.DOTALL)


def blocks(text: str) -> list[tuple[str, str]]:
    """Each block as (what it shows, its text)."""
    return [(match["what"], match["body"]) for match in _BLOCK.finditer(text)]


def fresh(what: str, body: str) -> str:
    """What the block should hold now."""
    return _python(body) if what == "python" else _command(what)


def _command(line: str) -> str:
    command = [sys.executable, "-m", *shlex.split(line)]
    environment = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return "".join(f"{row.rstrip()}\n" for row in printed.splitlines())


def _python(body: str) -> str:
    """The code with its output; comment lines that the last run put there are left out first."""
    source = "".join(f"{row}\n" for row in body.splitlines() if not row.startswith("# "))
    rows, names = source.splitlines(), {}
    shown, done = [], 0
    for statement in ast.parse(source).body:
        assert statement.end_lineno is not None
        shown += rows[done : statement.end_lineno]
        done = statement.end_lineno
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module([statement], []), "README.md", "exec"), names)
        shown += [f"# {row}" for row in printed.getvalue().splitlines()]
    return "".join(f"{row}\n" for row in shown)


def written(text: str) -> str:
    """The text with every block filled in anew."""

    def filled(match: re.Match[str]) -> str:
        return f"<!-- shown: {match['what']} -->\n```{match['kind']}\n{fresh(match['what'], match['body'])}```\n"

    return _BLOCK.sub(filled, text)


def command_reference() -> str:
    """Every command with every option, as Markdown."""
    command = [sys.executable, "-m", "typer", "unembed.cli.commands", "utils", "docs", "--name", "unembed"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip() + "\n"


if __name__ == "__main__":
    text = written(README.read_text(encoding="utf-8"))
    if "--write" in sys.argv:
        README.write_text(text, encoding="utf-8")
        REFERENCE.write_text(command_reference(), encoding="utf-8")
    else:
        print(text)
