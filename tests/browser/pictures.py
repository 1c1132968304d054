"""The pictures that the documentation shows: `make pictures` makes all of them, or some by name.

The explorer's are of every screen, in both themes, at three widths.

Those of the explorer show the index that `make run` has built, a copy of it, so that nothing is left there. Look at
them before they are committed: they are not compared with anything.
"""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_plus

from playwright.sync_api import Browser, Page, sync_playwright

import unembed
from tests.browser.conftest import CHROMIUM, TOKEN, Served
from tests.browser.printed_pictures import PAGES
from unembed.index.default_index import cached_index

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PROMPT = "prompt=" + quote_plus("Once upon a time there was a little")
PROMPT_OF_MEMORY = "prompt=" + quote_plus("He was born on 16")
THEMES = ("light", "dark")
WIDTHS = {390: 2600, 1280: 1800, 2560: 1700}
"""The widths of a window, and how much of a page a picture shows at most; all in CSS pixels."""


def _run(page: Page) -> None:
    page.get_by_text("Diverges at generated token").wait_for()


def _group(page: Page) -> None:
    button = page.get_by_role("button", name="Compute clusters")
    if button.count():  # they are computed once, and stored in the index
        button.click()


def _turn(page: Page) -> None:
    slider = page.locator("input[type=range]").first
    for _ in range(3):
        slider.press("ArrowRight")


def _continue(page: Page) -> None:
    page.get_by_role("gridcell", name="Layer 4, position 5").click()
    page.get_by_role("button", name="Continue all three").click()


def _steer(page: Page) -> None:
    page.get_by_role("textbox", name="Words to promote").fill("happy, afraid")
    page.get_by_role("textbox", name="Words to promote").press("Enter")


def _score(page: Page) -> None:
    page.get_by_role("textbox", name="Prompts, one a line").fill(
        "Once upon a time there was a little\nThe old man said"
    )
    page.get_by_role("button", name="Sample and score").click()
    page.get_by_role("table", name="Mean toxicity by prompt").wait_for(timeout=120_000)


def _begin(page: Page) -> None:
    box = page.get_by_placeholder("annotator name")
    if box.input_value():
        return
    box.fill("ann")
    box.press("Enter")
    _settled(page)
    for _ in range(7):  # as someone at work sees it
        page.get_by_role("button", name="Skip (s)").click()
        page.wait_for_timeout(500)


class Picture(NamedTuple):
    """A screen as it is shown."""

    where: str
    act: Callable[[Page], None] | None = None
    """What to do there first."""


SCREENS = {
    "trace": Picture(f"#/trace?{PROMPT}"),
    "flow": Picture(
        "#/flow?prompt=Captain+Cook+sailed+north.+Captain&token=+Cook&against=+Scott"
        "&other=Captain+Scott+sailed+north.+Captain",
        lambda page: page.locator(".flow-svg").wait_for(timeout=240_000),
    ),
    "layer": Picture(f"#/layer?{PROMPT}&layer=5"),
    "memory": Picture(f"#/memory?memory=L6M718&{PROMPT_OF_MEMORY}", _group),
    "intervene": Picture(f"#/intervene?{PROMPT}&edits=L5M955:set:0@all", _run),
    "compare": Picture("#/compare?prompt=The+blue+car+and+the+red&other=The+blue+sky+and+the+red", _continue),
    "heads": Picture("#/heads?prompt=one+two+three+four+one+two+three"),
    "atlas": Picture("#/atlas"),
    "search": Picture("#/search?query=January"),
    "label": Picture("#/label", _begin),
    "labs-steer": Picture(f"#/labs/steer?{PROMPT}", _steer),
    "labs-toxicity": Picture(f"#/labs/toxicity?{PROMPT}&edits=L5M132:scale:0@all", _score),
    "labs-early-exit": Picture(f"#/labs/early-exit?{PROMPT}", _turn),
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


def names(screen: str) -> Iterable[tuple[str, int, str]]:
    """The pictures of a screen: name, width, theme."""
    return [(f"{screen}-{theme}-{width}", width, theme) for width in WIDTHS for theme in THEMES]


def make(screens: Iterable[str], to: Path) -> None:
    """Make the pictures of these screens in a folder."""
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
            for screen in screens:
                for width in WIDTHS:
                    _take(browser, served, screen, width, to)
        finally:
            browser.close()
            served.stop()


def _take(browser: Browser, served: Served, screen: str, width: int, to: Path) -> None:
    """One screen at one width, in both themes."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(f"{served.address}?token={TOKEN}")
    page.goto(served.address + SCREENS[screen].where)
    page.reload()
    _settled(page)
    act = SCREENS[screen].act
    if act:
        act(page)
        _settled(page)
    for _ in range(8):  # what is as high as the window grows with it
        tall = int(page.evaluate("document.documentElement.scrollHeight"))
        page.set_viewport_size({"width": width, "height": max(900, min(tall, WIDTHS[width]))})
    page.evaluate("() => (document.activeElement?.blur(), scrollTo(0, 0))")
    page.mouse.move(0, 0)
    pages = page.context.new_cdp_session(page)
    for name, at, theme in names(screen):
        if at != width:
            continue
        page.emulate_media(color_scheme=theme)
        page.wait_for_timeout(1000)  # canvases are drawn again
        taken = pages.send("Page.captureScreenshot", {"format": "webp", "quality": 60})
        (to / f"{name}.webp").write_bytes(base64.b64decode(taken["data"]))
        print(to / f"{name}.webp", flush=True)
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
    wanted = sys.argv[1:] or [*SCREENS, *PAGES]
    if strange := set(wanted) - set(SCREENS) - set(PAGES):
        sys.exit(f"No such picture: {', '.join(sorted(strange))}. There are {', '.join([*SCREENS, *PAGES])}")
    if screens := [name for name in wanted if name in SCREENS]:
        make(screens, IMAGES)
    make_printed([name for name in wanted if name in PAGES], IMAGES)
