"""The screen Flow: the picture, its sums, one part measured, keyboard, table, narrow windows, saved figures."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import address
from unembed.circuit_graph import FlowView, prompt_picture

PROMPT, OTHER = "Captain Cook sailed north. Captain", "Captain Scott sailed north. Captain"
HERE = f"#/flow?prompt={PROMPT.replace(' ', '%20')}&token=%20Cook&against=%20Scott&other={OTHER.replace(' ', '%20')}"


@pytest.fixture(scope="module")
def view(lm) -> FlowView:
    return prompt_picture(lm, PROMPT, " Cook", " Scott", OTHER)


def part(page: Page, name: str):
    """A box of the picture."""
    return page.locator(".flow-svg").get_by_role("button", name=re.compile(rf"^{re.escape(name)}[ ,]"))


def drawn(opened, **more) -> Page:
    page = opened(HERE, **more)
    expect(page.locator(".flow-svg")).to_be_visible(timeout=90_000)
    return page


def number(text: str) -> float:
    """A number as the page writes it."""
    return float(text.replace("−", "-").replace("+", ""))


def test_the_picture_shows_the_answer_the_parts_and_the_test(opened, view):
    page = drawn(opened)
    expect(part(page, "The answer: ·Cook")).to_contain_text("·Cook 78.7 % over ·Scott 0.2 %")
    first = view.nodes[0]
    expect(part(page, "L5H0 at ·Captain")).to_contain_text(f"+{first.relevance:.2f}")
    parts = page.locator(".flow-svg .flow-box:not(.flow-answer):not(.flow-source)").count()
    assert parts in (10, 11)  # ten, and the others where they bring enough for a ribbon
    expect(page.locator(".flow-caption").first).to_have_text(re.compile("^Test "))
    into = page.locator(".flow-ribbon[data-ends$=' -1'] title").all_text_contents()
    assert sum(number(text.rsplit(" ", 1)[1]) for text in into) == pytest.approx(view.explained, abs=0.1)


def test_a_part_shows_what_was_measured_beside_what_is_drawn(opened, view):
    page = drawn(opened)
    part(page, "L5H0 at ·Captain").click()
    card = page.get_by_role("region", name="The chosen part")
    first = view.nodes[0]
    expect(card).to_contain_text(f"Drawn: +{first.relevance:.2f}")
    expect(card).to_contain_text(f"Measured: +{view.metric - first.removed.metric:.2f}")
    assert "node=L5H0%405" in address(page)
    card.get_by_role("button", name="Off").click()
    expect(card).to_contain_text("with 0 in its place")
    card.get_by_role("textbox", name="Another prompt").fill(OTHER)
    card.get_by_role("button", name="From there").click()
    expect(card.get_by_role("status").last).to_contain_text(f"+{view.metric - first.removed.metric:.2f}")
    card.get_by_role("button", name="Add to the edits").click()
    assert "edits=L5H0:scale:0" in address(page).replace("%3A", ":")


def test_a_group_is_one_box_and_is_changed_in_the_model(opened, view):
    page = drawn(opened)
    expect(page.get_by_role("textbox", name="Prompt", exact=True)).to_be_visible()
    group = next(group for group in view.groups if group.name == "writes the answer")
    toggle = page.get_by_role("group", name="Groups of parts").get_by_role("button", name="writes the answer")
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "true")
    part(page, "group writes the answer").click()
    card = page.get_by_role("region", name="The chosen part")
    expect(card).to_contain_text(f"+{group.relevance:.2f} pass through the group")
    silenced = next(effect for effect in group.effects if effect.change == "silence").found.metric
    expect(card).to_contain_text(f"{silenced:+.2f}".replace("-", "−"))
    card.get_by_role("textbox", name="Multiply the group by").fill("2")
    card.get_by_role("button", name="Multiply").click()
    doubled = next(effect for effect in group.effects if effect.factor == 2.0).found.metric
    expect(card.get_by_role("status").last).to_contain_text(f"{doubled:+.2f}".replace("-", "−"))
    card.get_by_role("button", name="Add to the edits").click()
    parts = {view.nodes[number].name.split("@")[0] for number in group.nodes}
    expect(page.get_by_role("heading", name=f"{len(parts)} edit")).to_be_visible()
    toggle.click()
    expect(part(page, "L5H0 at ·Captain")).to_be_visible()


def test_the_picture_is_moved_through_by_keyboard_and_read_as_a_table(opened, view):
    page = drawn(opened)
    part(page, "The answer: ·Cook").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    chosen = page.locator(".flow-svg [aria-pressed=true]")
    expect(chosen).to_be_focused()
    expect(page.get_by_role("region", name="The chosen part")).to_contain_text("Comes from")
    page.get_by_text("As a table").first.click()
    row = page.locator(".flow-all tr", has_text="L5H0").first
    assert number(row.locator("td").nth(3).inner_text()) == pytest.approx(view.nodes[0].relevance, abs=0.01)


def test_fewer_parts_and_another_question_draw_another_picture(opened):
    page = drawn(opened)
    before = page.locator(".flow-box").count()
    page.get_by_role("radio", name="20").click()
    expect(page.locator(".flow-box")).not_to_have_count(before)
    assert "boxes=20" in address(page)
    page.get_by_role("checkbox", name="by itself").check()
    expect(page.locator(".flow-caption").first).to_contain_text("at their mean over a text", timeout=90_000)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_narrow_window_cuts_nothing_off(opened, theme):
    page = drawn(opened, width=390, theme=theme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    picture = page.locator(".flow-picture")
    assert picture.evaluate("el => el.scrollWidth - el.clientWidth") <= 1
    cut = """() => [...document.querySelectorAll('.flow-box')].filter((box) => {
      const rect = box.querySelector('rect').getBoundingClientRect();
      return [...box.querySelectorAll('text')].some((text) => {
        const at = text.getBoundingClientRect();
        return at.left < rect.left - 1 || at.right > rect.right + 1;
      });
    }).length"""
    assert page.evaluate(cut) == 0


def test_the_picture_is_saved_with_its_test(opened):
    page = drawn(opened)
    page.get_by_role("button", name="Download this figure").click()
    with page.expect_download() as saved:
        page.get_by_role("menuitem", name="Save figure as SVG").click()
    text = saved.value.path().read_text(encoding="utf-8")
    assert "L5H0" in text and "Test " in text and "var(" not in text


def test_a_prompt_of_another_length_is_refused_in_words(opened):
    page = opened(HERE.replace(OTHER.replace(" ", "%20"), "Captain"))
    expect(page.get_by_text("Give a counterfactual with as many tokens")).to_be_visible(timeout=60_000)
