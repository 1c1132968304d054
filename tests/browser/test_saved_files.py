"""What a screen or a card saves: every file is opened, says where it comes from, and holds what the screen shows."""

from __future__ import annotations

import base64
import csv
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from unembed import __version__

PROMPT = "The first month of the year is"
AT = f"prompt={PROMPT.replace(' ', '%20')}"
NAME = "{http://www.w3.org/2000/svg}"
ORIGIN = re.compile(rf"unembed {re.escape(__version__)}: wren \(gpt2, float32, on cpu\), index of-tests")
SCREENS = {
    "trace": (f"#/trace?{AT}&position=6&layer=5", ".bar-number"),
    "layer": (f"#/layer?{AT}&layer=3", ".sub-update .writer a"),
    "memory": ("#/memory?memory=L3M5", ".bar-number"),
    "intervene": (f"#/intervene?{AT}&edits=L3M5:set:60@all&new_tokens=6", ".pair .text"),
    "compare": ("#/compare", ".patches button"),
    "heads": (f"#/heads?head=L2H3&{AT}", ".bar-number"),
    "search": ("#/search?query=year", "td a.tok"),
    "early exit": (f"#/labs/early-exit?{AT}", "[role=status]"),
}


def saved(page: Page, item: str, tmp_path: Path, of: str = "Copy or export") -> Path:
    """The file that a menu's item offers."""
    page.get_by_role("button", name=of).first.click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name=item).click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    return path


def squeezed(text: str) -> str:
    """A text without its spaces: lines are cut elsewhere in a file."""
    return re.sub(r"[\s\u200b]+", "", text)


def seen(page: Page, what: str) -> list[str]:
    """The texts of the elements that can be seen, the page not scrolled."""
    page.evaluate("scrollTo(0, 0)")
    return [
        squeezed(one.inner_text())
        for one in page.locator(f"#main {what}").all()
        if one.is_visible() and one.inner_text()
    ]


def accessible_text(root: ET.Element) -> str:
    """All texts of a drawing, one after the other."""
    return squeezed("".join("".join(one.itertext()) for one in root.iter(f"{NAME}text")))


