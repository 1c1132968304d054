"""The page on a model of a real one's shape: 30 layers, and a tokenizer with a chat template."""

from __future__ import annotations

import re

import pytest
import torch
from playwright.sync_api import Page, expect

from tests.browser.axe_rules import assert_no_violation
from tests.browser.conftest import address
from unembed.trace import TraceSettings, trace_view

TEXT = "the cat sat"
AT = f"#/trace?prompt={TEXT.replace(' ', '+')}"


@pytest.fixture
def page(opened, deep) -> Page:
    """The traced text."""
    found = opened(AT, at=deep.address)
    expect(found.get_by_role("region", name="Logit attribution").get_by_text("Sum ")).to_be_visible()
    return found


def rows(page: Page) -> list[str]:
    """The labels of the grid's rows."""
    return page.get_by_role("grid").get_by_role("rowheader").all_inner_texts()


def test_the_answer_is_within_one_screen_with_all_layers(page):
    diagram = page.get_by_role("group", name="Where in the model")
    expect(diagram.get_by_role("button")).to_have_count(60)
    assert diagram.evaluate("el => el.scrollWidth <= el.clientWidth")
    flow = page.get_by_role("region", name="Flow")
    expect(flow.get_by_role("button", name="Draw the flow")).to_be_visible()
    for part in (page.get_by_role("region", name="Prediction"), diagram, flow, page.get_by_role("grid")):
        box = part.bounding_box()
        assert box is not None and box["y"] + box["height"] < 870, part  # where the status line begins
    assert page.get_by_role("grid").evaluate("el => el.scrollHeight <= el.clientHeight")


def test_the_grid_is_fewer_than_30_tab_stops_away(page):
    page.evaluate("document.activeElement.blur()")
    for _ in range(29):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role')") == "grid":
            return
    pytest.fail("29 Tab stops do not reach the grid")


def test_arrow_keys_move_within_groups_that_share_a_tab_stop(page):
    diagram = page.get_by_role("group", name="Where in the model")
    diagram.get_by_role("button", name=re.compile("^Layer 29 FFN")).focus()
    page.keyboard.press("ArrowLeft")
    expect(diagram.get_by_role("button", name=re.compile("^Layer 28 FFN"))).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(diagram.get_by_role("button", name=re.compile("^Layer 28 Attention"))).to_be_focused()
    page.keyboard.press("Enter")
    chosen = diagram.get_by_role("button", name=re.compile("^Layer 28 Attention"))
    expect(chosen).to_have_attribute("aria-current", "true")
    expect(chosen).to_be_focused()
    page.keyboard.press("Home")
    expect(diagram.get_by_role("button").first).to_be_focused()


def test_quiet_layers_are_one_row_until_they_are_unfolded(page, deep):
    lm = deep.session.lm
    labels = rows(page)
    folded = [label for label in labels if label.startswith("Layers ")]
    assert folded
    shown: list[int] = []
    for label in labels[:-1]:
        ends = [int(n) for n in re.findall(r"\d+", label)]
        shown += range(ends[0], ends[-1] + 1)
    assert sorted(shown) == list(range(30))

    first, last = (int(n) for n in re.findall(r"\d+", folded[0]))
    p = lm.encode(TEXT).shape[1] - 1
    name = re.compile(f"^Layers {first} to {last}, quiet: layer {last} after FFN, position {p} ")
    cell = page.get_by_role("gridcell", name=name)
    reading = lm.trace(TEXT).readings("resid_post")
    token = reading.tokens[last][p][0].replace(" ", "·")
    expect(cell).to_have_attribute("aria-label", re.compile(f"first {re.escape(token)} "))

    cell.click()
    page.keyboard.press("Enter")
    expect(page.get_by_role("grid")).to_have_attribute("aria-rowcount", "32")
    assert "rows=all" in address(page)


def test_the_folded_layers_are_those_across_which_the_predictions_rank_moves_least(page, deep):
    trace = deep.session.lm.trace(TEXT)
    ranks, before = (trace.prediction_ranks(point, -1)[:, 0] for point in ("resid_post", "resid_pre"))
    ranks, before = ranks.clamp(max=1000).double(), before[:1].clamp(max=1000).double()
    moves = (ranks / torch.cat([before, ranks[:-1]])).log2().abs()
    labels = rows(page)
    alone = [int(label.split()[1]) for label in labels if label.startswith("Layer ")]
    hidden = [n for n in range(29) if n not in alone]
    most = max(float(moves[n]) for n in hidden)
    assert len(hidden) > 14 and len(labels) <= 10
    # a layer that moves less is shown only between two that move more
    quiet = [n for n in alone if n < 29 and float(moves[n]) <= most]
    assert all(n - 1 not in hidden and n + 1 not in hidden and n + 1 not in quiet for n in quiet)


