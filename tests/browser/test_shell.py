"""What holds on every screen: previews, the status line, failures, links made elsewhere, settings of the system."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

import unembed
from tests.browser.conftest import Served, address
from tests.browser.test_journeys import AT, PROMPT, grid, the_sum
from tests.browser.test_memory_heads_labs import number
from unembed.errors import SumNotProved

HERE = f"prompt={PROMPT.replace(' ', '+')}"


def test_a_hovered_candidate_is_marked_in_all_three_columns(opened):
    page = opened(f"#/layer?{HERE}&layer=5")
    columns = page.locator(".sandwich > div")
    expect(columns).to_have_count(3)
    ids = [set(column.locator(".cand").evaluate_all("all => all.map((c) => c.dataset.id)")) for column in columns.all()]
    everywhere = sorted(set.intersection(*ids))
    assert everywhere
    columns.first.locator(f".cand[data-id='{everywhere[0]}']").hover()
    expect(page.locator(".cand.same-token")).to_have_count(3)
    page.mouse.move(0, 0)
    expect(page.locator(".cand.same-token")).to_have_count(0)


def test_another_layer_leaves_the_page_where_it_is_scrolled(opened):
    page = opened(f"#/layer?{HERE}&layer=5")
    expect(page.locator(".sub-update").first).to_be_visible()
    page.evaluate("scrollTo(0, 240)")
    assert page.evaluate("scrollY") == 240
    page.keyboard.press("[")
    expect(page.get_by_role("heading", level=1)).to_have_text("Layer 4")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("scrollY") == 240


def test_the_controls_of_a_layers_list_are_one_line(opened):
    page = opened(f"#/layer?{HERE}&layer=5")
    header = page.get_by_role("region", name="Sub-updates and heads").locator("header")
    expect(header.get_by_label("Show", exact=True)).to_be_visible()
    tops = header.locator(":scope > :is(h2, .segmented, select)").evaluate_all(
        "all => all.map((el) => el.getBoundingClientRect()).map((box) => box.top + box.height / 2)"
    )
    assert len(tops) == 4 and max(tops) - min(tops) < 3


def test_the_status_line_counts_the_seconds_and_keeps_a_failure_until_it_is_dismissed(opened):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    status = page.get_by_role("contentinfo")
    expect(status).to_contain_text("Ready")
    held = []
    page.route("**/api/v1/traces/stream", lambda route: held.append(route))
    box = page.get_by_role("textbox", name="Prompt")
    box.fill("one two")
    box.press("Enter")
    expect(status.get_by_text(re.compile(r"^◌ Tracing … [1-9] s$"))).to_be_visible()
    problem = {"code": "busy", "message": "the queue is full", "why": "", "fix": "Try again", "detail": None}
    held[0].fulfill(status=503, json=problem)
    page.unroute("**/api/v1/traces/stream")
    opened.allowed.append("503")
    expect(status).to_contain_text("the queue is full. Try again")
    expect(page.locator("#live")).to_contain_text("the queue is full")
    box.fill("one two three")
    box.press("Enter")
    expect(the_sum(page)).to_be_visible()
    expect(grid(page).get_by_role("columnheader")).to_have_count(4)
    expect(status).to_contain_text("the queue is full")
    status.get_by_role("button", name="Dismiss").click()
    expect(status).not_to_contain_text("the queue is full")
    expect(status).to_contain_text("Ready")


def test_a_sum_that_is_not_proved_is_reported_with_its_number(opened, monkeypatch):
    def refused(*_, **__):
        raise SumNotProved(
            "the attribution", why="the contributions give 1.5, the model gives 2 (relative error 2.5e-01)"
        )

    monkeypatch.setattr("unembed.logit_attribution.contributions.proved_sum", refused)
    page = opened("#/layer?prompt=a+sum+not+proved&layer=2")
    expect(page.locator("#main .warn").get_by_text("relative error 2.5e-01")).to_be_visible()
    opened.allowed.append("422")


def test_the_predicted_token_is_appended(opened, lm):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    page.get_by_role("button", name="→ append").click()
    longer = lm.generate(PROMPT, max_new_tokens=1)[0]
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value(longer)
    expect(grid(page).get_by_role("columnheader")).to_have_count(lm.encode(longer).shape[1] + 1)


def test_a_link_of_another_model_or_index_is_announced(opened, index):
    page = opened(AT, permissions=["clipboard-read", "clipboard-write"])
    expect(the_sum(page)).to_be_visible()
    page.keyboard.press("c")
    expect(page.get_by_text("Link copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()").split("#")[1]
    assert "model=wren" in link and re.search("index=[0-9a-f]{8}", link)
    same = opened(f"#{link}")
    expect(the_sum(same)).to_be_visible()
    note = "[role=alert].warn"
    expect(same.locator(note)).to_have_count(0)
    for change, made in ((("model=wren", "model=swan@1234"), "swan@1234"), (("index=", "index=f00d"), "index f00d")):
        other = opened(f"#{link.replace(*change)}")
        expect(other.locator(note)).to_contain_text(f"This was made with {made}")
        expect(the_sum(other)).to_be_visible()
        other.locator(note).get_by_role("button", name="Dismiss").click()
        expect(other.locator(note)).to_have_count(0)


def test_the_last_value_of_a_moved_slider_is_what_the_table_shows(opened, lm):
    page = opened(f"#/intervene?{HERE}&edits=L3M5:set:60@all&new_tokens=2")
    table = page.get_by_role("region", name="Next token", exact=True)
    expect(table.get_by_text("KL from the baseline")).to_be_visible()
    page.wait_for_load_state("networkidle")
    answers = []
    page.on("response", lambda r: answers.append(r.status) if r.url.endswith("/next") else None)
    value = page.get_by_role("slider", name="Value").evaluate(
        """(slider) => {
          for (let i = 1; i <= 40; i++) {
            slider.value = String(0.1 + i / 50);
            slider.dispatchEvent(new Event("input", { bubbles: true }));
          }
          return document.querySelector("input[aria-label=Value][type=number]").valueAsNumber;
        }"""
    )
    expected = unembed.steering.next_token_table(lm, PROMPT, [unembed.set_coefficient(3, 5, value)])
    nats = expected.provenance.notes["divergence"]
    expect(table).to_contain_text(f"KL from the baseline: {nats:.{2 if nats >= 1 else 3}f} nats")
    page.wait_for_load_state("networkidle")
    expect(table).to_contain_text(f"KL from the baseline: {nats:.{2 if nats >= 1 else 3}f} nats")
    assert len([one for one in answers if one == 200]) < 10, "older values are not computed"


def test_a_memory_is_tested_on_a_text_of_ones_own(opened, lm):
    page = opened("#/memory?memory=L3M5")
    region = page.get_by_role("region", name="Test on your own text")
    text = "The old man went to the house by the sea"
    region.get_by_role("textbox", name="Text to test").fill(text)
    region.get_by_role("button", name="Test").click()
    m = lm.run(text, ("coefficients",)).at("coefficients", 3)[0, :, 5]
    chips = region.locator(".chip-token")
    expect(chips).to_have_count(len(m))
    titles = chips.evaluate_all("all => all.map((one) => one.title)")
    values = [float(title.removeprefix("coefficient ")) for title in titles]
    assert values == pytest.approx(m.tolist(), rel=1e-3, abs=1e-6)
    best = int(m.abs().argmax())
    token = lm.token_strings(lm.encode(text)[0])[best].replace(" ", "·")
    sentence = region.get_by_text(re.compile("^largest "))
    expect(sentence).to_contain_text(f"at {token}")
    assert number(sentence.inner_text().split()[1].replace("+", "")) == pytest.approx(float(m[best]), rel=0.01)
    other = opened("#" + address(page).split("#")[1])
    expect(other.get_by_role("textbox", name="Text to test")).to_have_value(text)


def test_sampled_texts_are_hidden_until_they_are_asked_for(opened):
    page = opened(f"#/labs/toxicity?{HERE}&edits=L3M5:scale:0@all")
    page.get_by_role("spinbutton", name="Samples").fill("1")
    page.get_by_role("textbox", name="Prompts, one a line").fill("The quiet zebra")
    page.get_by_role("button", name="Sample and score").click()
    warning = page.get_by_text("The sampled texts may be offensive.")
    expect(warning).to_be_visible()
    texts = page.locator("#main .pair li")
    expect(texts.filter(visible=True)).to_have_count(0)
    page.get_by_role("button", name="Show them").click()
    expect(texts.filter(visible=True).first).to_be_visible()


HOSTILE = ["She said </script><img src=x onerror=alert(1)> and left .", "The word שלום‮ evil is here ."]


def test_hostile_texts_of_the_corpus_are_only_text(opened, lm, tmp_path):
    index = unembed.Index.build(lm, HOSTILE, tmp_path / "hostile", top=5)
    once = Served(lm, index, "hostile")
    try:
        fired = (
            (layer, i)
            for layer in range(lm.n_layers)
            for i in range(lm.d_mlp)
            if any("</script>" in row["prefix"] for row in index.triggers(layer, i, 5).rows())
        )
        layer, i = next(fired)
        page = opened(f"#/memory?memory=L{layer}M{i}", at=once.address)
        contexts = page.locator(".trigger .context")
        expect(contexts.first).to_be_visible()
        assert page.locator("#main img").count() == 0
        assert "</script>" in "".join(contexts.all_inner_texts()).replace(" ", "")
        assert contexts.first.get_attribute("dir") == "auto"
        page.wait_for_load_state("networkidle")
        page.close()
    finally:
        once.stop()


def test_forced_colours_keep_the_shades_and_less_motion_moves_nothing(opened):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    page.emulate_media(forced_colors="active", reduced_motion="reduce")
    fills = page.locator(".cell").evaluate_all("all => all.map((c) => getComputedStyle(c).backgroundColor)")
    assert len(set(fills)) > 4
    moving = page.evaluate(
        "[...document.querySelectorAll('*')].map(getComputedStyle)"
        ".filter((s) => s.transitionDuration !== '0s' || s.animationName !== 'none').length"
    )
    assert moving == 0


def test_heads_that_share_keys_are_named(opened, tmp_path):
    from tests.cli.conftest import save_model

    lm = unembed.load(save_model(tmp_path / "llama", "llama"))
    assert lm.n_kv_heads < lm.n_heads
    once = Served(lm)
    try:
        page = opened("#/heads", at=once.address)
        expect(
            page.get_by_text(f"Grouped queries: {lm.n_heads} heads share {lm.n_kv_heads} sets of keys and values.")
        ).to_be_visible()
        page.close()
    finally:
        once.stop()


def test_old_numbers_stay_dimmed_while_new_ones_are_computed(opened, lm):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    held = []
    page.route("**/api/v1/traces/*?*position*", lambda route: held.append(route))
    side = page.get_by_role("complementary", name="Selected cell")
    before = side.inner_text()
    page.keyboard.press(",")
    dimmed = side.locator(".waiting")
    expect(dimmed).to_be_visible()
    assert side.inner_text() == before
    held[0].continue_()
    expect(dimmed).to_have_count(0)
    expect(side.get_by_text("position 5")).to_be_visible()


@pytest.mark.parametrize(
    ("where", "ready", "least"),
    [
        ("trace?", "Sum ", 2),
        ("layer?layer=3&", "Sum ", 1),
        ("memory?memory=L3M5&", "blue positive", 3),
        ("heads?", "OV:", 4),
    ],
)
def test_every_chart_is_a_table_that_can_be_sorted(opened, where, ready, least):
    page = opened(f"#/{where}{HERE}")
    page.locator("#main").get_by_text(ready).filter(visible=True).first.wait_for()
    page.wait_for_load_state("networkidle")
    charts = page.locator("#main details").filter(has=page.get_by_text(re.compile("as a table", re.IGNORECASE)))
    assert charts.count() >= least
    for chart in charts.all():
        chart.locator("summary").click()
        table = chart.get_by_role("table")
        expect(table.get_by_role("row").nth(1)).to_be_visible()
        columns = table.get_by_role("columnheader").count()
        for press in ("ascending", "descending"):
            table.get_by_role("columnheader").last.get_by_role("button").click()
            expect(table.get_by_role("columnheader").last).to_have_attribute("aria-sort", press)
            cells = table.locator(f"tbody td:nth-child({columns})").all_inner_texts()
            if all(re.fullmatch(r"[−+]?[\d,]+(\.\d+)?(e-?\d+)?", cell) for cell in cells):
                values = [number(cell) for cell in cells]
                assert values == sorted(values, reverse=press == "descending")
