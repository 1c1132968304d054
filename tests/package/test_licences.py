"""docs/licences.md names everything that ships, and nothing that does not."""

from __future__ import annotations

import re
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

from tests.package.conftest import ROOT

PAGE = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
SHIPPED, INSTALLED = PAGE.split("## What is installed with it")


def rows(text: str) -> list[list[str]]:
    """Cells of each row of a table, its head left out."""
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines() if row.startswith("| ")][
        1:
    ]


def test_every_file_of_the_wheel_has_a_row_and_every_row_a_file(wheel: Path) -> None:
    names = [name.removeprefix("unembed/") for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    patterns = [pattern for row in rows(SHIPPED) for pattern in re.findall(r"`([^`]+)`", row[0])]
    assert len(patterns) >= 9
    data = [pattern for pattern in patterns if not pattern.startswith("*")]
    uncovered = [name for name in names if not any(fnmatch(name, p) for p in data) and not name.endswith(".py")]
    assert uncovered == []
    assert [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in names)] == []


def test_every_row_names_a_licence_that_the_notice_names_too() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for *_, licence in rows(SHIPPED):
        short = licence.split(",")[0]
        assert short in notice or short == "Apache-2.0"


def test_every_requirement_has_a_row() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    users = ("ray", "nlp", "notebook", "data", "big", "gguf", "mcp")
    wanted = {re.split(r"[<>=\[]", name)[0] for name in project["dependencies"]}
    wanted |= {re.split(r"[<>=\[]", name)[0] for extra in users for name in extras[extra]}
    assert {package for package, *_ in rows(INSTALLED)} == wanted
