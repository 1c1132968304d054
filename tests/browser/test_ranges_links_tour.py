"""Layers chosen together, links too long to be one, the tour, names beside memories, where the page is."""

from __future__ import annotations

import json
import math
import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import address
from tests.browser.test_journeys import AT, PROMPT, grid, the_sum
from unembed import __version__


def inspector(page):
    return page.get_by_role("complementary", name="Selected cell")


def label_of(page, layer):
    return grid(page).get_by_role("rowheader", name=f"Layer {layer}", exact=True)


def drag(page, start, end):
    grid(page).evaluate("(el) => el.scrollIntoView({ block: 'center' })")
    a, b = (label_of(page, n).bounding_box() for n in (start, end))
    page.mouse.move(a["x"] + 20, a["y"] + 10)
    page.mouse.down()
    page.mouse.move(b["x"] + 20, (a["y"] + b["y"]) / 2 + 10)
    page.mouse.move(b["x"] + 20, b["y"] + 10)
    page.mouse.up()


def test_dragging_over_layers_shows_what_they_do_together(opened, lm):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    requests = []
    page.on("request", lambda r: requests.append(r.url) if "/api/" in r.url and "spread" not in r.url else None)
    drag(page, 2, 4)
    expect(inspector(page).get_by_role("heading", name="Layers 2 to 4, together")).to_be_visible()
    assert "layers=2-4" in address(page) and requests == []
    trace = lm.trace(PROMPT)
    question = trace.question()
    rows = [
        r
        for r in trace.attribution(question.token, against=question.against).rows
        if r.layer is not None and 2 <= r.layer <= 4
    ]
    line = inspector(page).get_by_text("their attention adds").inner_text().replace("−", "-")
    shown = [float(x) for x in re.findall(r"(?:adds|FFNs) ([+-]\d+(?:\.\d+)?)", line)]
    for number, ffn in zip(shown, (False, True), strict=True):
        assert math.isclose(number, sum(r.contribution for r in rows if r.label.startswith("ffn") is ffn), abs_tol=6e-3)
    before = trace.readings("resid_pre").tokens[2][-1][0].replace(" ", "·")
    expect(inspector(page).get_by_role("listitem").first).to_contain_text(before)
    inspector(page).get_by_role("checkbox", name="Only these layers").check()
    expect(grid(page)).to_have_attribute("aria-rowcount", "4")
    other = opened("#" + address(page).split("#")[1])
    expect(grid(other)).to_have_attribute("aria-rowcount", "4")
    label_of(page, 3).click()
    expect(inspector(page).get_by_role("heading", name="Layer 3, FFN")).to_be_visible()
    expect(grid(page)).to_have_attribute("aria-rowcount", str(lm.n_layers + 2))


