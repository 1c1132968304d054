"""The pictures that the documentation shows, made again: `make pictures`, or one by name.

Those of the explorer show the index that `make run` has built, a copy of it, so that nothing is left there. Look at
them before they are committed: they are not compared with anything.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from playwright.sync_api import Page, sync_playwright

import unembed
from tests.browser.conftest import CHROMIUM, TOKEN, Served
from tests.browser.printed_pictures import PAGES
from unembed.index.default_index import cached_index

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PROMPT = "prompt=" + quote("Once upon a time there was a little")
WIDTH = 1280


def _run(page: Page) -> None:
    page.get_by_role("button", name="Run both").click()


def _group(page: Page) -> None:
    page.get_by_role("button", name="Compute clusters").click()


def _turn(page: Page) -> None:
    slider = page.locator("input[type=range]").first
    for _ in range(8):
        slider.press("ArrowRight")


def _begin(page: Page) -> None:
    box = page.get_by_placeholder("your name")
    box.fill("ann")
    box.press("Enter")
    _settled(page)
    for _ in range(7):  # as someone at work sees it
        page.get_by_role("button", name="Skip (s)").click()
        page.wait_for_timeout(500)


class Picture(NamedTuple):
    """A screen as it is shown."""

    where: str
    height: int
    theme: str = "light"
    act: Callable[[Page], None] | None = None
    """What to do there first."""


PICTURES = {
    "trace": Picture(f"#/trace?{PROMPT}", 1180),
    "trace-dark": Picture(f"#/trace?{PROMPT}", 1180, "dark"),
    "layer": Picture(f"#/layer?{PROMPT}&layer=5", 960),
    "memory": Picture(f"#/memory?memory=L5M132&{PROMPT}", 1240, act=_group),
    "intervene": Picture(f"#/intervene?{PROMPT}&edits=L5M132:set:0@all", 960, act=_run),
    "heads": Picture(f"#/heads?{PROMPT}", 1290),
    "atlas": Picture("#/atlas?memory=L5M908", 1000),
    "search": Picture("#/search?query=month", 900),
    "label": Picture("#/label", 900, act=_begin),
    "labs": Picture(f"#/labs/early-exit?{PROMPT}", 760, act=_turn),
}


def make_printed(names: Iterable[str], to: Path) -> None:
    """Make these pictures of a terminal and of a report in a folder."""
    if CHROMIUM is None:
        sys.exit("Cannot make pictures: there is no chromium on the path. Install it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in names:
            page = browser.new_page(viewport={"width": 400, "height": 200}, color_scheme="light")
            page.set_content(PAGES[name]())
            page.locator("body").screenshot(path=to / f"{name}.png")
            print(to / f"{name}.png")
        browser.close()


def make(names: Iterable[str], to: Path) -> None:
    """Make these pictures of the explorer in a folder."""
    if CHROMIUM is None:
        sys.exit("Cannot make pictures: there is no chromium on the path. Install it")
    lm = unembed.load()
    ready = cached_index(lm)
    if ready is None:
        sys.exit("Cannot make pictures: there is no index to show. Run `make run` first")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        copy = shutil.copytree(ready.path, Path(folder) / "index")
        served = Served(lm, unembed.Index.open(copy, lm), "wikitext")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            for name in names:
                _take(browser, served, PICTURES[name], to / f"{name}.png")
                print(to / f"{name}.png")
        finally:
            browser.close()
            served.server.should_exit = True
            served.thread.join(timeout=10)
            served.session.close()


def _take(browser, served: Served, picture: Picture, to: Path) -> None:
    viewport = {"width": WIDTH, "height": picture.height}
    page = browser.new_page(viewport=viewport, color_scheme=picture.theme)
    page.goto(f"{served.address}?token={TOKEN}")
    page.goto(served.address + picture.where)
    page.reload()
    _settled(page)
    if picture.act:
        picture.act(page)
        _settled(page)
        page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=to)
    page.close()


def _settled(page: Page) -> None:
    """Wait until nothing has been asked of the server, and nothing drawn, for two seconds."""
    page.wait_for_load_state("networkidle")
    page.evaluate(
        """() => new Promise((done) => {
          let timer = setTimeout(done, 2000);
          new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(done, 2000); })
            .observe(document.body, { subtree: true, childList: true, characterData: true });
        })"""
    )


if __name__ == "__main__":
    wanted = sys.argv[1:] or [*PICTURES, *PAGES]
    if strange := set(wanted) - set(PICTURES) - set(PAGES):
        sys.exit(f"No such picture: {', '.join(sorted(strange))}. There are {', '.join([*PICTURES, *PAGES])}")
    if screens := [name for name in wanted if name in PICTURES]:
        make(screens, IMAGES)
    make_printed([name for name in wanted if name in PAGES], IMAGES)
