"""Addresses that hold what the page cannot read, or what the model does not have."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

HERE = "prompt=The%20first%20month%20of%20the%20year%20is&new_tokens=4"


def said(page):
    """What the status line reports."""
    return page.get_by_role("contentinfo").locator(".bad")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("L5M278:foo:3@all", "written like L5M278:set:3@all"),
        ("L5M278:set:3@first", "written like L5M278:set:3@all"),
        ("L5M278:set:3@1-3", "written like L5M278:set:3@all"),
        ("L99M5:set:3@all", "wren has no memory L99M5"),
        ("L3M99999:set:3@all", "wren has no memory L3M99999"),
        ("L3H99:scale:0@all", "wren has no head L3H99"),
        ("L3H1:set:3@all", "a head can only be scaled"),
    ],
)
def test_an_edit_that_cannot_be_read_is_named_and_the_others_are_made(opened, bad, why):
    page = opened(f"#/intervene?{HERE}&edits={bad};L3M5:set:60@all;L3M6:set:1@all&disabled=2")
    expect(said(page)).to_contain_text(f"edit {bad} ({why}")
    expect(said(page)).to_contain_text("The rest is shown")
    tray = page.get_by_role("region", name="Edits", exact=True)
    expect(tray.get_by_role("checkbox", name="L3M5 on")).to_be_checked()
    expect(tray.get_by_role("checkbox", name="L3M6 on")).not_to_be_checked()
    expect(tray.get_by_role("checkbox")).to_have_count(2)
    expect(page.get_by_text("Diverges at generated token")).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


def test_a_pinned_token_outside_the_vocabulary_is_named_and_the_other_is_drawn(opened, lm):
    known = lm.encode(" Paris")[0, -1].item()
    page = opened(f"#/trace?{HERE}&pins={lm.d_vocab}+{known}&metric=pinned")
    expect(said(page)).to_contain_text(f"pinned token {lm.d_vocab} (wren has 0 to {lm.d_vocab - 1})")
    ranks = page.get_by_role("region", name="Token rank by layer")
    expect(ranks).to_contain_text("·Paris")
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


@pytest.mark.parametrize(
    ("where", "text", "heading"),
    [
        ("memory?memory=L5H1", "memory L5H1 (written like L5M278)", "Choose a memory"),
        ("heads?head=first", "head first (written like L5H1)", "Heads"),
        ("trace?edit=L3M5:set:60@all", "“edit=”", "Where in the model"),
        ("nowhere", "screen nowhere", "Where in the model"),
        ("layer?layer=99", "layer 99 (wren has 0 to", "Before, after attention, after FFN"),
    ],
)
def test_what_else_cannot_be_read_is_named_and_the_screen_opens(opened, where, text, heading):
    page = opened(f"#/{where}")
    expect(said(page)).to_contain_text(text)
    expect(page.get_by_role("heading", name=heading).first).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


@pytest.mark.parametrize("screen", ["trace", "layer"])
@pytest.mark.parametrize("position", ["40", "-41", "last"])
def test_a_position_that_the_prompt_does_not_have_is_named_and_its_last_token_is_shown(opened, screen, position):
    page = opened(f"#/{screen}?prompt=one+two+three&position={position}")
    expect(said(page)).to_contain_text(f"The prompt has no position {position}, only 0 to 2")
    expect(page.get_by_text(re.compile("position 2; effects on ")).first).to_be_visible()
    expect(page).not_to_have_url(re.compile("position="))
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


def test_an_address_typed_into_an_open_page_is_read_the_same_way(opened):
    page = opened(f"#/trace?{HERE}")
    expect(page.get_by_role("gridcell").first).to_be_visible()
    page.evaluate("location.hash = '#/trace?prompt=one+two&edits=L99M5:set:3@all;L3M5:set:60@all'")
    expect(said(page)).to_contain_text("wren has no memory L99M5")
    expect(page.get_by_role("columnheader", name=re.compile("^·two "))).to_be_visible()
    expect(page.get_by_text("1 edit", exact=True)).to_be_visible()
    page.get_by_role("button", name="Dismiss").click()
    page.get_by_role("gridcell", name=re.compile("^Layer 2 after FFN, position 0 ")).click()
    expect(said(page)).to_have_count(0)
