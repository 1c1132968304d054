"""The card of a memory: its name and figures above the fold, examples beside tokens, steering in place, connections."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

import unembed
from tests.browser.test_memory_heads_labs import number
from unembed.attention.paths.memory_connections import memory_connections
from unembed.gallery import memory_descriptions
from unembed.index.coefficients import coefficients_view

PROMPT = "He was born on 16"
HERE = f"prompt={PROMPT.replace(' ', '%20')}"


@pytest.fixture(scope="session")
def months(lm) -> tuple[int, int, str]:
    """The best described memory that this prompt activates."""
    trace = lm.trace(PROMPT)
    one = trace.described_memories()[0]
    return one.layer, one.index, one.description


def figure(page, name: str):
    """The value of a figure in the header."""
    return page.locator("dl.figures > div").filter(has_text=name).locator("dd")


def test_the_header_shows_the_name_and_the_effect_here(opened, lm, index, months):
    layer, i, description = months
    page = opened(f"#/memory?memory=L{layer}M{i}&{HERE}")
    expect(page.locator(".described-as")).to_contain_text(description)
    trace = lm.trace(PROMPT)
    here = trace.memory_effect(layer, i, index=index)
    view = coefficients_view(lm, index, layer, i)
    coefficient = figure(page, "coefficient on the prompt")
    expect(coefficient).to_contain_text("16")
    assert number(coefficient.inner_text().split()[0]) == pytest.approx(here.coefficient, rel=0.01)
    expect(coefficient).to_contain_text(re.compile("percentile|sample"))  # once the corpus has been sampled
    effect = figure(page, "effect (logits)")
    names = lm.token_strings([trace.question().token, trace.question().against])
    expect(effect).to_contain_text(names[0].strip())
    expect(effect).to_contain_text(names[1].strip())
    assert number(effect.inner_text().split()[0]) == pytest.approx(here.score, rel=0.01)
    assert number(figure(page, "value norm").inner_text()) == pytest.approx(lm.values.norm(layer, i), rel=0.01)
    active = view.statistics["active_fraction"]
    assert number(figure(page, "active on").inner_text().split()[0]) == pytest.approx(100 * active, rel=0.01)


def test_another_question_is_another_effect(opened, lm, index, months):
    layer, i, _ = months
    january = lm.single_token(" January")
    page = opened(f"#/memory?memory=L{layer}M{i}&{HERE}&token=%23{january}&single=1&position=3")
    trace = lm.trace(PROMPT)
    here = trace.memory_effect(layer, i, trace.question(january, position=3, alone=True), 3, index=index)
    effect = figure(page, "effect (logits)")
    expect(effect).to_contain_text("the logit of ·January")
    assert number(effect.inner_text().split()[0]) == pytest.approx(here.score, rel=0.02, abs=1e-4)


def test_examples_and_tokens_are_side_by_side_above_the_fold(opened, firing):
    layer, i = firing
    page = opened(f"#/memory?memory=L{layer}M{i}&{HERE}")
    examples = page.get_by_role("region", name="Top activating examples").locator(".trigger").nth(2)
    tokens = page.get_by_role("region", name="Effect of the value on the vocabulary").locator(".bar-row")
    expect(examples).to_be_visible()
    expect(tokens).to_have_count(20)
    expect(tokens.nth(19)).to_be_visible()
    left, right, last = (one.bounding_box() for one in (examples, tokens.first, tokens.nth(19)))
    assert left["x"] + left["width"] <= right["x"]
    assert left["y"] + left["height"] < 860 and last["y"] + last["height"] < 860


def test_both_ends_of_a_value_are_drawn_on_one_scale(opened, lm, months):
    layer, index, _ = months
    page = opened(f"#/memory?memory=L{layer}M{index}&{HERE}")
    region = page.get_by_role("region", name="Effect of the value on the vocabulary")
    rows = region.locator(".bar-row")
    expect(rows).to_have_count(20)
    drawn = [
        (number(row.locator(".bar-number").inner_text()), row.locator(".bar").bounding_box()["width"])
        for row in rows.all()
    ]
    tracks = {round(row.locator(".bar-track").bounding_box()["width"]) for row in rows.all()}
    assert len(tracks) == 1
    most = max(abs(score) for score, _ in drawn)
    for score, width in drawn:
        assert width == pytest.approx(tracks.copy().pop() * abs(score) / most, abs=2)
    digits = {len(row.locator(".bar-number").inner_text().split(".")[1]) for row in rows.all()}
    assert len(digits) == 1, "one number of decimals in a column"


def test_a_label_that_could_not_be_stored_stays_in_the_form(opened):
    page = opened("#/memory?memory=L2M9")
    region = page.get_by_role("region", name="Labels")
    region.get_by_role("textbox", name="Name", exact=True).fill("a name")
    region.get_by_role("textbox", name="Note").fill("a note")
    region.get_by_role("button", name="Save").click()
    expect(region.get_by_role("textbox", name="Annotator name")).to_be_focused()
    page.route("**/api/v1/labels", lambda route: route.abort())
    page.keyboard.type("ines")
    region.get_by_role("button", name="Save").click()
    expect(page.get_by_role("contentinfo").locator(".bad")).to_be_visible()
    expect(region.get_by_role("textbox", name="Name", exact=True)).to_have_value("a name")
    expect(region.get_by_role("textbox", name="Note")).to_have_value("a note")
    opened.complaints[:] = [c for c in opened.complaints if "ERR_FAILED" not in c]


def test_two_tabs_see_each_others_labels_and_what_is_typed_stays(opened, lm):
    one = opened("#/memory?memory=L2M11")
    other = one.context.new_page()
    other.goto(one.url)
    first, second = (page.get_by_role("region", name="Labels") for page in (one, other))
    second.get_by_role("textbox", name="Note").fill("half a thought")
    first.get_by_role("textbox", name="Name", exact=True).fill("harbours")
    first.get_by_role("textbox", name="Annotator name").fill("ines")
    first.get_by_role("button", name="Save").click()
    expect(first.locator("b", has_text="harbours")).to_be_visible()
    expect(second.locator("b", has_text="harbours")).to_be_visible()
    expect(second.get_by_role("textbox", name="Note")).to_have_value("half a thought")
    expect(other.get_by_role("button", name="harbours")).to_be_visible()
    second.get_by_role("button", name="withdraw").click()
    expect(first.locator("b", has_text="harbours")).to_have_count(0)


def test_skeletons_have_the_shape_of_what_is_loading(opened, firing):
    layer, index = firing
    page = opened()
    page.route("**/coefficients", lambda route: None)  # never answered
    page.goto(page.url.split("#")[0] + f"#/memory?memory=L{layer}M{index}")
    lines = page.get_by_role("status", name="Sampling the corpus")
    expect(lines.locator("i")).to_have_count(5)
    expect(page.locator(".trigger").first).to_be_visible()


def test_the_corpus_is_sampled_on_a_click_if_that_takes_seconds(opened, lm, index, firing):
    layer, i = firing
    page = opened()

    def wide(route):
        answer = route.fetch()
        body = answer.json()
        body["models"][0]["d_model"] = 4096  # by which the page estimates how long the sample takes
        route.fulfill(response=answer, json=body)

    page.route("**/api/v1/models", wide)
    page.goto(page.url.split("#")[0] + f"#/memory?memory=L{layer}M{i}")
    page.reload()
    view = coefficients_view(lm, index, layer, i)
    density = page.locator("dl.figures").get_by_text(re.compile("% of tokens"))
    assert number(density.inner_text().split()[0]) == pytest.approx(100 * view.statistics["active_fraction"], rel=0.01)
    region = page.get_by_role("region", name="Activation distribution")
    chart = region.get_by_role("img", name=re.compile(f"^Coefficients of {view.sampled} sampled tokens"))
    expect(region.get_by_text(f"Over all {view.tokens:,} tokens of the index")).to_be_visible()
    expect(chart).to_have_count(0)
    region.get_by_role("button", name="Sample the corpus").click()
    expect(chart).to_be_visible()
    expect(page.get_by_text(f"Examples by quantile, among {view.sampled} sampled tokens")).to_be_visible()


def test_the_scores_of_all_tokens_are_drawn(opened, lm, months):
    layer, i, _ = months
    page = opened(f"#/memory?memory=L{layer}M{i}&{HERE}")
    edges, counts = lm.values.score_histogram(layer, i)
    drawn = page.get_by_role("img", name=re.compile(f"^Scores of all {int(counts.sum()):,} tokens"))
    expect(drawn.locator("rect")).to_have_count(int((counts > 0).sum()))
    low, high = (f"{float(edge):.3g}".replace("-", "−") for edge in (edges[0], edges[-1]))
    text = drawn.text_content() or ""
    assert low in text and high in text


def test_a_coefficient_is_set_in_place_and_the_next_token_follows(opened, lm, months):
    layer, i, _ = months
    page = opened(f"#/memory?memory=L{layer}M{i}&{HERE}")
    region = page.get_by_role("region", name="Edit and steer")
    table = region.get_by_role("table")

    def agree(value: float):
        found = unembed.steering.next_token_table(lm, PROMPT, [unembed.set_coefficient(layer, i, float(value))])
        expect(region.get_by_text(f"Set to {value:g} everywhere")).to_be_visible()
        for row, expected in zip(table.get_by_role("row").all()[1:], found.rows(), strict=False):
            token, *_, change = row.get_by_role("cell").all_inner_texts()
            assert token == expected["token"].replace(" ", "·")
            assert number(change) == pytest.approx(100 * (expected["edited"] - expected["plain"]), abs=0.051)

    agree(0)
    region.get_by_role("spinbutton", name="Coefficient").fill("12")
    region.get_by_role("spinbutton", name="Coefficient").press("Enter")
    agree(12)
    region.get_by_role("button", name="Add to the edits").click()
    expect(page.get_by_role("heading", name="1 edit")).to_be_visible()
    expect(page.locator("#tray")).to_contain_text(f"L{layer}M{i}")
    expect(page.locator("#tray")).to_contain_text("set 12")


def test_connected_heads_and_memories_are_listed_with_links(opened, lm):
    page = opened("#/memory?memory=L3M5")
    found = memory_connections(lm, 3, 5)
    region = page.get_by_role("region", name="Connections by weights")
    for title, rows, letter in (
        ("Heads that write to its key", found.heads, "H"),
        ("Memories that write to its key", found.writers, "M"),
        ("Memories that read its value", found.readers, "M"),
    ):
        shown = region.get_by_role("table", name=title).get_by_role("row")
        expect(shown).to_have_count(len(rows))
        for row, one in zip(shown.all(), rows, strict=True):
            assert row.get_by_role("link").inner_text() == f"L{one.layer}{letter}{one.index}"
            assert number(row.get_by_role("cell").nth(1).inner_text()) == pytest.approx(one.strength, abs=0.00051)
    name = region.get_by_role("table", name="Memories that read its value").get_by_role("link").first
    text = name.inner_text()
    name.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(text)


def test_without_a_memory_the_best_described_ones_are_offered(opened, lm):
    page = opened("#/memory")
    best = next(iter(memory_descriptions(lm)))
    first = page.get_by_role("list", name="Memories with a description").get_by_role("listitem").first
    expect(first).to_contain_text(best[3])
    first.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"L{best[0]}M{best[1]}")


def test_a_second_memory_that_does_not_exist_is_reported_and_the_first_is_shown(opened, lm):
    page = opened(f"#/memory?memory=L0M1&compared=L{lm.n_layers}M3")
    expect(page.get_by_role("heading", name="L0M1", exact=True)).to_be_visible()
    expect(page.get_by_role("contentinfo")).to_contain_text(f"layer {lm.n_layers}")
    expect(page.get_by_role("region", name="Effect of the value on the vocabulary")).to_be_visible()
    opened.allowed.append("404")


def test_neighbours_and_categories_are_those_of_the_library(opened, lm, index):
    page = opened("#/memory?memory=L3M5")
    found = index.similar(3, 5, 6)
    rows = page.locator("ul.near li")
    expect(rows).to_have_count(len(found))
    for row, one in zip(rows.all(), found.rows(), strict=True):
        assert number(row.locator(".faint").inner_text().removeprefix("cosine ")) == pytest.approx(
            one["cosine"], abs=0.006
        )
    shared = next(unembed.value_concepts(lm, [(3, 5)]).to_table().rows())
    tag = page.get_by_role("listitem").filter(has_text=f"{shared['n_tokens']} of 30").first
    expect(tag).to_contain_text(shared["concept"])


def test_a_click_sets_a_memory_to_three_times_its_usual_size(opened, index, months):
    layer, i, _ = months
    page = opened(f"#/memory?memory=L{layer}M{i}&{HERE}")
    page.get_by_role("button", name="Set to 3 × usual").click()
    size = 3 * index.usual_size(layer, i)
    expect(page.locator(".chip .verb")).to_have_text(f"set {float(f'{size:.4g}'):g}")
