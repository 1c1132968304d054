"""A page under axe, WCAG 2.2 A and AA, in both themes."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""The rules that a theme can break."""


def assert_no_violation(page: Page) -> None:
    """All rules in the light theme, and those about colours in the dark one.

    The script is given to the browser's own world, so that the page's policy stays as it is.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    for theme, rules in (("light", RULES), ("dark", COLOURS)):
        page.emulate_media(color_scheme=theme)
        page.wait_for_timeout(300)
        found = axe.Axe().run(page, options=rules).response["violations"]
        assert not found, theme + str(
            [(v["id"], [(n["target"], n["failureSummary"][:200]) for n in v["nodes"][:3]]) for v in found]
        )
