"""Pages that commands write (`--html`) fit windows of 1200 and 500 pixels: only a wide table scrolls, in itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser
from typer.testing import CliRunner

from tests.browser.conftest import CHROMIUM
from unembed.cli.commands import app

PROMPT = "The king of France died in May and his son , who was born on 16 August 1977 in 北京 , became the king of"
COMMANDS = {
    "trace": ("trace", PROMPT),
    "explain": ("explain", PROMPT, "--token", " France", "--by", "source"),
    "memories": ("memories", "--top", "10", "--layer", "5"),
    "value": ("value", "L5M278"),
    "lens": ("lens", PROMPT, "--all-positions"),
    "circuits head": ("circuits", "head", "L1H5", "-k", "5"),
    "patch": ("patch", "The king of France", "The king of England", "--points", "heads"),
}


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_does_not_scroll_sideways(browser: Browser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "page.html"
    done = CliRunner().invoke(app, [*COMMANDS[name], "--html", str(path)])
    assert done.exit_code == 0, done.stderr
    for width in (1200, 500):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()
