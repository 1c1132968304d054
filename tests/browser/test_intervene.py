"""The intervene screen: both continuations, and the button that runs them."""

from __future__ import annotations

from playwright.sync_api import expect

HERE = "prompt=The%20first%20month%20of%20the%20year%20is&new_tokens=6"


def both_sides(page):
    """The texts of the baseline and of the edited side."""
    return page.get_by_role("region", name="Continuations").locator(".pair .text")


def test_run_and_compare_runs_at_the_first_press(opened, lm):
    page = opened(f"#/memory?memory=L3M5&{HERE}&edits=L3M5:set:60@all")
    page.get_by_role("button", name="Run and compare").click()
    expect(page.get_by_text("Diverges at generated token")).to_be_visible()
    assert both_sides(page).nth(0).inner_text() == lm.generate("The first month of the year is", max_new_tokens=6)[0]


def test_run_and_compare_runs_again_on_its_own_screen(opened):
    page = opened(f"#/intervene?{HERE}&edits=L3M5:set:60@all")
    runs = page.get_by_role("region", name="Runs").get_by_role("listitem")
    expect(page.get_by_text("Diverges at generated token")).to_be_visible()
    page.wait_for_timeout(200)
    before = runs.count()
    page.get_by_role("button", name="Run and compare").click()
    expect(runs).to_have_count(before + 1)


def test_a_link_to_edits_runs_on_arrival_and_one_without_edits_waits(opened):
    page = opened(f"#/intervene?{HERE}&edits=L3M5:set:60@all")
    expect(page.get_by_text("Diverges at generated token")).to_be_visible()
    other = opened(f"#/intervene?{HERE}")
    expect(other.get_by_text("Memories that move")).to_be_visible()
    expect(both_sides(other).nth(0)).to_have_text("")


def test_a_cancelled_measurement_says_so(opened):
    page = opened("#/labs/toxicity?edits=L3M5:set:20@all")
    page.route("**/api/v1/labs/suppress", lambda route: None)  # never answered
    page.get_by_role("button", name="Sample and score").click()
    page.get_by_role("contentinfo").get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled. Nothing was measured.")).to_be_visible()
    expect(page.get_by_role("button", name="Sample and score")).to_be_enabled()
