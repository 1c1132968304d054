"""Every check of the explorer, and every fault that it had, names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.browser.checks import CHECKS
from tests.browser.faults import FAULTS

TESTS = Path(__file__).parents[1]
ROWS = [
    (screen, check, tests) for screen, rows in [*CHECKS.items(), ("fault", FAULTS)] for check, tests in rows.items()
]


def functions(file: str) -> set[str]:
    """The names of the functions of a file of tests, without `test_`."""
    folder, _, name = ("browser/" + file if "/" not in file else file).rpartition("/")
    path = TESTS / folder / (f"{name}.py" if name == "conftest" else f"test_{name}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name.removeprefix("test_") for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("screen", "check", "tests"), ROWS, ids=[f"{screen}: {check}" for screen, check, _ in ROWS])
def test_every_check_has_tests_that_exist(screen: str, check: str, tests: str) -> None:
    for named in tests.split("; "):
        file, name = named.split(" ")
        assert name in functions(file), f"{screen}, {check}: {named}"


def test_every_screen_has_checks() -> None:
    screens = {path.stem for path in (TESTS.parent / "src/unembed/server/static/js/screens").glob("*.js")}
    named = {screen for screen in screens if "-" not in screen}
    assert named == set(CHECKS) - {"all screens"}
