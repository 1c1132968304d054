"""What a cell of the grid shows, how it is picked, pinned and previewed; cells out of view."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.conftest import address
from tests.browser.test_grid import AT_LONG
from tests.browser.test_journeys import AT, PROMPT, grid, the_sum

CELLS = """cells => cells.map((cell) => ({
  name: cell.getAttribute("aria-label"), classes: [...cell.classList], text: cell.textContent,
  stem: !!cell.querySelector(".stem"), glyph: !!cell.querySelector(".glyph"), edge: getComputedStyle(cell).boxShadow,
}))"""


def place(name: str) -> tuple[int, int]:
    """The layer (-1 is the embedding) and the position in the name of a cell."""
    found = re.match(r"(?:Layer (\d+) after \w+|Embedding), position (\d+) ", name)
    assert found, name
    return int(found[1] or -1), int(found[2])


def cells_of(page):
    """By layer and position, what a cell is."""
    return {place(cell["name"]): cell for cell in page.locator(".cell").evaluate_all(CELLS)}


def cell(page, layer, position):
    return grid(page).get_by_role("gridcell", name=re.compile(f"^Layer {layer} after FFN, position {position} "))


def test_a_repeated_token_is_a_stem_and_the_final_prediction_is_outlined(opened, lm):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    trace = lm.trace(PROMPT)
    first = {n: trace.readings().ids[n, :, 0].tolist() for n in range(lm.n_layers)}
    first[-1] = trace.readings("resid_pre").ids[0, :, 0].tolist()
    found = cells_of(page)
    assert len(found) == (lm.n_layers + 1) * len(trace)
    edges = {True: set(), False: set()}
    for (n, p), shown in found.items():
        repeated = n >= 0 and first[n][p] == first[n - 1][p] and n < lm.n_layers - 1 and not shown["glyph"]
        assert shown["stem"] is repeated, (n, p)
        final = first[n][p] == int(trace.prediction[p])
        assert ("answer" in shown["classes"]) is final, (n, p)
        edges[final].add(shown["edge"])
    assert any(shown["stem"] for shown in found.values()) and edges[False] == {"none"} and "none" not in edges[True]


def test_the_state_after_the_attention_is_a_row_of_its_own(opened, lm):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    rows = grid(page).get_by_role("rowheader")
    expect(rows).to_have_count(lm.n_layers + 1)
    page.get_by_text("Layout", exact=True).click()
    page.get_by_role("radio", name="Attention too").click()
    expect(rows).to_have_count(2 * lm.n_layers + 1)
    reading = lm.trace(PROMPT).readings("resid_mid")
    for p in (0, 3, 6):
        middle = grid(page).get_by_role("gridcell", name=re.compile(f"^Layer 4 after attention, position {p} "))
        shown = reading.tokens[4][p][0].replace(" ", "·")
        expect(middle).to_have_attribute("aria-label", re.compile(f"first {re.escape(shown)} "))


def test_five_pins_have_each_a_dash_a_colour_and_a_name(opened, lm):
    ids = [int(lm.single_token(word)) for word in (" a", " the", " and", " in", " of")]
    page = opened(f"{AT}&pins={'+'.join(map(str, ids))}")
    lines = page.locator("svg.ranks polyline")
    expect(lines).to_have_count(6)  # the target is the first
    styles = lines.evaluate_all("all => all.map(getComputedStyle).map((s) => [s.strokeDasharray, s.stroke])")
    assert len({dash for dash, _ in styles}) == len({colour for _, colour in styles}) == 6
    target = lm.token_strings([int(lm.trace(PROMPT).prediction[-1])])[0].replace(" ", "·")
    assert sorted(page.locator("svg.ranks .end").all_text_contents()) == sorted(
        [target, "·a", "·the", "·and", "·in", "·of"]
    )
    page.get_by_role("button", name="Clear pins").click()
    expect(lines).to_have_count(1)


def test_the_preview_of_a_cell_asks_nothing_stays_under_the_pointer_and_pins(opened, lm):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    page.wait_for_load_state("networkidle")
    requests = []
    page.on("request", lambda r: requests.append(r.url) if "/api/" in r.url else None)
    cell(page, 2, 3).hover()
    preview = page.get_by_role("tooltip")
    expect(preview).to_be_visible()
    preview.get_by_role("button").nth(1).hover()
    page.wait_for_timeout(400)
    expect(preview).to_be_visible()
    page.keyboard.press("Escape")
    expect(preview).to_be_hidden()
    page.mouse.move(0, 0)
    cell(page, 2, 3).hover()
    expect(preview).to_have_count(1)
    assert requests == []
    preview.get_by_role("button").nth(1).click()
    second = int(lm.trace(PROMPT).readings().ids[2, 3, 1])
    expect(page.get_by_role("button", name="Clear pins")).to_be_visible()
    assert f"pins={second}" in address(page) and "position=3" not in address(page)


def test_a_selection_moves_a_ring_and_writes_no_cell(opened):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    page.evaluate(
        """() => {
          globalThis.written = [];
          new MutationObserver((records) => {
            for (const one of records) if (one.target.closest?.(".grid-row")) globalThis.written.push(one.type);
          }).observe(document.querySelector(".grid"), { subtree: true, childList: true, attributes: true });
        }"""
    )
    ring = page.locator(".grid-ring")
    grid(page).focus()
    before = ring.evaluate("(el) => [el.offsetLeft, el.style.transform]")
    expect(ring).to_have_css("transform", "matrix(1, 0, 0, 1, " + before[1].split("(")[1].split("px")[0] + ", 0)")
    page.keyboard.press("ArrowDown")
    expect(ring).to_have_css("transform", "matrix(1, 0, 0, 1, " + before[1].split("(")[1].split("px")[0] + ", 28)")
    page.wait_for_timeout(300)
    assert page.evaluate("globalThis.written") == []


def test_cells_keep_their_row_and_column_numbers_wherever_the_grid_is_scrolled(opened, lm):
    page = opened(AT_LONG)
    expect(the_sum(page)).to_be_visible()
    n = lm.encode(page.get_by_role("textbox", name="Prompt").input_value()).shape[1]
    for left in (0, 2000, 1_000_000):
        grid(page).evaluate("(el, left) => el.scrollTo({ left })", left)
        page.wait_for_timeout(300)
        shown = page.locator(".cell").evaluate_all(
            "cells => cells.map((c) => [c.getAttribute('aria-label'), Number(c.getAttribute('aria-colindex')), "
            "Number(c.parentElement.getAttribute('aria-rowindex'))])"
        )
        assert 0 < len(shown) < 0.5 * n * (lm.n_layers + 1)
        for name, column, row in shown:
            layer, position = place(name)
            assert (column, row) == (position + 2, lm.n_layers - layer + 1)
    expect(grid(page)).to_have_attribute("aria-rowcount", str(lm.n_layers + 2))
    expect(grid(page)).to_have_attribute("aria-colcount", str(n + 1))
