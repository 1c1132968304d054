"""Someone at the page: what they do is counted."""

from __future__ import annotations

from playwright.sync_api import Locator, Page

MOST = 5
"""The actions that a task may take."""


class Visitor:
    """A new user of a page. An action is one click, one choice of a list, or one text typed and entered."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.actions: list[str] = []

    def click(self, at: Locator) -> None:
        """Press a button, a link, a box to tick or a cell."""
        self._act(f"click {at}")
        at.click()

    def type(self, at: Locator, text: str) -> None:
        """Write a text and press Enter."""
        self._act(f"type {text!r}")
        at.fill(text)
        at.press("Enter")

    def choose(self, at: Locator, option: str) -> None:
        """Choose an option of a list by its text."""
        self._act(f"choose {option!r}")
        at.select_option(label=option)

    def _act(self, what: str) -> None:
        self.actions.append(what)
        assert len(self.actions) <= MOST, f"more than {MOST} actions: {self.actions}"
