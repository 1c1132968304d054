"""docs/glossary.md explains every head and label that commands print."""

from __future__ import annotations

import ast
import json
import re

import pytest
from typer.testing import CliRunner

from tests.package.shown import README
from unembed.cli.commands import app

DOCS = README.parent / "docs"
TEXT = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in ("glossary.md", "formats.md")).lower()
CLI = README.parent / "src" / "unembed" / "cli"
OF_ITSELF = {"mb", "name", "kind", "model", "context", "what", "trained on", "licence", "installed", "how"}
"""Heads of `models` and `doctor`, which list what is there."""


def is_explained(word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", TEXT) is not None


def heads() -> set[str]:
    """What is passed to `add_column` as a text of its own."""
    found: set[str] = set()
    for path in CLI.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if called == "add_column" and isinstance(node, ast.Call) and node.args:
                first = node.args[0]
                found |= {first.value} if isinstance(first, ast.Constant) and isinstance(first.value, str) else set()
    return {head for head in found if head}


def test_every_head_of_a_drawn_table_is_explained() -> None:
    assert len(heads()) >= 8
    assert {head for head in heads() if not is_explained(head)} - OF_ITSELF == set()


@pytest.mark.parametrize(
    "command",
    [
        ["circuits", "heads", "--sequences", "4"],
        ["circuits", "head", "1", "5"],
        ["circuits", "composition", "--kind", "k"],
        ["circuits", "skip-trigrams", "0", "3"],
        ["circuits", "expand", "the cat sat on the"],
        ["circuits", "induction"],
    ],
    ids=lambda words: words[1],
)
def test_every_column_of_the_circuits_is_explained(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    tables = json.loads(done.stdout)["tables"].values()
    names = {name for table in tables for name in table["columns"] if not name.endswith(("_low", "_high"))}
    plain = {name.replace("_", " ") for name in names} - {"real", "imaginary", "x", "y"}
    assert {name for name in plain if not is_explained(name)} == set()


@pytest.mark.parametrize(
    "label",
    [
        "Memories that promote",
        "Why",
        "always on",
        "other active memories together",
        "relative error",
        "◆",
        "✕",
    ],
)
def test_a_label_of_the_trace_is_printed_and_explained(label: str) -> None:
    printed = "\n".join(path.read_text(encoding="utf-8") for path in [*CLI.rglob("*.py")])
    assert label in printed
    words = {"Memories that promote": "promotes", "Why": "attribution"}
    assert is_explained(words[label]) if label in words else label.lower() in TEXT


def test_a_missing_word_is_detected() -> None:
    assert not is_explained("perplexification") and is_explained("elimination")


def test_the_page_is_sorted() -> None:
    section = (DOCS / "glossary.md").read_text(encoding="utf-8").split("## Column heads")[0]
    words = [re.sub(r"[^a-z ]", "", word.lower()) for word in re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)[1:]]
    assert words == sorted(words)