def test_attributions_are_listed_by_size_and_the_others_folded(page, deep):
    card = page.get_by_role("region", name="Logit attribution")
    found = deep.session.lm.trace(TEXT).question()
    rows_ = deep.session.lm.trace(TEXT).attribution(found.token, -1, found.against).rows
    sizes = sorted((abs(row.contribution) for row in rows_), reverse=True)
    shown = [float(text.replace("−", "-")) for text in card.locator(".bar-number").all_inner_texts()[:10]]
    assert [abs(x) for x in shown] == pytest.approx(sizes[:10], abs=6e-3)
    card.get_by_text(f"All {len(rows_)}, in the order of the model").click()
    expect(card.get_by_text("Attention 0", exact=True)).to_be_visible()


def test_chat_gives_the_text_as_a_users_message(page, deep):
    lm = deep.session.lm
    prompt = page.get_by_role("region", name="Prompt")
    expect(prompt).to_contain_text("was trained on conversations; this is given as it is")
    prompt.get_by_role("checkbox", name="As a user's message").check()
    ids = lm.chat(TEXT)[0].tolist()
    grid = page.get_by_role("grid")
    expect(grid).to_have_attribute("aria-colcount", str(len(ids) + 1))
    # The whole trace has arrived: it draws the controls anew, which closes the menu.
    expect(page.locator(".legend")).to_contain_text("from the user's message")
    page.get_by_text("Layout", exact=True).click()
    page.get_by_role("checkbox", name="Fit the width").check()  # else only the columns in view have cells
    expect(prompt).not_to_contain_text("given as it is")
    expect(prompt.get_by_role("textbox", name="Prompt")).to_have_value(TEXT)
    expect(prompt.get_by_role("status")).to_have_text(f"{len(ids)} tokens of {lm.n_ctx:,}")

    roles = lm.vocabulary.roles(ids)
    assert roles is not None and {None, "user"} == set(roles)
    for p in (next(i for i, role in enumerate(roles) if role), len(ids) - 1):
        said = "user's message" if roles[p] else "chat template"
        name = re.compile(rf"^Layer 29 after FFN, position {p} .*\({said}\): first ")
        expect(grid.get_by_role("gridcell", name=name)).to_be_attached()
    predicted = lm.token_strings([int(lm.trace(lm.chat(TEXT)).prediction[-1])])[0].replace(" ", "·")
    expect(
        page.get_by_role("toolbar", name="Predictions of the next token").get_by_role("button").first
    ).to_contain_text(predicted)

    again = page.url if "chat=" in address(page) else ""
    page.goto(again)
    page.reload()
    expect(prompt.get_by_role("checkbox", name="As a user's message")).to_be_checked()
    prompt.get_by_role("checkbox", name="As a user's message").uncheck()
    expect(grid).to_have_attribute("aria-colcount", str(lm.encode(TEXT).shape[1] + 1))
    expect(prompt).to_contain_text("given as it is")


def test_the_page_counts_the_tokens_that_no_list_shows(page, deep):
    hidden = deep.session.lm.trace(TEXT).hidden
    n = 0 if hidden is None else int(hidden.sum())
    prediction = page.get_by_role("region", name="Prediction")
    if n:
        expect(prediction).to_contain_text(f"{n} token{'s' * (n > 1)} not listed")
    else:
        expect(prediction).not_to_contain_text("not listed")


