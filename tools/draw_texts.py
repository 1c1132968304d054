"""Draw texts of the package at random, so that a person who has not seen the project can say which they understand.

    python -m tools.draw_texts --seed 46            sixty texts: docstrings, errors, help and comments, fifteen of each
    python -m tools.draw_texts --seed 46 --number 20

A reader marks each text: understood at the first reading or not. The same seed draws the same texts from the same tree.

| seeds | reader | understood |
|---|---|---|
| 93, 94 | blind readers, who had not seen the project | 107 of 120 |
| 95, 96 | an editor who knows the project, so not comparable | 115 of 120 |
| 1201, 1202 | the same editor, after those five were rewritten | 114 of 120 |
| 2101, 2102 | a blind reader | 107 of 120; the thirteen are rewritten |
| 4611, 4612 | an editor who knows the project | 113 of 120; these and 16 more errors are rewritten |
| 130 | a blind reader | 52 of 60; the eight are rewritten |
| 4621, 4622 | two blind readers | 99 of 120; then all texts were read blind and about 1,200 rewritten |
| 4631 | another blind reader, after that | 48 of 60 |
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "unembed"
Function = ast.FunctionDef | ast.AsyncFunctionDef
KINDS = ("docstring", "error", "help", "comment")


@dataclass(frozen=True)
class Text:
    """A text and where it stands."""

    kind: str
    place: str
    text: str


def texts_of(path: Path) -> Iterator[Text]:
    """Every docstring, error, help text and comment of a file."""
    source = path.read_text(encoding="utf-8")
    lines = source.split("\n")
    name = path.relative_to(PACKAGE.parent).as_posix()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if found := ast.get_docstring(node):
                yield Text("docstring", f"{name}:{getattr(node, 'lineno', 1)}", _signed(node, lines, found))
            yield from _of_attributes(name, node, lines)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and _has_words(node.exc):
            yield Text("error", f"{name}:{node.lineno}", textwrap.dedent(_code(node.exc, lines)))
        elif (text := _help(node)) is not None:
            yield Text("help", f"{name}:{text.lineno}", str(text.value))
    yield from _comments(name, source)


def _has_words(error: ast.Call) -> bool:
    """Whether a message is written where the error is raised, and not passed on."""
    return any(isinstance(part, ast.Constant) and " " in str(part.value) for part in ast.walk(error))


def _help(node: ast.AST) -> ast.Constant | None:
    """The help text of an option: `help="..."`, or the first argument of `Option`."""
    if isinstance(node, ast.keyword) and node.arg == "help":
        text = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Option" and node.args:
        text = node.args[0]
    else:
        return None
    return text if isinstance(text, ast.Constant) else None


def _of_attributes(name: str, node: ast.Module | ast.ClassDef | Function, lines: list[str]) -> Iterator[Text]:
    """The strings directly below assignments, which explain the names that are assigned, with the assignments."""
    for above, below in pairwise(node.body):
        match above, below:
            case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(text))):
                yield Text("docstring", f"{name}:{below.lineno}", _signed(above, lines, " ".join(text.split())))
            case _:
                pass


def _signed(node: ast.Module | ast.stmt, lines: list[str], text: str) -> str:
    """A docstring below the line that it documents, where it documents one."""
    return text if isinstance(node, ast.Module) else f"{_code(node, lines).splitlines()[0]}\n{text}"


def _code(node: ast.stmt | ast.expr, lines: list[str]) -> str:
    """The source of a node; `ast.get_source_segment` splits the whole file into lines for each node."""
    rows = [line.encode() for line in lines[node.lineno - 1 : node.end_lineno]]
    rows[-1] = rows[-1][: node.end_col_offset]
    rows[0] = rows[0][node.col_offset :]
    return b"\n".join(rows).decode()


def _comments(name: str, source: str) -> Iterator[Text]:
    """Comments in whole lines, neighbouring lines as one, each above the line of code that follows it."""
    lines = source.splitlines()
    rows = [
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#")
    ]
    for row in (row for row in rows if row - 1 not in rows):
        last = row
        while last + 1 in rows:
            last += 1
        yield Text("comment", f"{name}:{row}", "\n".join(line.strip() for line in lines[row - 1 : last + 1]))


@cache
def all_texts() -> tuple[Text, ...]:
    """Every text of the package, in the order of its files."""
    return tuple(text for path in sorted(PACKAGE.rglob("*.py")) for text in texts_of(path))


def draw(number: int, seed: int) -> list[Text]:
    """Texts drawn at random, equally many of each kind."""
    found = all_texts()
    chosen = random.Random(seed)
    return [
        text for kind in KINDS for text in chosen.sample([t for t in found if t.kind == kind], number // len(KINDS))
    ]


def main() -> None:
    """Print the texts with their numbers and places."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, required=True, help="which texts are drawn")
    options.add_argument("--number", type=int, default=60, help="how many texts, a multiple of four")
    given = options.parse_args()
    for count, text in enumerate(draw(given.number, given.seed), start=1):
        print(f"--- {count}. {text.kind}, {text.place}\n{text.text}\n")


if __name__ == "__main__":
    main()
