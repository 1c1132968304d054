"""Every Python block of the documentation runs, in a folder of its own; a page's blocks share their names.

Blocks after `<!-- shown: python -->` are run elsewhere, with what they print (`tests/package/test_documentation.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.package.shown import README

DOCS = README.parent / "docs"
_BLOCK = re.compile(r"(?P<before><!-- (?:not run: .+?|shown: python) -->\n)?```python\n(?P<code>.*?)```\n", re.DOTALL)
PAGES = {str(page.relative_to(DOCS)): _BLOCK.findall(page.read_text(encoding="utf-8")) for page in DOCS.rglob("*.md")}
PAGES = {name: found for name, found in PAGES.items() if found}


@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_code_on_a_page_runs_as_written(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for skipped, code in PAGES[page]:
        compiled = compile(code, page, "exec", dont_inherit=True)
        if not skipped:
            exec(compiled, names)


def test_there_are_pages_with_code() -> None:
    assert len(PAGES) >= 6
