"""The grid of layers and positions: its width, its overview, its legend, its pinned columns, what a cell shows."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import address
from tests.browser.test_journeys import AT, PROMPT, grid, the_sum

LONG = " ".join(["the old man of the sea went to the house and"] * 18)
AT_LONG = f"#/trace?prompt={LONG.replace(' ', '+')}"


def columns(page):
    """The columns whose tokens are in the box, by position, with where they stand."""
    box = grid(page).bounding_box()
    found = {}
    for head in page.locator(".grid-token").all():
        at = head.bounding_box()
        if at["x"] >= box["x"] - 1 and at["x"] + at["width"] <= box["x"] + box["width"] + 1:
            found[int(head.get_attribute("data-c"))] = at["x"]
    return found


def test_a_long_prompt_has_an_overview_that_leads_to_every_position(opened, lm):
    page = opened(AT_LONG)
    expect(the_sum(page)).to_be_visible()
    n = lm.encode(LONG).shape[1]
    overview = page.get_by_role("img", name=f"All {n} positions")
    expect(overview).to_be_visible()
    assert n - 1 in columns(page) and 5 not in columns(page)
    overview.click(position={"x": overview.bounding_box()["width"] * 0.25, "y": 10})
    page.wait_for_timeout(400)
    seen = columns(page)
    assert any(abs(c - n // 4) < 6 for c in seen) and n - 1 not in seen
    view = overview.locator(".view")
    assert float(view.get_attribute("x")) < n // 4 < float(view.get_attribute("x")) + float(view.get_attribute("width"))
    short = opened(AT)
    expect(the_sum(short)).to_be_visible()
    expect(short.locator(".minimap")).to_be_hidden()


def test_the_grid_fits_the_width_with_colour_alone_and_names_its_cells(opened, lm):
    prompt = " ".join(LONG.split()[:40])
    page = opened(f"#/trace?prompt={prompt.replace(' ', '+')}")
    expect(the_sum(page)).to_be_visible()
    n = lm.encode(prompt).shape[1]
    assert len(columns(page)) < n
    page.get_by_text("Layout", exact=True).click()
    page.get_by_role("checkbox", name="Fit the width").check()
    expect(page.locator(".grid.dense")).to_be_visible()
    assert len(columns(page)) == n and page.evaluate(
        "(el) => el.scrollWidth <= el.clientWidth", grid(page).element_handle()
    )
    cell = grid(page).get_by_role("gridcell", name=re.compile("^Layer 2 after FFN, position 3 "))
    expect(cell.locator(".tok, .stem").first).to_be_hidden()
    assert re.search(r"first \S+ \S+ %", cell.get_attribute("aria-label"))
    assert "fit=1" in address(page)
    narrow = opened(AT, width=390)
    expect(the_sum(narrow)).to_be_visible()
    assert len(columns(narrow)) == len(lm.trace(PROMPT)), "in a narrow window it fits by itself"


def test_a_pinned_column_stays_in_view(opened, lm):
    page = opened(AT_LONG)
    expect(the_sum(page)).to_be_visible()
    n = lm.encode(LONG).shape[1]
    grid(page).evaluate("(el) => el.scrollTo({ left: 0 })")
    page.locator(".grid-token[data-c='2']").click(modifiers=["Shift"])
    expect(page.locator(".grid-token.pinned")).to_have_count(1)
    assert "columns=2" in address(page)
    natural = columns(page)[2]
    grid(page).evaluate("(el) => el.scrollTo({ left: 1e6 })")
    page.wait_for_timeout(300)
    seen = columns(page)
    assert n - 1 in seen and 2 in seen and seen[2] < natural, "it stands at the left edge"
    cell = grid(page).get_by_role("gridcell", name=re.compile("^Layer 5 after FFN, position 2 "))
    expect(cell).to_be_visible()
    assert abs(cell.bounding_box()["x"] - seen[2]) < 1.5
    other = opened("#" + address(page).split("#")[1])
    expect(other.locator(".grid-token.pinned")).to_have_count(1)
    page.locator(".grid-token[data-c='2']").click(modifiers=["Shift"])
    expect(page.locator(".grid-token.pinned")).to_have_count(0)


def test_the_legend_names_every_sign(opened):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    legend = page.locator(".legend")
    used = {sign for text in page.locator(".cell .glyph").all_inner_texts() for sign in text}
    assert used
    for sign in used:
        expect(legend).to_contain_text(sign)
    for words in ("saturation", "elimination", "top-1 is the final prediction", "the same token as in the row before"):
        expect(legend).to_contain_text(words)


CONTRASTS = """() => {
  const luminance = (colour) => {
    const pen = document.createElement("canvas").getContext("2d");
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((v) =>
      v <= 10 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const row = document.querySelector(".grid-row");
  const found = {};
  for (let q = 0; q < 17; q++)
    for (const more of ["", " still", " answer"]) {
      const cell = Object.assign(document.createElement("div"), { className: `cell q${q}${more}` });
      const glyph = Object.assign(document.createElement("div"), { className: "glyph", textContent: "◆" });
      cell.append(glyph);
      row.append(cell);
      found[`q${q}${more}`] = contrast(getComputedStyle(glyph).color, getComputedStyle(cell).backgroundColor);
      cell.remove();
    }
  const card = document.querySelector(".lanes").closest(".card");
  const marker = document.querySelector(".marker");
  found.lane = contrast(getComputedStyle(marker).color, getComputedStyle(card).backgroundColor);
  return found;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_event_glyphs_stand_out_from_every_shade(opened, theme):
    page = opened(AT, theme=theme)
    expect(the_sum(page)).to_be_visible()
    faint = {where: ratio for where, ratio in page.evaluate(CONTRASTS).items() if ratio < 3}
    assert not faint


def test_two_hundred_tokens_fit_the_width(opened, lm):
    page = opened(f"{AT_LONG}&fit=1")
    expect(the_sum(page)).to_be_visible()
    n = lm.encode(LONG).shape[1]
    assert n > 190
    assert len(columns(page)) == n
    expect(page.locator(".minimap")).to_be_hidden()
    body = page.locator(".grid").bounding_box()
    last = page.get_by_role("gridcell", name=re.compile(f"^Layer 2 after FFN, position {n - 1} ")).bounding_box()
    assert last["width"] >= 3 and body["x"] + body["width"] - last["x"] - last["width"] < 12, "no width is left"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_hovered_cell_shows_its_top_five(opened, lm, theme):
    page = opened(AT, theme=theme)
    expect(the_sum(page)).to_be_visible()
    grid(page).get_by_role("gridcell", name=re.compile("^Layer 2 after FFN, position 3 ")).hover()
    rows = page.locator("#pop .bar-row")
    expect(rows).to_have_count(5)
    reading = lm.trace(PROMPT).readings()
    shown = [text.split("\n")[0] for text in rows.all_inner_texts()]
    assert shown == [token.replace(" ", "·") for token in reading.tokens[2][3][:5]]