def size_of_png(path: Path) -> tuple[int, int]:
    """Width and height of a PNG in pixels."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


@pytest.mark.parametrize("screen", SCREENS)
def test_every_file_of_a_screen_holds_what_it_shows(opened, tmp_path, screen):
    where, what = SCREENS[screen]
    page = opened(where)
    expect(page.locator(f"#main {what}").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    if screen == "intervene":
        expect(page.get_by_text(re.compile("Diverges at|The same"))).to_be_visible()
    shown = seen(page, what)
    assert shown

    root = ET.fromstring(saved(page, "Save screen as SVG", tmp_path).read_text())
    in_order = iter(shown)
    whole = accessible_text(root)
    missing = [text for text in in_order if text not in whole]
    assert not missing
    assert ORIGIN.search(root.findtext(f"{NAME}desc"))
    assert squeezed(root.findtext(f"{NAME}desc")) in whole, "also where it is printed"
    assert root.findtext(f"{NAME}title") == page.title()
    assert not [one.tag for one in root.iter() if "foreignObject" in one.tag or "script" in one.tag]

    text = saved(page, "Save as one HTML file", tmp_path).read_text()
    assert not re.search(r"<(script|button|input|select|textarea|a)\b|\ssrc=|@import|http://(?!www\.w3\.org)", text)
    alone = page.context.new_page()
    alone.set_content(text)
    assert alone.locator("svg").count() >= 1
    printed = squeezed("".join(alone.locator("svg").first.locator("text").all_text_contents()))
    assert all(one in printed for one in shown)
    expect(alone.locator("pre")).to_contain_text(f'"unembed": "{__version__}"')

    width, height = (float(root.get(side)) for side in ("width", "height"))
    scale = min(2, 16_000 / max(width, height), (120e6 / (width * height)) ** 0.5)
    assert size_of_png(saved(page, "Save screen as PNG", tmp_path)) == (round(width * scale), round(height * scale))

    origin = json.loads(saved(page, "Save data as JSON", tmp_path).read_text())["saved_from"]
    assert origin["unembed"] == __version__
    assert (origin["model"], origin["dtype"], origin["index"]) == ("wren", "float32", "of-tests")
    first, *lines = saved(page, "Save data as CSV", tmp_path).read_text().splitlines()
    assert first.startswith("# ")
    assert ORIGIN.search(first)
    head, *rows = list(csv.reader(lines))
    assert rows
    assert {len(row) for row in rows} == {len(head)}


def test_the_numbers_in_a_file_are_those_on_the_screen(opened, lm, tmp_path):
    page = opened(f"#/trace?{AT}&position=6&layer=5")
    expect(page.get_by_text(re.compile("relative error"))).to_be_visible()
    cells = page.locator(".grid .cell").count()
    lines = saved(page, "Save data as CSV", tmp_path).read_text().splitlines()[1:]
    rows = list(csv.DictReader(lines))
    assert cells == len(rows) == (lm.n_layers + 1) * 7
    last = [row for row in rows if row["layer"] == str(lm.n_layers - 1) and row["position"] == "6"]
    assert last[0]["first_token"].strip() == page.locator(".says button .tok").first.inner_text().strip("· ")
    assert float(last[0]["probability"]) == pytest.approx(
        float(page.locator(".says button small").first.inner_text().split()[0]) / 100, abs=0.006
    )


def test_a_figure_saved_while_its_content_loads_shows_what_its_controls_say(opened, tmp_path):
    page = opened(f"#/trace?{AT}&position=6&layer=5")
    card = page.locator(".card", has=page.get_by_role("heading", name="Logit attribution"))
    expect(card.get_by_text("FFN 7")).to_be_visible()
    held: list[Route] = []
    page.route(re.compile("/attribution"), lambda route: held.append(route))
    card.get_by_role("radio", name="Source").click()
    expect(card.locator(".waiting")).to_be_visible()
    card.get_by_role("button", name="Download this figure").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Save figure as SVG").click()
        held[0].continue_()
    download.value.save_as(tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text("utf-8")
    assert ">Source<" in text and re.search(r"Head L\d+H\d+ from \d+", text)


def test_a_card_is_saved_as_it_is_seen(opened, browser, tmp_path):
    page = opened(f"#/trace?{AT}&position=6&layer=5", theme="dark")
    card = page.locator(".card", has=page.get_by_role("heading", name="Logit attribution"))
    expect(card.get_by_text(re.compile("relative error"))).to_be_visible()
    page.wait_for_load_state("networkidle")
    card.get_by_role("button", name="Download this figure").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Save figure as PNG").click()
    assert download.value.suggested_filename == "logit-attribution.png"
    download.value.save_as(tmp_path / "figure.png")
    card.scroll_into_view_if_needed()
    box = card.bounding_box()
    pictures = [base64.b64encode(x).decode() for x in ((tmp_path / "figure.png").read_bytes(), card.screenshot())]
    context = browser.new_context()
    share = context.new_page().evaluate(
        """async ([[file, screen], width, height]) => {
          const pixels = async (data, scale, x, y) => {
            const image = new Image();
            image.src = `data:image/png;base64,${data}`;
            await image.decode();
            const on = new OffscreenCanvas(width, height).getContext("2d");
            on.drawImage(image, x * scale, y * scale, width * scale, height * scale, 0, 0, width, height);
            return on.getImageData(0, 0, width, height).data;
          };
          const [a, b] = [await pixels(file, 2, 20, 50), await pixels(screen, 1, 0, 0)];
          let differ = 0;
          for (let i = 0; i < a.length; i += 4)
            if ([0, 1, 2].some((c) => Math.abs(a[i + c] - b[i + c]) > 60)) differ++;
          return differ / (width * height);
        }""",
        [pictures, round(box["width"]), round(box["height"])],
    )
    context.close()
    assert share < 0.04, "but for its controls, the picture is the card"


def test_nothing_is_offered_as_data_before_there_is_any(opened):
    page = opened("#/intervene")
    expect(page.get_by_role("button", name="Run both")).to_be_visible()
    page.get_by_role("button", name="Copy or export").click()
    expect(page.get_by_role("menuitem", name="Copy link")).to_be_visible()
    assert page.get_by_role("menuitem", name=re.compile("Save data")).count() == 0


@pytest.mark.parametrize(
    ("where", "prompts"),
    [
        ("#/heads", ["He was born on 16"]),
        ("#/compare?prompt=The+blue+car&other=The+blue+sky", ["The blue car", "The blue sky"]),
        ("#/search?query=year", []),
    ],
)
def test_a_file_names_the_prompts_that_its_screen_shows_and_no_other(opened, tmp_path, where, prompts):
    page = opened(where)
    page.locator("#main button[data-at], #main td a.tok").first.wait_for()
    page.wait_for_load_state("networkidle")
    file = json.loads(saved(page, "Save data as JSON", tmp_path).read_text())
    assert file["saved_from"]["prompts"] == prompts
    first, _, _ = saved(page, "Save data as CSV", tmp_path).read_text().partition("\n")
    assert re.findall('"(.*?)"', first) == prompts