def test_shift_and_arrows_choose_layers_and_escape_lets_go(opened, lm):
    last = lm.n_layers - 1
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    grid(page).focus()
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Shift+ArrowDown")
    expect(inspector(page).get_by_role("heading", name=f"Layers {last - 2} to {last}, together")).to_be_visible()
    page.keyboard.press("Shift+ArrowUp")
    expect(inspector(page).get_by_role("heading", name=f"Layers {last - 1} to {last}, together")).to_be_visible()
    expect(page.locator(".grid-row.ranged")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(inspector(page).get_by_role("heading", name=f"Layer {last - 1}, FFN")).to_be_visible()
    expect(page.locator(".grid-row.ranged")).to_have_count(0)


@pytest.fixture
def clipboard(opened):
    """Open a page that may use the clipboard."""
    return lambda where: opened(where, permissions=["clipboard-read", "clipboard-write"])


def test_a_long_link_names_a_session_that_restores_everything(opened, clipboard, served):
    many = ";".join(f"L{n % 6}M{n}:set:{n}.5@all" for n in range(50))
    page = clipboard(
        f"{AT}&layer=2&edits={many}&disabled={','.join(map(str, range(50)))}&pins={'+'.join(map(str, range(300)))}"
    )
    expect(the_sum(page)).to_be_visible()
    page.get_by_role("button", name="Copy or export").click()
    page.get_by_role("menuitem", name="Copy link").click()
    expect(page.get_by_text("download the session to keep it")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert len(link) < 100 and "?session=" in link
    other = opened(link.removeprefix(served.address))
    expect(other.get_by_role("heading", name="50 edits")).to_be_visible()
    expect(other.get_by_role("heading", name="Layer 2, FFN")).to_be_visible()
    page.get_by_role("button", name="Copy or export").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Download session").click()
    downloaded = json.loads(download.value.path().read_text())
    assert downloaded["schema"] == "unembed.session/1" and downloaded["address"].startswith("#/trace?prompt=")
    third = opened()
    expect(grid(third)).to_be_visible()
    third.get_by_role("button", name="Copy or export").click()
    with third.expect_file_chooser() as chooser:
        third.get_by_role("menuitem", name="Open a session").click()
    chooser.value.set_files(download.value.path())
    expect(third.get_by_role("heading", name="50 edits")).to_be_visible()
    third.go_back()
    expect(third.get_by_role("heading", name="50 edits")).to_be_hidden()


def test_a_short_link_holds_everything_itself(clipboard):
    page = clipboard(AT)
    expect(the_sum(page)).to_be_visible()
    page.get_by_role("heading", name="Logit lens").click()
    page.keyboard.press("c")
    expect(page.get_by_text("Link copied")).to_be_visible()
    assert "prompt=The+first+month" in page.evaluate("navigator.clipboard.readText()")


def test_an_unknown_session_is_reported(opened):
    page = opened(f"#/trace?session={'0' * 18}")
    expect(
        page.get_by_role("contentinfo").get_by_text("no session with this name is stored on this server")
    ).to_be_visible()
    expect(grid(page)).to_be_visible()
    opened.allowed.append("422")


def test_the_tour_has_six_steps_and_ends(opened):
    page = opened()
    page.get_by_role("button", name="Take the six-step tour").click()
    tour = page.locator("#tour")
    seen = []
    for n in range(1, 7):
        expect(tour.get_by_text(f"{n} of 6")).to_be_visible()
        expect(page.locator(".toured")).to_have_count(1)
        assert f"tour={n}" in address(page)
        seen.append(tour.get_by_role("heading").inner_text())
        tour.get_by_role("button", name="Next" if n < 6 else "Done").click()
    assert len(set(seen)) == 6
    expect(tour).to_be_hidden()
    expect(page.locator(".toured")).to_have_count(0)
    assert "tour" not in address(page)


def test_a_link_begins_the_tour_anywhere_and_escape_ends_it(opened):
    page = opened("#/trace?tour=4")
    expect(page.locator("#tour").get_by_text("4 of 6")).to_be_visible()
    expect(page.locator(".ranks.toured")).to_have_count(1)
    page.locator("#tour").get_by_role("button", name="Back").click()
    expect(page.locator("#tour").get_by_text("3 of 6")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#tour")).to_be_hidden()


def test_names_are_shown_next_to_memories_everywhere(opened, served, lm):
    last = lm.n_layers - 1
    first = lm.trace(PROMPT).memory_effects(layers=[last], top=1, index=served.session.index).rows[0].index
    served.session.index.add_label(last, first, "the calendar", author="gil")
    page = opened(AT)
    expect(inspector(page).get_by_text("the calendar")).to_be_visible()
    page = opened(f"#/layer?layer={last}&prompt={PROMPT.replace(' ', '%20')}")
    page.get_by_role("combobox", name="Show").select_option("named")
    expect(page.locator(".sub-update")).to_have_count(1)
    expect(page.locator(".sub-update").get_by_text("the calendar")).to_be_visible()


def test_crumbs_lead_up(opened):
    page = opened(f"#/layer?layer=3&position=2&prompt={PROMPT.replace(' ', '%20')}")
    crumbs = page.get_by_role("navigation", name="Where you are")
    expect(crumbs.get_by_role("listitem")).to_have_count(3)
    expect(crumbs.get_by_role("button", name="position 2")).to_contain_text("·month")
    crumbs.get_by_role("button", name="position 2").click()
    expect(inspector(page).get_by_text("position 2")).to_be_visible()
    expect(crumbs.get_by_role("listitem")).to_have_count(2)


def test_the_baseline_is_seen_while_its_key_is_held(opened, lm):
    edited = opened(AT + "&edits=L5M3:set:90@all;L4M7:set:90@all")
    expect(the_sum(edited)).to_be_visible()
    texts = lambda: edited.locator(".cell").all_inner_texts()  # noqa: E731
    with_edits = texts()
    edited.keyboard.down("b")
    plain = opened(AT)
    expect(the_sum(plain)).to_be_visible()
    assert texts() == plain.locator(".cell").all_inner_texts() != with_edits
    edited.keyboard.up("b")
    assert texts() == with_edits


def test_tokens_are_copied_as_they_are(clipboard):
    page = clipboard(AT)
    expect(the_sum(page)).to_be_visible()
    page.evaluate("getSelection().selectAllChildren(document.querySelectorAll('.grid-token .tok')[1])")
    page.keyboard.press("Control+c")
    assert page.evaluate("navigator.clipboard.readText()") == " first"


def test_a_prompt_that_is_too_long_offers_its_last_tokens(opened, lm):
    page = opened("#/trace?prompt=" + "+".join(["word"] * (lm.n_ctx + 20)))
    expect(page.get_by_role("button", name=re.compile(f"^Keep the first {lm.n_ctx} of "))).to_be_visible()
    page.get_by_role("button", name=re.compile(f"^Keep the last {lm.n_ctx} of ")).click()
    expect(grid(page)).to_have_attribute("aria-colcount", str(lm.n_ctx + 1))
    opened.allowed.append("422")


def test_a_sub_update_opens_in_place(opened, index):
    page = opened(f"#/layer?layer=3&prompt={PROMPT.replace(' ', '%20')}")
    row = page.locator(".sub-update").first
    layer, number = map(int, re.findall(r"\d+", row.get_by_role("link").inner_text()))
    row.get_by_role("button", name=re.compile("^Tokens and triggers of ")).click()
    row = page.locator(".updates tr.more")
    expect(row.get_by_text("suppresses")).to_be_visible()
    marks = [r["token"].strip() for r in index.triggers(layer, number, 2, context=16).to_dict()["rows"]]
    expect(row.locator("mark")).to_have_count(len(marks))
    assert [m.strip() for m in row.locator("mark").all_inner_texts()] == marks


def test_the_view_is_copied_as_a_citation(clipboard):
    page = clipboard(AT + "&position=3&edits=L3M5:set:9@all")
    expect(the_sum(page)).to_be_visible()
    page.get_by_role("button", name="Copy or export").click()
    page.get_by_role("menuitem", name="Copy as a citation").click()
    expect(page.get_by_text("Citation copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert (
        copied.startswith(f"unembed {__version__}: wren") and "position 3; edits set_coefficient(3, 5, 9.0)" in copied
    )
