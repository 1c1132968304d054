"""What a person does, by role and name."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Served, address

PROMPT = "The first month of the year is"
AT = f"#/trace?prompt={PROMPT.replace(' ', '%20')}"


def grid(page):
    return page.get_by_role("grid", name="Most likely next token")


def the_sum(page):
    """What stands under an attribution: all of the position's panes are there."""
    return page.get_by_text(re.compile(r"^Sum [−\d]"))


def test_a_trace_shows_the_librarys_numbers(opened, lm):
    page = opened(AT)
    cells = grid(page).get_by_role("gridcell")
    expect(cells).to_have_count((lm.n_layers + 1) * 7)
    trace = lm.trace(PROMPT)
    reading, entering = trace.readings(), trace.readings("resid_pre")
    names = {cells.nth(i).get_attribute("aria-label") for i in range(cells.count())}
    for n in range(lm.n_layers):
        for p in range(len(trace)):
            rank = int(trace.prediction_ranks()[n, p])
            start = f"Layer {n} after FFN, position {p} "
            name = next(name for name in names if name.startswith(start))
            shown = reading.tokens[n][p][0].replace(" ", "·")
            assert f"first {shown} " in name and f"rank of the final prediction {rank:,}" in name
    for p in range(len(trace)):
        rank = int(trace.prediction_ranks("resid_pre")[0, p])
        name = next(name for name in names if name.startswith(f"Embedding, position {p} "))
        shown = entering.tokens[0][p][0].replace(" ", "·")
        assert f"first {shown} " in name and f"rank of the final prediction {rank:,}" in name
    expect(page.get_by_role("heading", name=f"Layer {lm.n_layers - 1}, FFN")).to_be_visible()


def test_another_metric_sends_no_request(opened):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    requests = []
    page.on("request", lambda r: requests.append(r.url) if "/api/" in r.url else None)
    page.get_by_role("radiogroup", name="Shade by").get_by_role("radio", name="Rank").click()
    expect(page.get_by_text("logarithmic")).to_be_visible()
    assert requests == []


def test_the_keyboard_alone_finds_the_saturation_layer(opened, lm):
    page = opened(AT)
    expect(grid(page)).to_be_visible()
    for _ in range(80):
        if page.evaluate("document.activeElement.getAttribute('role')") == "grid":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Control+End")
    saturated = next(e.layer for e in lm.trace(PROMPT).events(-1) if e.kind == "saturation")
    for _ in range(lm.n_layers):
        active = page.evaluate(
            "document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).getAttribute('aria-label')"
        )
        if "saturation here" in active:
            break
        page.keyboard.press("ArrowUp")
    assert active.startswith(f"Layer {saturated} ")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"Layer {saturated}", exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    expect(grid(page)).to_be_visible()


def test_typing_a_prompt_and_tracing_it(opened):
    page = opened()
    box = page.get_by_role("textbox", name="Prompt")
    expect(grid(page)).to_be_visible()
    box.fill("She put the book")
    expect(page.get_by_text("4 tokens")).to_be_visible()
    box.press("Enter")
    expect(grid(page).get_by_role("columnheader")).to_have_count(5)
    assert "prompt=She+put+the+book" in address(page)


def test_a_link_restores_what_was_seen(opened, served):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    grid(page).get_by_role("gridcell", name=re.compile("^Layer 2 after FFN, position 3 ")).click()
    page.get_by_role("radiogroup", name="Shade by").get_by_role("radio", name="Rank").click()
    expect(page.get_by_role("heading", name="Layer 2, FFN")).to_be_visible()
    other = opened(address(page).removeprefix(served.address))
    expect(other.get_by_role("heading", name="Layer 2, FFN")).to_be_visible()
    expect(other.get_by_role("radiogroup", name="Shade by").get_by_role("radio", name="Rank")).to_have_attribute(
        "aria-checked", "true"
    )
    assert "position 3" in other.get_by_role("complementary").inner_text()


def test_from_a_cell_to_its_layer_to_a_memory(opened, lm):
    last = lm.n_layers - 1
    page = opened(AT)
    page.get_by_role("button", name="Open this layer").click()
    expect(page.get_by_role("heading", name=f"Layer {last}", exact=True)).to_be_visible()
    page.get_by_role("link", name=re.compile(f"^L{last}M")).first.click()
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text(re.compile(rf"^L{last}M\d+$"))
    index = int(heading.inner_text().split("M")[1])
    first = lm.values.top_tokens(last, index, 1)[0].replace(" ", "·")
    expect(
        page.get_by_role("region", name="Effect of the value on the vocabulary").get_by_role("listitem").first
    ).to_contain_text(first)


def test_triggers_mark_the_token_that_fires(opened, index):
    page = opened("#/memory?memory=L3M5")
    rows = index.triggers(3, 5, 10, context=28).to_dict()["rows"]
    marks = page.locator(".trigger mark")
    expect(marks).to_have_count(len(rows))
    assert marks.all_inner_texts() == [row["token"] for row in rows] or [
        m.strip() for m in marks.all_inner_texts()
    ] == [row["token"].strip() for row in rows]


def test_an_edit_changes_the_continuation_and_bypass_brings_it_back(opened, lm):
    page = opened(f"#/intervene?prompt={PROMPT.replace(' ', '%20')}&edits=L3M5:set:60@all;L4M7:set:60@all&new_tokens=8")
    page.get_by_role("button", name="Run both").click()
    expect(page.get_by_text("Diverges at generated token")).to_be_visible()
    base = lm.generate(PROMPT, max_new_tokens=8)[0]
    panes = page.locator(".pair .text")
    assert panes.nth(0).inner_text() == base and panes.nth(1).inner_text() != base
    page.get_by_role("button", name="Bypass all").click()
    page.get_by_role("button", name="Run both").click()
    expect(page.get_by_text("No edit is on")).to_be_visible()
    page.get_by_role("button", name=re.compile("^1")).first.click()
    expect(panes.nth(1)).not_to_have_text("")


