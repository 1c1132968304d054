"""The keys of the page, and how to switch the single letters off."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import address
from tests.browser.test_grid_cells import place
from tests.browser.test_journeys import AT, PROMPT, grid, the_sum
from tests.browser.test_ranges_links_tour import inspector


@pytest.fixture
def traced(opened):
    """A trace with everything that belongs to its position."""
    page = opened(AT, permissions=["clipboard-read", "clipboard-write"])
    expect(the_sum(page)).to_be_visible()
    return page


def active(page):
    """The layer and the position of the cell that the grid names as its active one."""
    name = page.evaluate(
        "document.getElementById(document.querySelector('.grid').getAttribute('aria-activedescendant'))"
        ".getAttribute('aria-label')"
    )
    return place(name)


def test_arrows_home_end_and_pages_move_in_the_grid(traced, lm):
    last, end = lm.n_layers - 1, 6
    grid(traced).focus()
    for key, where in (
        ("ArrowLeft", (last, end - 1)),
        ("ArrowDown", (last - 1, end - 1)),
        ("Home", (last - 1, 0)),
        ("End", (last - 1, end)),
        ("PageDown", (0, end)),  # the embedding has no layer of its own, so the first one is selected
        ("PageUp", (last, end)),
        ("Control+Home", (last, 0)),
        ("Control+End", (0, end)),
        ("ArrowRight", (0, end)),
    ):
        traced.keyboard.press(key)
        assert active(traced) == where, key


def test_brackets_move_between_layers_and_commas_between_positions(traced, lm):
    last = lm.n_layers - 1
    traced.keyboard.press("[")
    expect(inspector(traced).get_by_role("heading", name=f"Layer {last - 1}, FFN")).to_be_visible()
    traced.keyboard.press(",")
    expect(inspector(traced).get_by_text("position 5")).to_be_visible()
    traced.keyboard.press(".")
    traced.keyboard.press("]")
    expect(inspector(traced).get_by_text("position 6")).to_be_visible()
    expect(inspector(traced).get_by_role("heading", name=f"Layer {last}, FFN")).to_be_visible()
    traced.keyboard.press("]")
    expect(inspector(traced).get_by_role("heading", name=f"Layer {last}, FFN")).to_be_visible()


def test_letters_recolour_pin_hide_events_and_add_an_edit(traced, lm, index):
    traced.keyboard.press("m")
    expect(traced.get_by_role("radiogroup", name="Shade by").get_by_role("radio", name="Rank")).to_have_attribute(
        "aria-checked", "true"
    )
    traced.keyboard.press("p")
    expect(traced.get_by_role("button", name="Clear pins")).to_be_visible()
    assert f"pins={int(lm.trace(PROMPT).readings().ids[-1, -1, 0])}" in address(traced)
    glyphs = traced.locator(".glyph").first
    expect(glyphs).to_be_visible()
    traced.keyboard.press("e")
    expect(glyphs).to_be_hidden()
    traced.keyboard.press("e")
    expect(glyphs).to_be_visible()
    last = lm.n_layers - 1
    most = lm.trace(PROMPT).memory_effects(layers=[last], top=1, index=index).rows[0].index
    traced.keyboard.press("i")
    expect(traced.get_by_role("heading", name="1 edit")).to_be_visible()
    assert f"edits=L{last}M{most}" in address(traced)
    expect(traced.get_by_role("checkbox", name="What the edits changed")).to_be_visible()
    traced.keyboard.press("d")
    expect(traced.get_by_role("checkbox", name="What the edits changed")).to_be_checked()
    traced.keyboard.press("r")
    expect(traced.get_by_role("heading", name="Continuations")).to_be_visible()


def test_keys_open_the_search_the_help_the_menu_and_the_commands(traced):
    traced.keyboard.press("c")
    expect(traced.get_by_text("Link copied")).to_be_visible()
    assert "prompt=The+first+month" in traced.evaluate("navigator.clipboard.readText()")
    traced.keyboard.press("x")
    expect(traced.get_by_role("menuitem", name="Copy as Python")).to_be_visible()
    traced.keyboard.press("Escape")
    expect(traced.get_by_role("menuitem", name="Copy as Python")).to_be_hidden()
    traced.keyboard.press("?")
    expect(traced.get_by_role("dialog", name="How to read this")).to_be_visible()
    traced.keyboard.press("Escape")
    traced.keyboard.press("/")
    expect(traced.get_by_role("searchbox", name="Search memories").first).to_be_focused()
    traced.keyboard.press("Control+k")
    commands = traced.get_by_role("dialog", name="Commands")
    traced.keyboard.type("open heads")
    expect(commands.get_by_role("button")).to_have_text(["Open Heads"])
    traced.keyboard.press("Enter")
    expect(traced.get_by_role("heading", name="Heads", exact=True)).to_be_visible()


def test_letters_do_nothing_in_a_text_and_can_be_switched_off(traced):
    probability = traced.get_by_role("radio", name="Probability").first
    box = traced.get_by_role("textbox", name="Prompt")
    box.press("End")
    traced.keyboard.type("mpe?")
    expect(box).to_have_value(f"{PROMPT}mpe?")
    expect(probability).to_have_attribute("aria-checked", "true")
    traced.get_by_role("button", name="Help and keys").click()
    traced.get_by_role("checkbox", name="Switch single-letter keys off").check()
    traced.get_by_role("button", name="Close").click()
    grid(traced).focus()
    traced.keyboard.press("m")
    traced.keyboard.press("?")
    traced.keyboard.press("ArrowLeft")
    expect(inspector(traced).get_by_text("position 5")).to_be_visible()
    expect(probability).to_have_attribute("aria-checked", "true")
    expect(traced.get_by_role("dialog")).to_have_count(0)
