"""Tables in a package's docstring, from a promise to the tests that show it: do these tests exist?"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parent


def named_tests(package: ModuleType) -> list[str]:
    """The beginnings of tests' names in the docstring, each followed by `...`."""
    return re.findall(r"(\w+)\.\.\.", (package.__doc__ or "").replace("_\n", "_"))


def missing(package: ModuleType) -> list[str]:
    """The names with which no test begins, and the files of tests that are not there."""
    files = {path.stem: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    tests = [name for name in named_tests(package) if not any(f"def test_{name}" in text for text in files.values())]
    named = {name.split("/")[-1] for name in re.findall(r"`([\w/]*test_\w+)`", package.__doc__ or "")}
    return [*tests, *sorted(named - {*files})]
