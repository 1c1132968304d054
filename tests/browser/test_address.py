"""The address follows what the page shows when the page has drawn, and nothing that was shown is lost by that."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.conftest import address
from tests.browser.test_journeys import AT, grid, the_sum

OTHER = "The last month of the year was"
_COUNTED = """() => {
  window.changes = [];
  for (const how of ["pushState", "replaceState"]) {
    const change = history[how];
    history[how] = function (...given) { changes.push(`${how} ${given[2]}`); return change.apply(history, given); };
  }
  const ask = window.fetch;
  window.fetch = function (where, ...more) { changes.push(`fetch ${where}`); return ask(where, ...more); };
}"""


def _ready(opened):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    page.wait_for_timeout(500)
    page.evaluate(_COUNTED)
    return page


def test_the_request_is_sent_before_the_address_changes(opened):
    page = _ready(opened)
    page.get_by_role("textbox", name="Prompt").fill(OTHER)
    page.get_by_role("textbox", name="Prompt").press("Enter")
    page.wait_for_url(re.compile("prompt=The.last.month"))
    changes = page.evaluate("changes.map((one) => one.split(' ')[0] + ' ' + one.split('/').at(-1).slice(0, 6))")
    assert changes.index("fetch stream") < changes.index("pushState trace?")
    assert "prompt=The+last+month" in page.url
    page.go_back()
    assert "prompt=The+last+month" not in page.url
    expect(page.get_by_role("textbox", name="Prompt")).not_to_have_value(OTHER)


def test_an_arrow_that_is_held_down_changes_the_address_once(opened):
    page = _ready(opened)
    grid(page).get_by_role("gridcell", name=re.compile("^Layer 3 after FFN, position 5 ")).click()
    address(page)
    page.evaluate("changes.length = 0")
    grid(page).focus()
    page.evaluate("""() => {
      const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      for (let n = 0; n < 300; n++) press(n % 2 ? "ArrowUp" : "ArrowDown");
      press("ArrowLeft");
    }""")
    page.wait_for_url(re.compile("position=4"))
    written = [one for one in page.evaluate("changes") if "State" in one]
    assert len(written) == 1 and written[0].startswith("replaceState ")


def test_two_prompts_within_a_moment_are_two_steps_back(opened):
    page = _ready(opened)
    box = page.get_by_role("textbox", name="Prompt")
    page.evaluate("""() => {
      for (const n of [1, 2]) document.querySelector(`button[aria-label^="Example:"]:nth-of-type(${n + 1})`).click();
    }""")
    expect(box).to_have_value("The blue car and the red")
    assert "prompt=The+blue" in address(page)
    page.go_back()
    expect(box).to_have_value("She put the book on the")
    page.go_back()
    expect(box).to_have_value("The first month of the year is")


def test_back_works_immediately_after_a_screen_opens(opened):
    page = _ready(opened)
    page.evaluate("document.querySelector('#rail a[data-screen=layer]').click()")
    page.go_back()
    expect(page.locator("#rail a[aria-current]")).to_have_text("Trace")


def test_leaving_the_page_at_once_and_returning_restores_the_view(opened):
    page = _ready(opened)
    cell = grid(page).get_by_role("gridcell", name=re.compile("^Layer 3 after FFN, position 2 "))
    cell.evaluate("(cell) => { cell.click(); location.href = 'about:blank'; }")
    page.wait_for_url("about:blank")
    page.go_back()
    expect(cell).to_be_visible()
    expect(grid(page)).to_have_attribute("aria-activedescendant", cell.get_attribute("id"))
