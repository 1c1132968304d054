"""Two prompts side by side, what patching finds between them, and the three continuations."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

import unembed
from tests.browser.conftest import address

CLEAN, CORRUPTED = "The blue car and the red", "The blue sky and the red"
AT = f"#/compare?prompt={CLEAN.replace(' ', '+')}&other={CORRUPTED.replace(' ', '+')}"


def cells(page):
    """The map of patches."""
    return page.get_by_role("grid", name=re.compile("fraction recovered")).get_by_role("gridcell")


@pytest.fixture(scope="session")
def patching(lm):
    metric = unembed.logit_difference(int(lm.trace(CLEAN).prediction[-1]), int(lm.trace(CORRUPTED).prediction[-1]))
    return lambda point, **more: lm.patch(CLEAN, CORRUPTED, point, metric, **more)


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("%", "").strip())


def test_every_cell_is_the_patch_of_the_library(opened, patching):
    # Before the page runs the model.
    found, other = patching("resid_pre"), patching("resid_pre", direction="noising")
    page = opened(AT)
    expect(cells(page)).to_have_count(found.values.numel())
    for cell in cells(page).all():
        name = cell.get_attribute("aria-label") or ""
        layer, position = map(int, re.match(r"Layer (\d+), position (\d+) ", name).groups())
        shown = number(name.split(": ")[1].split(" recovered")[0])
        expected = 100 * float(found.recovered[layer, position])
        assert shown == pytest.approx(expected, abs=0.051)
        assert number(name.split("difference ")[1]) == pytest.approx(float(found.values[layer, position]), rel=0.01)
    page.get_by_role("radio", name="Corrupted into clean").click()
    expect(page.get_by_role("columnheader", name="·car")).to_be_visible()
    name = f"Layer 0, position 2 ·car: {100 * float(other.recovered[0, 2]):.1f} % recovered"
    expect(page.get_by_role("gridcell", name=name)).to_be_visible()


def test_a_cell_opens_its_heads_and_memories_and_a_link_restores_it(opened, patching):
    heads = patching("z", positions=[5]).recovered[4, :, 0]  # before the page runs the model
    page = opened(AT)
    page.get_by_role("gridcell", name=re.compile("^Layer 4, position 5 ")).click()
    region = page.get_by_role("region", name="Heads and memories of the cell")
    best = int(heads.abs().argmax())
    first = region.get_by_role("listitem").first
    expect(first).to_contain_text(f"L4H{best}")
    assert number(first.locator(".bar-number").inner_text()) == pytest.approx(100 * float(heads[best]), abs=0.51)
    first.get_by_role("button").click()
    expect(region.get_by_role("button", name="Open its card")).to_be_visible()
    other = opened("#" + address(page).split("#")[1])
    chosen = other.get_by_role("region", name="Heads and memories of the cell").locator(".note")
    expect(chosen).to_contain_text(f"L4H{best}")
    expect(other.get_by_role("gridcell", selected=True)).to_have_attribute("data-at", "4.5")


def test_three_continuations_and_a_memory_goes_into_the_edits(opened, lm, patching):
    page = opened(f"{AT}&layer=3&position=2")
    region = page.get_by_role("region", name="Heads and memories of the cell")
    memory = region.get_by_role("button", name=re.compile("^L3M")).first
    name = memory.locator(".bar-label").inner_text()
    memory.click()
    page.get_by_role("button", name="Continue all three").click()
    texts = page.get_by_role("region", name="Continuations").locator(".text")
    expect(texts).to_have_count(3)
    index = int(name.split("M")[1])
    value = float(lm.run(CLEAN, "coefficients").at("coefficients", 3)[0, 2, index])
    edit = unembed.set_coefficient(3, index, value, positions=[2])
    expect(page.get_by_role("contentinfo").get_by_text("Ready")).to_be_visible()
    for i, (prompt, edits) in enumerate(((CLEAN, []), (CORRUPTED, []), (CORRUPTED, [edit]))):
        expect(texts.nth(i)).to_have_text(lm.generate(prompt, edits, max_new_tokens=12)[0], use_inner_text=True)
    page.get_by_role("button", name=re.compile("^Set to .* and intervene")).click()
    expect(page.get_by_role("region", name="Edits").last).to_contain_text(name)
    assert "prompt=The+blue+sky" in address(page) and f"edits={name}" in address(page)


def test_tokens_without_a_counterpart_are_named_below_the_map(opened):
    page = opened("#/compare?prompt=The+blue+car+and+the+red&other=The+car+and+the+red")
    expect(cells(page).first).to_be_visible()
    expect(page.get_by_text("the other prompt has no token in their place")).to_have_count(0)
    page.get_by_role("radio", name="Corrupted into clean").click()
    expect(
        page.get_by_role("status").filter(has_text="the other prompt has no token in their place: ·blue")
    ).to_be_visible()


def test_two_equal_prompts_are_refused_in_words(opened):
    page = opened(f"#/compare?prompt={CLEAN.replace(' ', '+')}&other={CLEAN.replace(' ', '+')}")
    expect(page.get_by_text("in both runs").first).to_be_visible()
    opened.allowed.append("422")


def test_a_prompt_of_ones_own_waits_for_its_second(opened, lm):
    page = opened("#/trace?prompt=Once+upon+a+time")
    expect(page.get_by_role("gridcell").first).to_be_visible()
    page.get_by_role("link", name="Compare", exact=True).click()
    clean, corrupted = (page.get_by_role("textbox", name=f"{side} prompt") for side in ("Clean", "Corrupted"))
    expect(clean).to_have_value("Once upon a time")
    expect(corrupted).to_have_value("")
    expect(corrupted).to_be_focused()
    expect(page.get_by_text("Write a second prompt")).to_be_visible()
    corrupted.fill("Once upon a hill")
    corrupted.press("Enter")
    expect(cells(page)).to_have_count(lm.n_layers * lm.encode("Once upon a hill").shape[1])