@pytest.mark.parametrize("width", [390, 1280])
def test_no_share_of_a_layer_is_cut_and_no_card_is_wider_than_the_page(opened, deep, width):
    page = opened(f"#/layer?prompt={TEXT.replace(' ', '+')}&layer=29&part=both", at=deep.address, width=width)
    expect(page.locator(".sub-update").first).to_be_visible()
    cut = "cells => cells.filter((c) => c.offsetParent && c.scrollWidth > c.clientWidth).map((c) => c.textContent)"
    assert page.locator("td.n").evaluate_all(cut) == []
    page.goto(page.url.split("#")[0] + f"#/memory?memory=L29M39&prompt={TEXT.replace(' ', '+')}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("L29M39")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_laboratory_is_that_of_its_address_by_link_and_after_back(opened, deep):
    page = opened("#/labs/early-exit", at=deep.address)
    tabs = page.get_by_role("radiogroup", name="Laboratory")
    expect(tabs.get_by_role("radio", name="Early exit")).to_have_attribute("aria-checked", "true")
    tabs.get_by_role("radio").first.click()
    expect(tabs.get_by_role("radio").first).to_have_attribute("aria-checked", "true")
    page.go_back()
    expect(tabs.get_by_role("radio", name="Early exit")).to_have_attribute("aria-checked", "true")


def test_heads_and_memories_show_which_tokens_they_move_measured(page, deep):
    lm = deep.session.lm
    card = page.get_by_role("region", name="Logit attribution")
    settings = TraceSettings(TEXT, -1, 10, None, False, (), None)
    found, _ = trace_view(lm, settings, layer=None, memories=5, token=None, point=None, tracing=lm.trace)
    assert found.heads is not None and found.memories is not None
    heads = [(row.name, row.effect, row.without, row.moved) for row in found.heads.rows[:3]]
    memories = [(row.name, row.score or 0.0, row.without, row.moved) for row in found.memories.rows[:3]]
    for kind, rows in (("Head", heads), ("Memory", memories)):
        card.get_by_role("radio", name=kind, exact=True).click()
        for name, effect, without, moved in rows:
            assert moved is not None and without is not None
            verb, tokens = ("lowers", moved.lowered) if effect < 0 else ("raises", moved.raised)
            shown = card.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))
            expect(shown).to_contain_text(f"{100 * without:.1f} %")
            if tokens:
                expect(shown).to_contain_text(f"{verb} {tokens[0].replace(' ', '·')}")


def test_a_figure_by_source_has_its_own_heading(page):
    card = page.get_by_role("region", name="Logit attribution")
    card.get_by_role("radio", name="Source").click()
    expect(card.get_by_text("Sum ")).to_be_visible()
    card.get_by_role("button", name="Download this figure").click()
    with page.expect_download() as saved:
        page.get_by_role("menuitem", name="Save figure as SVG").click()
    text = saved.value.path().read_text(encoding="utf-8")
    assert ">Source<" in text and ">Component<" not in text


def test_without_descriptions_the_memories_of_the_prompt_are_offered(opened, deep):
    page = opened(f"#/memory?prompt={TEXT.replace(' ', '+')}", at=deep.address)
    offered = page.locator(".empty").get_by_role("link")
    expect(offered).to_have_count(6)
    found = deep.session.lm.trace(TEXT).memory_effects(top=6)
    assert offered.first.inner_text() == f"L{found.rows[0].layer}M{found.rows[0].index}"


def test_a_search_that_takes_a_while_shows_that_it_runs(opened, deep):
    page = opened("", at=deep.address)
    held = []

    def hold(route):
        held.append(route)

    page.route("**/memories/search*", hold)
    box = page.get_by_role("searchbox", name="Search memories").first
    box.fill('"c"')
    box.press("Enter")
    expect(page.get_by_role("main").locator(".skeleton")).to_be_visible()
    expect(page.get_by_role("contentinfo")).to_contain_text("Searching")
    held[0].continue_()
    expect(page.get_by_role("table").get_by_role("link").first).to_be_visible()
    expect(page.get_by_role("main").locator(".skeleton")).to_have_count(0)


@pytest.mark.parametrize(
    "screen", ["label", "memory", "memory?memory=L29M39", f"heads?prompt={TEXT.replace(' ', '+')}"]
)
def test_screens_without_an_index_have_one_heading_and_no_violation(opened, deep, screen):
    page = opened(f"#/{screen}", at=deep.address)
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    assert_no_violation(page)


def test_heads_are_scored_on_random_tokens_only_when_such_a_score_is_chosen_if_that_takes_seconds(opened, deep):
    page = opened("", at=deep.address)

    def wide(route):
        answer = route.fetch()
        body = answer.json()
        body["models"][0]["d_model"] = 4096  # by which the page estimates how long the scores take
        route.fulfill(response=answer, json=body)

    page.route("**/api/v1/models", wide)
    scored: list[str] = []
    page.on("request", lambda r: scored.append(r.url) if r.url.endswith("/api/v1/heads") else None)
    page.goto(f"{deep.address}{AT.replace('trace', 'heads')}&head=L7H1")
    page.reload()
    card = page.locator(".head-card")
    expect(card.get_by_role("region", name="What the head does here")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^Pattern of "))).to_have_count(90)
    expect(page.get_by_role("heading", name="Repeated-token (induction) test")).to_be_visible()
    assert not scored
    page.get_by_role("radio", name="Induction", exact=True).click()
    expect(page.get_by_role("grid", name=re.compile("^Heads by "))).to_be_visible()
    assert len(scored) == 1
