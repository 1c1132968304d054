"""A page of 390 pixels: everything can be reached, nothing is cut off, and what a tap changes can be seen."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

HERE = "prompt=one%20two%20three%20four%20one%20two"


def inside(page: Page, box: dict) -> bool:
    """Whether a box lies in the window."""
    return box["x"] >= 0 and box["y"] >= 0 and box["x"] + box["width"] <= 390 and box["y"] + box["height"] <= 900


def test_every_screen_can_be_reached_without_scrolling_the_navigation(opened):
    page = opened("#/search", width=390)
    links = page.get_by_role("navigation", name="Screens").get_by_role("link")
    expect(links).to_have_count(11)
    for link in links.all():
        assert inside(page, link.bounding_box())
    assert page.evaluate("(el => el.scrollWidth <= el.clientWidth)(document.getElementById('rail'))")


def test_a_tap_on_a_cell_shows_it_in_a_sheet_that_can_be_closed(opened):
    page = opened(f"#/trace?{HERE}", width=390)
    grid = page.get_by_role("grid").first
    expect(page.get_by_text(re.compile("relative error"))).to_be_attached()
    aside = page.get_by_role("complementary", name="Selected cell")
    assert aside.bounding_box()["y"] > 900, "before the tap it stands below the rest"
    grid.get_by_role("gridcell", name=re.compile("^Layer 3 after FFN, position 1 ")).click()
    heading = aside.get_by_role("heading", name="Layer 3, FFN")
    expect(heading).to_be_in_viewport()
    cell = grid.get_by_role("gridcell", name=re.compile("^Layer 3 after FFN, position 1 "))
    expect(cell).to_be_in_viewport()
    page.wait_for_timeout(300)
    expect(page.locator("#pop")).to_have_count(0)
    aside.get_by_role("button", name="Close").click()
    expect(heading).not_to_be_in_viewport()


def test_a_tap_on_the_map_shows_the_memory_in_a_sheet(opened):
    page = opened("#/atlas", width=390)
    expect(page.get_by_role("button", name=re.compile("^words"))).to_be_attached()
    canvas = page.get_by_role("application")
    canvas.scroll_into_view_if_needed()
    canvas.focus()
    page.keyboard.press("ArrowRight")
    chosen = page.get_by_role("region", name="Selected memory")
    expect(chosen.get_by_role("button", name="Open its card")).to_be_in_viewport()
    expect(canvas).to_be_in_viewport()
    above = canvas.bounding_box()
    assert above["y"] + above["height"] * 0.9 <= chosen.bounding_box()["y"], "the map is seen above the sheet"
    chosen.get_by_role("button", name="Close").click()
    assert chosen.evaluate("el => getComputedStyle(el).position") == "relative"


def test_on_a_wide_page_nothing_is_laid_over_another(opened):
    page = opened(f"#/trace?{HERE}", width=1280)
    page.get_by_role("grid").first.get_by_role("gridcell", name=re.compile("^Layer 3 after FFN, position 1 ")).click()
    aside = page.get_by_role("complementary", name="Selected cell")
    expect(aside.get_by_role("heading", name="Layer 3, FFN")).to_be_visible()
    assert aside.evaluate("el => getComputedStyle(el).position") == "sticky"
    expect(aside.get_by_role("button", name="Close")).to_be_hidden()


@pytest.mark.parametrize("name", ["All heads", "Patterns on the prompt"])
def test_no_head_is_cut_off(opened, lm, name):
    page = opened(f"#/heads?head=L2H3&{HERE}", width=390)
    region = page.get_by_role("region", name=name)
    heads = region.locator("button[data-at], .thumbs button")
    expect(heads).to_have_count(lm.n_layers * lm.n_heads)
    right = region.bounding_box()["x"] + region.bounding_box()["width"]
    assert max(one.bounding_box()["x"] + one.bounding_box()["width"] for one in heads.all()) <= right
    assert min(one.bounding_box()["width"] for one in heads.all()) >= 24


def test_the_ranks_that_tokens_moved_are_never_cut_off(opened):
    page = opened(f"#/layer?layer=3&{HERE}", width=390)
    names = page.get_by_role("region", name="Before, after attention, after FFN").locator(".cand > span")
    expect(names.first).to_be_visible()
    assert page.locator(".delta").count() > 0
    assert not [one for one in names.all() if one.evaluate("el => el.scrollWidth > el.clientWidth + 1")]


def test_a_patched_prompt_of_six_tokens_needs_no_scrolling(opened):
    page = opened("#/compare?prompt=The+blue+car+and+the+red&other=The+blue+sky+and+the+red", width=390)
    grid = page.get_by_role("grid")
    expect(grid).to_be_visible()
    assert grid.evaluate("el => el.scrollWidth <= el.clientWidth")


def test_the_tokens_of_a_pattern_can_be_read(opened):
    page = opened(f"#/heads?head=L2H3&{HERE}", width=390)
    name = page.locator(".heatmap text").first
    expect(name).to_be_visible()
    assert name.bounding_box()["height"] >= 10, "CSS pixels of a line of text"


@pytest.mark.parametrize("width", [390, 1280])
def test_probabilities_of_a_column_have_equal_decimals_on_one_line(opened, width):
    page = opened(f"#/intervene?{HERE}&edits=L3M5:set:0@all", width=width)
    rows = page.get_by_role("region", name="Next token").get_by_role("row")
    expect(rows).to_have_count(11)
    numbers = page.get_by_role("region", name="Next token").locator("td.n").all()
    texts = [one.inner_text() for one in numbers]
    assert len(texts) == 30
    assert all(re.fullmatch(r"(<0\.1|\d+\.\d) %|[+−]?\d+\.\d", text) for text in texts), texts
    assert {round(one.bounding_box()["height"]) for one in numbers} == {round(numbers[0].bounding_box()["height"])}
    assert numbers[0].bounding_box()["height"] < 40
