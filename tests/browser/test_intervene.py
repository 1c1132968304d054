"""The intervene screen: both continuations, and the button that runs them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from scipy.stats import binomtest

import unembed
from tests.browser.axe_rules import assert_no_violation
from unembed.steering import change_by_position

HERE = "prompt=The%20first%20month%20of%20the%20year%20is&new_tokens=6"


def both_sides(page):
    """The texts of the baseline and of the edited side."""
    return page.get_by_role("region", name="Continuations").locator(".pair .text")


def test_run_and_compare_runs_at_the_first_press(opened, lm):
    page = opened(f"#/memory?memory=L3M5&{HERE}&edits=L3M5:set:60@all")
    page.get_by_role("button", name="Run and compare").click()
    expect(page.get_by_text("Diverges at generated token")).to_be_visible()
    assert both_sides(page).nth(0).inner_text() == lm.generate("The first month of the year is", max_new_tokens=6)[0]


def test_run_and_compare_runs_again_on_its_own_screen_and_is_the_same_run(opened):
    page = opened(f"#/intervene?{HERE}&edits=L3M5:set:61@all")
    runs = page.get_by_role("region", name="Runs").get_by_role("listitem").filter(has_text="L3M5 set 61")
    expect(runs).to_have_count(1)
    with page.expect_request("**/api/v1/compare"):
        page.get_by_role("button", name="Run and compare").click()
    expect(page.get_by_text("Diverges at generated token")).to_be_visible()
    page.get_by_role("navigation", name="Screens").get_by_role("link", name="Search").click()
    with page.expect_request("**/api/v1/compare"):
        page.get_by_role("button", name="Run and compare").click()
    expect(page.get_by_text("Diverges at generated token")).to_be_visible()
    page.wait_for_load_state("networkidle")
    expect(runs).to_have_count(1)


def test_a_link_to_edits_runs_on_arrival_and_one_without_edits_waits(opened):
    page = opened(f"#/intervene?{HERE}&edits=L3M5:set:60@all")
    expect(page.get_by_text("Diverges at generated token")).to_be_visible()
    other = opened(f"#/intervene?{HERE}")
    expect(other.get_by_text("Memories that move")).to_be_visible()
    expect(both_sides(other).nth(0)).to_have_text("")


def test_both_continuations_are_at_the_top_next_to_the_edits(opened):
    page = opened(f"#/intervene?{HERE}&edits=L3M5:set:60@all")
    expect(page.get_by_text("Diverges at generated token")).to_be_visible()
    texts, edits = (
        page.get_by_role("region", name=name, exact=True)
        .filter(has=page.get_by_role("heading", name=name))
        .bounding_box()
        for name in ("Continuations", "Edits")
    )
    assert texts["y"] == edits["y"] and texts["x"] + texts["width"] <= edits["x"]
    for side in both_sides(page).all():
        expect(side).to_be_in_viewport(ratio=1)


def test_a_cancelled_measurement_shows_that_it_was_cancelled(opened):
    page = opened("#/labs/toxicity?edits=L3M5:set:20@all")
    page.route("**/api/v1/labs/suppress", lambda route: None)  # never answered
    page.get_by_role("button", name="Sample and score").click()
    page.get_by_role("contentinfo").get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled: nothing was measured.")).to_be_visible()
    expect(page.get_by_role("button", name="Sample and score")).to_be_enabled()


def test_what_was_sampled_before_a_cancel_stays(opened):
    page = opened("#/labs/toxicity?edits=L3M5:set:20@all")
    page.get_by_role("textbox", name="Prompts, one a line").fill("\n".join(f"The {n} man" for n in range(8)))
    page.get_by_role("spinbutton", name="Samples").fill("16")
    page.get_by_role("button", name="Sample and score").click()
    expect(page.get_by_role("table", name=re.compile("^Toxicity by"))).to_be_visible()
    page.get_by_role("contentinfo").get_by_role("button", name="Cancel").click()
    expect(page.get_by_text(re.compile("^Cancelled: . prompts? sampled, perplexity not measured"))).to_be_visible()
    expect(page.get_by_role("table", name=re.compile("^Toxicity by"))).to_contain_text("–")


def test_an_extreme_coefficient_is_explained(opened, firing):
    layer, index = firing
    page = opened(f"#/intervene?edits=L{layer}M{index}:set:10000@all")
    expect(page.get_by_text(re.compile("times the largest coefficient of the layer on the corpus"))).to_be_visible()
    page.get_by_role("spinbutton", name="Value").fill("1")
    page.get_by_role("spinbutton", name="Value").press("Enter")
    expect(page.get_by_text(re.compile("times the largest coefficient of the layer"))).to_be_hidden()


def test_the_common_beginning_is_dimmed_on_both_sides(opened):
    page = opened("#/intervene?prompt=Once+upon+a+time&edits=L5M132:set:60@7,8,9,10,11&new_tokens=12")
    expect(page.get_by_text(re.compile("Diverges at|are the same"))).to_be_visible()
    sides = [page.locator(".pair .text").nth(n).locator("span:not(.given)") for n in (0, 1)]
    texts = [side.all_inner_texts() for side in sides]
    classes = [side.evaluate_all("all => all.map(one => one.className)") for side in sides]
    same = next(n for n, (a, b) in enumerate(zip(*texts, strict=False)) if a != b)
    assert same > 1
    for found in classes:
        assert found[:same] == ["common"] * same
        assert "common" not in found[same:] and found[same] == "diverges"


def test_a_value_beyond_the_limit_is_refused_in_words(opened):
    page = opened("#/intervene?prompt=one+two&edits=L3M5:set:99999999@all")
    region = page.get_by_role("region", name="Continuations")
    expect(region.get_by_text("it is larger than 1,000,000")).to_be_visible()
    for raw in ("Input should", "body."):
        expect(page.get_by_text(raw)).to_have_count(0)
    expect(page.get_by_role("contentinfo").locator(".bad")).to_have_count(0)
    value = page.get_by_role("spinbutton", name="Value")
    value.fill("2000000")
    value.press("Enter")
    expect(page.locator("#live")).to_have_text("A number from −1,000,000 to 1,000,000")
    opened.complaints[:] = [c for c in opened.complaints if "422" not in c]


def test_an_edit_beyond_the_prompt_is_noted_on_every_screen(opened):
    edit = "edits=L3M5:set:2@6,7,8"  # the prompt has the positions 0 to 6
    for screen in ("trace", "layer", "heads", "memory", "intervene"):
        page = opened(f"#/{screen}?memory=L3M5&{HERE}&{edit}")
        note = page.get_by_text("Beyond the prompt’s 7 tokens an edit acts in the continuation only: L3M5 at 6, 7, 8.")
        expect(note).to_be_visible()
        expect(page.locator("#main .warn").filter(visible=True)).to_have_count(0)
    page.get_by_role("textbox", name="Prompt").fill("The first month of the year is January")
    page.get_by_role("textbox", name="Prompt").press("Enter")
    expect(page.get_by_text("Beyond the prompt’s 8 tokens")).to_be_visible()


def test_no_violation_with_as_many_runs_as_are_listed(opened):
    for value in range(62, 74):
        page = opened(f"#/intervene?{HERE}&edits=L3M5:set:{value}@0,1,2;L2H3:scale:0@all")
        expect(page.get_by_text(re.compile("Diverges at generated|The same text")).first).to_be_visible()
    expect(page.get_by_role("region", name="Runs").get_by_role("listitem")).to_have_count(12)
    assert_no_violation(page)


def test_strengths_are_in_multiples_of_the_memorys_usual_size(opened, firing, index):
    layer, number = firing
    page = opened(f"#/intervene?{HERE}&edits=L{layer}M{number}:set:1@all")
    size = index.usual_size(layer, number)
    page.get_by_role("button", name=re.compile("^2 × usual")).click()
    value = page.get_by_role("spinbutton", name="Value")
    expect(value).not_to_have_value("1")
    assert float(value.input_value()) == pytest.approx(2 * size, rel=1e-3)


def test_the_change_at_every_position_is_beside_the_text(opened, lm):
    page = opened(f"#/intervene?{HERE}&edits=L5M286:set:20@2,3")
    region = page.get_by_role("region", name="Next token")
    expect(region.get_by_role("heading", name="By position")).to_be_visible()
    prompt = "The first month of the year is"
    edits = [unembed.set_coefficient(5, 286, 20.0, positions=[2, 3])]
    rows = list(change_by_position(lm, prompt, edits).rows())
    words = region.get_by_role("button", name=re.compile("^·|^The$"))
    expect(words).to_have_count(len(rows))
    shaded = [n for n, one in enumerate(words.all()) if re.search(r"w\d", one.get_attribute("class") or "")]
    assert shaded == [n for n, row in enumerate(rows) if row["divergence"] >= 0.001] and min(shaded) == 2
    words.nth(3).click()
    expect(region.get_by_role("status").last).to_contain_text(f"{100 * rows[3]['edited']:.1f} %")


def test_samples_show_the_share_with_a_word_and_its_interval_on_both_sides(opened, lm):
    page = opened(f"#/intervene?{HERE}&edits=L3M5:set:60@all")
    card = page.get_by_role("region", name="Samples")
    best = lm.token_strings(lm.trace("The first month of the year is").prediction[-1:])[0].strip()
    word = card.get_by_role("textbox", name="Word to count")
    expect(word).to_have_value(best)
    card.get_by_role("spinbutton", name="Samples").fill("6")
    card.get_by_role("spinbutton", name="Tokens of each sample").fill("5")
    card.get_by_role("button", name="Sample", exact=True).click()
    edits = [unembed.set_coefficient(3, 5, 60.0)]
    prompt = "The first month of the year is"
    texts = [
        [text[len(prompt) :] for text in lm.generate([prompt] * 6, some, max_new_tokens=5, seed=0)]
        for some in ((), edits)
    ]
    wanted = re.findall(r"[A-Za-z]{2,}", texts[1][0])[0]
    word.fill(wanted)  # counted again, without new samples
    for name, side in (("baseline", texts[0]), ("with the edits", texts[1])):
        hits = sum(re.search(rf"(?<!\w){wanted}(?!\w)", text, re.IGNORECASE) is not None for text in side)
        bounds = binomtest(hits, 6).proportion_ci(0.95, method="exact")
        row = card.get_by_role("row").filter(has_text=name)
        expect(row).to_contain_text(re.compile(rf"{100 * bounds.low:.1f}\s%\sto\s{100 * bounds.high:.1f}\s%"))
    assert_no_violation(page)
    page.goto(page.url.replace("L3M5:set:60", "L3M5:set:61"))
    expect(card.get_by_role("row")).to_have_count(0)
