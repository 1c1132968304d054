"""The inspector beside the grid: the sub-updates of one layer, with their signs."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.test_journeys import the_sum
from tests.browser.test_memory_heads_labs import number
from tests.browser.test_ranges_links_tour import inspector

AT = "#/trace?prompt=The+war+lasted+from+1861"


def test_effects_are_bars_to_both_sides_of_one_zero(opened):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    inspector(page).get_by_role("button", name="Wider").click()  # a narrow inspector has no room for bars
    rows = inspector(page).locator("tr.sub-update").filter(visible=True)
    expect(rows).to_have_count(5)
    effects, bars, zeros = [], [], set()
    for row in rows.all():
        meter, bar = row.locator(".meter").bounding_box(), row.locator(".meter .bar").bounding_box()
        middle = meter["x"] + meter["width"] / 2
        effects.append(number(row.locator(".effect").inner_text()))
        bars.append(bar["width"] * (1 if bar["x"] + bar["width"] / 2 > middle else -1))
        zeros.add(round(middle))
    assert len(zeros) == 1
    assert [x > 0 for x in effects] == [x > 0 for x in bars] and {x > 0 for x in effects} == {True, False}
    most = max(map(abs, effects))
    widest = max(map(abs, bars))
    assert bars == pytest.approx([widest * x / most for x in effects], abs=1.5)


def test_names_and_effects_are_never_truncated(opened):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    cut = (
        inspector(page)
        .locator("td:is(.writer, .effect)")
        .evaluate_all("cells => cells.filter((c) => c.scrollWidth > c.clientWidth).map((c) => c.textContent)")
    )
    assert cut == []