def test_search_jumps_to_a_memory(opened):
    page = opened()
    page.keyboard.press("/")
    page.keyboard.type("year")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table")).to_be_visible()
    page.get_by_role("searchbox", name="Search memories").first.fill("L2M9")
    page.get_by_role("searchbox", name="Search memories").first.press("Enter")
    expect(page.get_by_role("heading", name="L2M9")).to_be_visible()
    page.get_by_role("link", name="Search", exact=True).click()
    page.locator("#main").get_by_role("searchbox").fill("L2H3")
    page.locator("#main").get_by_role("searchbox").press("Enter")
    expect(page.get_by_role("heading", name="L2H3")).to_be_visible()


def test_heads_and_their_pattern(opened, lm):
    page = opened("#/heads?head=L2H3")
    expect(page.get_by_role("gridcell")).to_have_count(lm.n_layers * lm.n_heads)
    expect(page.get_by_role("heading", name="L2H3")).to_be_visible()
    expect(page.get_by_text("The first column is hidden")).to_be_visible()


def test_labels_survive_a_restart(opened, lm, index):
    page = opened("#/memory?memory=L1M7")
    region = page.get_by_role("region", name="Labels")
    region.get_by_role("textbox", name="Name", exact=True).fill("<i>kinds</i> of months")
    region.get_by_role("textbox", name="Annotator name").fill("ann")
    region.get_by_role("button", name="Save", exact=True).click()
    expect(region.get_by_text("<i>kinds</i> of months")).to_be_visible()
    again = Served(lm, index)
    other = opened("#/memory?memory=L1M7", at=again.address)
    expect(other.get_by_role("region", name="Labels").get_by_text("<i>kinds</i> of months")).to_be_visible()
    other.close()
    again.stop()


def test_an_annotator_finds_a_pattern(opened, lm, index):
    page = opened("#/label")
    page.get_by_role("textbox", name="Annotator name").fill("cleo")
    page.get_by_role("textbox", name="Annotator name").press("Enter")
    page.get_by_role("textbox", name="Annotator name").blur()
    expect(page.get_by_role("heading", name="Item 1")).to_be_visible()
    for i in range(1, 5):
        page.get_by_role("checkbox", name=str(i), exact=True).check()
    page.get_by_role("textbox", name="Describe the pattern").fill("endings")
    page.get_by_role("button", name="Add pattern").click()
    page.get_by_role("button", name="Save and next").click()
    expect(page.get_by_text(f"1 of {15 * lm.n_layers} values done by cleo")).to_be_visible()
    rows = [row for row in index.labels().rows() if row["author"] == "cleo"]
    assert [(r["label"], r["notes"]["members"]) for r in rows] == [("endings", [0, 1, 2, 3])]


@pytest.mark.parametrize(
    "text",
    ["</script><img src=x onerror=alert(1)>", "\u202eevil \u200b\ufeff\u05e9\u05dc\u05d5\u05dd", "𝕏 é\u0301 🙂\n\ttab"],
)
def test_hostile_text_is_only_text(opened, text):
    page = opened()
    box = page.get_by_role("textbox", name="Prompt")
    box.fill(text)
    page.get_by_role("button", name="Trace", exact=True).click()
    expect(grid(page)).to_be_visible()
    expect(the_sum(page)).to_be_visible()
    assert page.locator("#main img").count() == 0
    shown = "".join(page.locator(".grid-token .tok").all_inner_texts())
    assert "\u202e" not in shown and "\u200b" not in shown


def test_a_long_prompt_scrolls_inside_its_box(opened, lm):
    text = " ".join(["word"] * 128)
    n = lm.encode(text).shape[1]
    page = opened("#/trace?prompt=" + text.replace(" ", "%20"), width=390)
    expect(grid(page)).to_have_attribute("aria-colcount", str(n + 1))
    expect(the_sum(page)).to_be_visible()  # all layers are there
    assert grid(page).get_by_role("gridcell").count() < 0.75 * n * (lm.n_layers + 1), "cells out of view are not drawn"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    grid(page).focus()
    page.keyboard.press("Control+Home")
    page.keyboard.press("End")
    active = page.evaluate("document.activeElement.getAttribute('aria-activedescendant')")
    assert active.endswith(f"-0-{n - 1}")


def test_a_server_that_dies_is_reported(opened, lm):
    once = Served(lm)
    page = opened("#/intervene?new_tokens=200", at=once.address)
    page.get_by_role("button", name="Run both").click()
    expect(page.locator(".pair .text span:not(.given)").first).to_be_visible()
    once.stop()
    opened.allowed.append("Failed to load")
    continuations = page.get_by_role("region", name="Continuations")
    expect(continuations.get_by_text("the server stopped in the middle")).to_be_visible()
    continuations.get_by_role("button", name="Try again").click()
    expect(continuations.get_by_text("the server does not answer")).to_be_visible()


@pytest.mark.parametrize("width", [390, 768, 2560])
@pytest.mark.parametrize(
    "where",
    [
        "trace",
        "layer",
        "memory?memory=L2M5",
        "intervene",
        "compare",
        "heads",
        "atlas",
        "search?query=year",
        "label",
        "labs",
    ],
)
def test_nothing_overflows_the_page(opened, width, where):
    page = opened(f"#/{where}", width=width)
    page.wait_for_selector("#main *")
    page.wait_for_timeout(600)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")
