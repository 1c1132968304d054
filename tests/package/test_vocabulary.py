"""The package speaks the field's language: names of files, public names and error messages."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "unembed"
FILE_NAMES = {  # nouns of the field, or of a part of the package, that end in -ing or -ed
    "copying", "fitting", "folding", "layer_skipping", "linearized", "loading", "model_loading", "patching",
    "prefix_sampling", "published", "quantized", "ranking", "self_debiasing", "settling", "token_cleaning",
    "token_ranking",
}  # fmt: skip
PUBLIC_NAMES: set[str] = set()
PERSONIFIED = re.compile(r"\b(asked|told|said|heard|owes|speaks|so many)\b", re.IGNORECASE)
DIALECT = re.compile(r"\b(asked|told|said|kept|held|beside|none of)\b")


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_no_file_name_is_a_participle_outside_the_list() -> None:
    found = {path.stem for path, _ in modules() if re.search(r"(ing|ed)$", path.stem)}
    assert found == FILE_NAMES


def public_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        yield node.name
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                yield f"{node.name}.{member.name}"
            elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                yield f"{node.name}.{member.target.id}"


def test_no_public_name_is_in_dialect() -> None:
    words = lambda name: name.split(".")[-1].replace("_", " ").lower()  # noqa: E731
    found = {name for _, tree in modules() for name in public_names(tree) if DIALECT.search(words(name))}
    assert found == PUBLIC_NAMES


def test_no_error_message_is_in_dialect() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{text.lineno}: {text.value}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and node.exc is not None
        for text in ast.walk(node.exc)
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and DIALECT.search(text.value)
    ]
    assert found == []


def prose(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings, of attributes too, and comments, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def test_no_docstring_or_comment_personifies_code() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {' '.join(text.split())}"
        for path, tree in modules()
        for line, text in prose(path, tree)
        if PERSONIFIED.search(text)
    ]
    assert found == []


def test_the_search_for_dialect_finds_it() -> None:
    assert PERSONIFIED.search("Told by its name") and not PERSONIFIED.search("a retold answer, basked")
    assert DIALECT.search("it is none of a, b") and not DIALECT.search("a withheld, besides, retold answer")
