"""Every screen in both themes, wide and narrow, under axe, WCAG 2.2 A and AA."""

from __future__ import annotations

import pytest

from tests.browser.axe_rules import assert_no_violation
from tests.browser.test_flow import HERE as FLOW

SCREENS = {
    "trace": ("#/trace", "Sum "),
    "alone": ("#/trace?prompt=one+two+three&alone=1&layer=5", "Layer 5, FFN"),
    "tour": ("#/trace?tour=3", "Sum "),
    "together": ("#/trace?prompt=one+two+three&layers=2-4&layer=4", "their attention adds"),
    "followed": ("#/trace?prompt=one+two+three&metric=pinned&pins=5&scale=p&flip=1", "Sum "),
    "reached": ("#/trace?prompt=one+two+three&edits=L2M5:set:60@1&diff=1", "Sum "),
    "layer": ("#/layer?layer=3", "Sum "),
    "writers": ("#/layer?layer=3&part=both&sort=effect", "Sum "),
    "memory": ("#/memory?memory=L3M5", "blue positive"),
    "intervene": ("#/intervene?edits=L3M5:set:20@all", "baseline"),
    "heads": ("#/heads?head=L2H3", "OV: output when attending to"),
    "beside": ("#/memory?memory=L3M5&compared=L2M9", "Both promote"),
    "atlas": ("#/atlas?memory=L3M5", "Nearest on the map"),
    "atlas searched": ("#/atlas?query=year&colour=layer", "Shared tokens"),
    "search": ("#/search?query=year", "memories"),
    "concept": ("#/search/concept/places", "Tokens that members share"),
    "label": ("#/label", "Annotator name"),
    "labs": ("#/labs", "Values found"),
    "toxicity": ("#/labs/toxicity?edits=L3M5:set:20@all", "Sample and score"),
    "early exit": ("#/labs/early-exit", "Saved"),
    "flow": (FLOW, "Test "),
    "compare": ("#/compare", "As a table"),
}


UNSEEN = """() => [...document.querySelectorAll('#main textarea')]
    .filter((el) => !el.checkVisibility() && !el.closest('[hidden], details:not([open])')).map((el) => el.outerHTML)"""
"""Text boxes that a screen has but does not show: a style for empty elements once hid the prompt's."""


@pytest.mark.parametrize("screen", list(SCREENS))
def test_no_violation_in_both_themes_wide_and_narrow(opened, served, screen):
    if screen == "concept":
        served.session.index.add_label(4, 21, "places", author="emil")
    where, ready = SCREENS[screen]
    page = opened(where)
    page.locator("#main").get_by_text(ready).filter(visible=True).first.wait_for()
    page.wait_for_function(
        "!document.querySelector('#main .waiting') || !document.querySelector('#main').matches('.waiting')"
    )
    if screen in ("flow", "intervene", "compare", "toxicity"):
        assert page.evaluate(UNSEEN) == []
    assert_no_violation(page)
    page.set_viewport_size({"width": 390, "height": 900})
    assert_no_violation(page)
