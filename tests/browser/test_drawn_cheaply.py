"""What a trace and a move cost the browser, in counts: elements made, and times that it was laid out early."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.test_journeys import AT, grid, the_sum

OTHER = "The last month of the year was"
_COUNTED = """() => {
  window.asked = [];
  window.made = 0;
  const sizes = ["clientWidth", "clientHeight", "scrollLeft", "scrollTop"];
  for (const [kind, names] of [[Element, sizes], [HTMLElement, ["offsetWidth", "offsetHeight"]]])
    for (const name of names) {
      const of = Object.getOwnPropertyDescriptor(kind.prototype, name);
      Object.defineProperty(kind.prototype, name, { ...of, get() { asked.push(name); return of.get.call(this); } });
    }
  const box = Element.prototype.getBoundingClientRect;
  Element.prototype.getBoundingClientRect = function () { asked.push("box"); return box.call(this); };
  const host = document.querySelector(".grid");
  const count = (one) => [...one.addedNodes].filter((el) => el.matches?.(".cell, .grid-row, .grid-token")).length;
  const observer = new MutationObserver((all) => all.forEach((one) => (made += count(one))));
  observer.observe(host, { childList: true, subtree: true });
}"""
_READ_BY_THE_GRID = """() => new Promise((done) => {
  const look = (list) => list.getEntriesByName("unembed-grid").length && done([asked.length, made]);
  new PerformanceObserver(look).observe({ type: "mark" });
})"""


@pytest.mark.parametrize("rest", [300, 0], ids=["traced while it was typed", "asked for at once"])
def test_a_trace_fills_the_existing_cells_without_an_early_layout(opened, lm, rest):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    page.wait_for_timeout(300)
    page.evaluate(_COUNTED)
    page.get_by_role("textbox", name="Prompt").fill(OTHER)
    page.wait_for_timeout(rest)
    page.evaluate("asked.length = made = 0")
    page.evaluate(f"void (window.counted = ({_READ_BY_THE_GRID})())")
    page.get_by_role("textbox", name="Prompt").press("Enter")
    requests, made = page.evaluate("counted")
    assert (requests, made) == (0, 0)
    tokens = lm.token_strings(lm.encode(OTHER)[0])
    expect(page.locator(".grid-token .tok")).to_have_text([t.replace(" ", "·") for t in tokens])
    trace = lm.trace(OTHER)
    for layer in range(lm.n_layers):
        cell = grid(page).get_by_role("gridcell", name=re.compile(f"^Layer {layer} after FFN, position 3 "))
        first = lm.token_strings([int(trace.readings().ids[layer, 3, 0])])[0].replace(" ", "·")
        expect(cell).to_have_attribute("aria-label", re.compile(re.escape(f": first {first} ")))


def test_typing_and_pressing_enter_at_once_requests_no_tokens(opened):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url.split("/api/v1")[-1]))
    box = page.get_by_role("textbox", name="Prompt")
    box.evaluate(
        "(box, text) => { box.value = text; box.dispatchEvent(new Event('input', { bubbles: true }));"
        "box.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true })); }",
        OTHER,
    )
    page.wait_for_function("() => performance.getEntriesByName('whole trace').length > 1")
    page.wait_for_timeout(300)
    assert "/traces/stream" in requests
    assert not [url for url in requests if url.startswith("/tokenize")]


def test_the_panes_below_the_grid_are_drawn_after_its_frame(opened):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    page.wait_for_function("() => performance.getEntriesByName('whole position').length === 1")
    page.evaluate("performance.clearMeasures()")
    grid(page).get_by_role("gridcell", name=re.compile("^Layer 2 after FFN, position 3 ")).click()
    page.wait_for_function("() => performance.getEntriesByName('whole position').length === 1")
    cell, whole = (
        page.evaluate(f"(({{startTime, duration}}) => startTime + duration)(performance.getEntriesByName('{name}')[0])")
        for name in ("position", "whole position")
    )
    assert cell <= whole, "the cell is painted before the panes below the grid are drawn"
    expect(the_sum(page)).to_be_visible()
