"""The example, entropies, streaming, undoing, memories side by side, concepts, a text said twice."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from playwright.sync_api import expect

import unembed
from tests.browser.conftest import address
from tests.browser.test_journeys import AT, PROMPT, grid, the_sum
from unembed.memories.usual_coefficients import usual_coefficients


def test_the_example_is_drawn_before_any_request(opened, lm):
    page = opened()
    expect(grid(page)).to_be_visible()
    page.route("**/api/v1/traces**", lambda route: route.abort())
    requests = []
    page.on("request", lambda r: requests.append(r.url) if "/traces" in r.url else None)
    page.reload()
    expect(page.get_by_text("An example, traced with wren beforehand.")).to_be_visible()
    expect(the_sum(page)).to_be_visible()
    page.get_by_role("radio", name="Entropy").click()
    expect(page.get_by_text(f"{math.log(lm.d_vocab):.2f} nats")).to_be_visible()
    assert requests == []
    page.unroute("**/api/v1/traces**")
    page.get_by_role("button", name="Trace it here").click()
    expect(page.get_by_text("An example, traced")).to_be_hidden()
    expect(grid(page)).to_be_visible()
    assert "prompt=He+was+born+on+16" in address(page) and requests


def test_another_position_of_the_example_sends_a_request(opened):
    page = opened()
    grid(page).get_by_role("gridcell", name=re.compile("^Layer 2 after FFN, position 3 ")).click()
    expect(page.get_by_role("complementary").get_by_text("position 3")).to_be_visible()
    assert "prompt=He+was+born+on+16" in address(page) and "position=3" in address(page)


def test_entropy_is_the_librarys_and_sends_no_request(opened, lm):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    page.wait_for_load_state("networkidle")
    requests = []
    page.on("request", lambda r: requests.append(r.url) if "/api/" in r.url else None)
    page.get_by_role("radio", name="Entropy").click()
    entropy = float(lm.trace(PROMPT).entropy_and_kl().entropy[2, 6])
    cell = grid(page).get_by_role("gridcell", name=re.compile("^Layer 2 after FFN, position 6 "))
    expect(cell).to_have_attribute("aria-label", re.compile(rf"{entropy:.2f} nats"))
    assert requests == []


def test_a_long_trace_comes_in_parts(opened, lm):
    page = opened()
    text = " ".join(["She put the book on the table ."] * 12)
    found = page.evaluate(
        """async (text) => {
          const api = await import(document.querySelector("script").src.replace("main.js", "api.js"));
          const seen = [];
          const lengths = (part) => part.stages.map((s) => [s.point, Object.keys(s.ids).length]);
          const whole = await api.trace(text, [], { on: (part) => seen.push(lengths(part)) });
          return [seen, whole.stages.map((s) => s.ids.length), (await api.trace(text, [])).id === whole.id];
        }""",
        text,
    )
    after = [dict(map(tuple, part)).get("resid_post", 0) for part in found[0]]
    assert after == sorted(after) and 0 < after[0] < after[-1] == lm.n_layers
    before = [dict(map(tuple, part)).get("resid_mid", 0) for part in found[0]]
    assert before == sorted(before) and not any(
        before[: after.index(lm.n_layers) + 1]
    )  # what the grid shows comes first
    assert found[1:] == [[lm.n_layers] * 2, True]


def test_edits_are_undone_and_redone(opened):
    page = opened(f"#/intervene?prompt={PROMPT.replace(' ', '%20')}&edits=L3M5:set:9@all")
    region = page.get_by_role("region", name="Edits").first
    expect(region.get_by_role("spinbutton", name="Value")).to_have_value("9")
    region.get_by_role("button", name="Flip").click()
    expect(region.get_by_role("spinbutton", name="Value")).to_have_value("-1")
    region.get_by_role("button", name="Undo").click()
    expect(region.get_by_role("spinbutton", name="Value")).to_have_value("9")
    page.get_by_role("heading", name="Runs").click()
    page.keyboard.press("Control+Shift+Z")
    expect(region.get_by_role("spinbutton", name="Value")).to_have_value("-1")
    region.get_by_role("button", name="Remove L3M5").click()
    expect(page.get_by_text("Nothing is changed yet.")).to_be_visible()
    page.keyboard.press("Control+Z")
    expect(region.get_by_role("spinbutton", name="Value")).to_have_value("-1")


def test_edits_are_kept_as_a_preset_and_loaded_again(opened):
    page = opened("#/memory?memory=L3M5&edits=L3M5:set:9@all;L1H2:scale:0@all&disabled=1")
    tray = page.get_by_role("region", name="Edits", exact=True)
    tray.get_by_text("Presets").click()
    expect(tray.get_by_text("None is saved yet.")).to_be_visible()
    tray.get_by_role("textbox", name="Name of the preset").fill("<b>two</b>")
    tray.get_by_role("button", name="Save the edits").click()
    expect(tray.get_by_role("button", name="<b>two</b> L3M5 set 9, L1H2 off")).to_be_visible()
    other = opened(f"#/intervene?prompt={PROMPT.replace(' ', '%20')}")
    card = other.get_by_role("region", name="Edits", exact=True).first
    card.get_by_text("Presets").click()
    card.get_by_role("button", name="<b>two</b>").first.click()
    expect(card.get_by_role("spinbutton", name="Value").first).to_have_value("9")
    expect(card.get_by_role("checkbox", name="L1H2 on")).not_to_be_checked()
    assert "edits=L3M5" in address(other) and "disabled=1" in address(other)
    tray = other.get_by_role("region", name="Edits", exact=True).last
    expect(tray.get_by_role("button", name="<b>two</b>").first).to_be_focused()
    tray.get_by_role("button", name="Delete <b>two</b>").click()
    expect(tray.get_by_text("None is saved yet.")).to_be_visible()
    card.get_by_role("button", name="Undo").click()
    expect(other.get_by_text("Nothing is changed yet.")).to_be_visible()


def test_a_late_suggestion_does_not_hide_an_edit_brought_back(opened):
    page = opened(f"#/intervene?prompt={PROMPT.replace(' ', '%20')}&edits=L3M5:set:9@all")
    pending = []
    page.route("**/api/v1/traces/*?position*", lambda route: pending.append(route))
    region = page.get_by_role("region", name="Edits").first
    region.get_by_role("button", name="Remove L3M5").click()
    expect(page.get_by_text("Nothing is changed yet.")).to_be_visible()
    page.wait_for_timeout(50)
    for _ in range(200):
        if pending:
            break
        page.wait_for_timeout(50)
    page.keyboard.press("Control+Z")
    expect(region.get_by_role("spinbutton", name="Value")).to_have_value("9")
    with page.expect_response("**/api/v1/traces/*?position*"):
        pending[0].continue_()
    page.wait_for_timeout(100)
    expect(region.get_by_role("spinbutton", name="Value")).to_have_value("9")


def test_an_edit_states_its_cost_in_nats(opened, lm):
    page = opened(f"#/intervene?prompt={PROMPT.replace(' ', '%20')}&edits=L3M5:set:60@all")
    table = unembed.steering.next_token_table(lm, PROMPT, [unembed.set_coefficient(3, 5, 60.0)])
    nats = float(re.search(r"([\d.]+) nats", page.get_by_text("KL from the baseline").inner_text()).group(1))
    assert nats == pytest.approx(table.provenance.notes["divergence"], rel=0.01)


def test_a_layer_lists_what_holds_ninety_per_cent(opened, lm):
    page = opened(f"#/layer?prompt={PROMPT.replace(' ', '%20')}&layer=2")
    shares = [u.contribution for u in lm.trace(PROMPT).sub_updates(layer=2, top=lm.d_mlp)]
    mass = np.cumsum(shares) / sum(shares)
    page.get_by_role("button", name="Show until 90 %").click()
    expect(page.locator(".sub-update")).to_have_count(int((mass < 0.9).sum()) + 1)
    page.get_by_role("button", name="Show the first 20").click()
    active = sum(share > 0 for share in shares)
    expect(page.locator(".sub-update")).to_have_count(min(20, active))


def test_two_memories_side_by_side(opened, lm):
    page = opened("#/memory?memory=L3M5")
    page.get_by_role("textbox", name="Compare with").fill("L2M9")
    page.get_by_role("textbox", name="Compare with").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("L3M5 and L2M9")
    for layer, index in ((3, 5), (2, 9)):
        first = lm.values.top_tokens(layer, index, 1)[0].replace(" ", "·")
        region = page.get_by_role("region", name=f"L{layer}M{index}")
        expect(region.get_by_role("listitem").first).to_contain_text(first)
    shared = set(lm.values.top_tokens(3, 5, 50)) & set(lm.values.top_tokens(2, 9, 50))
    expect(page.get_by_text(f"Both promote {len(shared)} of 50")).to_be_visible()
    page.get_by_role("button", name="One only").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("L3M5")


def test_a_coefficient_is_marked_in_the_activation_distribution(opened, lm):
    page = opened(f"#/memory?memory=L3M5&prompt={PROMPT.replace(' ', '%20')}")
    region = page.get_by_role("region", name="Activation distribution")
    m = lm.run(PROMPT, "coefficients").at("coefficients", 3)[0, :, 5]
    largest = float(m[m.abs().argmax()])
    expect(region.locator(".here")).to_have_count(2)
    marked = {f"At ·is ({len(m) - 1})": float(m[-1]), "Largest on the tested text": largest}
    for what, coefficient in marked.items():
        shown = region.get_by_role("paragraph").filter(has_text=what).locator("b").inner_text()
        assert math.isclose(float(shown.replace("−", "-")), coefficient, rel_tol=0.01), what


def test_a_name_leads_to_its_concept_and_into_the_edits(opened, served):
    for layer, index in ((4, 11), (5, 12)):
        served.session.index.add_label(layer, index, "weather", author="dora")
    page = opened("#/memory?memory=L4M11")
    page.get_by_role("button", name="weather", exact=True).click()
    expect(page.get_by_role("heading", name="Concept: weather")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("^L[45]M1[12]$"))).to_have_count(2)
    page.get_by_role("button", name="Switch off").click()
    expect(page.get_by_role("region", name="Edits").get_by_text("2 edits")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("2 edits")).to_be_hidden()


def test_chosen_results_join_a_concept_and_leave_it(opened, served):
    index = served.session.index
    page = opened("#/search?query=year")
    boxes = page.get_by_role("checkbox", name="Choose L")
    boxes.first.check()
    boxes.nth(2).check()
    chosen = [page.get_by_role("link", name=re.compile(r"^L\dM\d+$")).nth(n).inner_text() for n in (0, 2)]
    name = "years </script> & "
    page.get_by_role("combobox", name="Concept").fill(name)
    page.get_by_role("button", name="Add to concept").click()
    expect(page.get_by_role("textbox", name="Annotator name")).to_be_focused()
    page.keyboard.type("ines")
    page.get_by_role("button", name="Add to concept").click()
    expect(page.get_by_role("status").get_by_text("2 added to years </script> &.")).to_be_visible()
    signed = [row for row in index.labels().rows() if row["author"] == "ines"]
    assert {f"L{r['layer']}M{r['index']}" for r in signed} == set(chosen)
    assert {r["label"] for r in signed} == {name.strip()}
    page.get_by_role("button", name="Open", exact=True).click()
    expect(page.get_by_role("heading", name="Concept: years </script> &")).to_be_visible()
    expect(page.get_by_role("columnheader", name="labelled by")).to_be_visible()
    for one in chosen:
        expect(page.get_by_role("link", name=one, exact=True).first).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Search", exact=True)).to_be_visible()
    expect(page.get_by_role("columnheader", name="found by")).to_be_visible()
    boxes.first.check()
    page.get_by_role("combobox", name="Concept").fill("YEARS </script> &")
    page.get_by_role("combobox", name="Concept").press("Enter")
    expect(page.get_by_text("0 added to YEARS </script> &, 1 were there.")).to_be_visible()
    page.get_by_role("combobox", name="Concept").fill("another")
    page.get_by_role("button", name="Add to concept").click()
    page.get_by_role("button", name="Undo").last.click()
    expect(page.get_by_text("Withdrawn.")).to_be_visible()
    assert "another" not in {row["label"] for row in index.labels().rows()}


def test_a_repeated_text_shows_the_induction_stripe(opened):
    page = opened("#/heads?head=L2H3")
    region = page.get_by_role("region", name="Repeated-token (induction) test")
    expect(region.get_by_text(re.compile("of the attention of L2H3"))).to_be_visible()
    assert region.locator("rect.on").count() == 16
    region.get_by_role("textbox", name="Text to repeat").fill("one two three four")
    region.get_by_role("textbox", name="Text to repeat").press("Enter")
    expect(region.locator("rect.on")).to_have_count(4)


def test_simultaneous_requests_do_not_replace_each_other(opened):
    page = opened()
    answers = page.evaluate(
        """async () => {
          const api = await import(document.querySelector("script").src.replace("main.js", "api.js"));
          const edit = (value) => [{ target: "head", action: "scale", layer: 1, index: 2, value, positions: "all" }];
          const all = [1, 2].map((n) => api.trace("one two three", edit(n), { channel: `t${n}` }));
          for (let i = 0; i < 6; i++) all.push(api.get(`/memories/1/${i}`, { top: 7 }, { channel: `m${i}` }));
          return (await Promise.allSettled(all)).map((one) => one.status);
        }"""
    )
    assert set(answers) == {"fulfilled"}


def test_listed_sub_updates_and_the_rest_make_the_layers_update(opened, lm, index):
    page = opened(f"#/layer?layer=3&single=1&prompt={PROMPT.replace(' ', '%20')}")
    column = page.get_by_role("region", name="Sub-updates and heads")
    trace = lm.trace(PROMPT)
    target = int(trace.prediction[-1])
    rows = sorted(trace.sub_updates(3, top=lm.d_mlp, token=target), key=lambda row: -abs(row.score))
    # Silent memories are not listed; those that are always on follow the first 20 of the others.
    on = usual_coefficients(lm, index).always_on[3]
    fire = [row for row in rows if row.coefficient != 0]
    first = [part[:20] for part in ([row for row in fire if on[row.index] == kind] for kind in (False, True))]
    at = {row.index for part in first for row in part}
    n = len(at)
    rest_of_layer = f"{lm.d_mlp - n:,} other memories"
    expect(column.get_by_text(rest_of_layer)).to_be_visible()
    text = column.inner_text()
    listed = re.search(rf"The {n} memories listed have ([\d.]+) % of the share", text)
    others = re.search(rf"{rest_of_layer} with <?([\d.]+) % of the share, and the bias: ([+−][\d.]+)", text)
    assert listed and others, text
    size = sum(row.contribution for row in rows)
    for shown, among in ((listed[1], True), (others[1], False)):
        expected = 100 * sum(row.contribution for row in rows if (row.index in at) == among) / size
        assert float(shown) == pytest.approx(expected, abs=0.1)
    ffn = next(row.contribution for row in trace.attribution(target).rows if row.label == "ffn 3")
    rest = ffn - sum(row.score for row in rows if row.index in at)
    assert float(others[2].replace("−", "-")) == pytest.approx(rest, rel=0.02, abs=2e-3)


def test_a_memory_is_set_to_the_most_that_was_seen(opened, served, firing):
    layer, i = firing
    page = opened(f"#/intervene?edits=L{layer}M{i}:scale:0@all")
    page.get_by_role("button", name="Largest in the corpus").click()
    largest = max(row["coefficient"] for row in served.session.index.triggers(layer, i, 1).rows())
    box = page.get_by_role("region", name="Edits").first.get_by_role("spinbutton", name="Value")
    expect(box).not_to_have_value("0")
    assert math.isclose(float(box.input_value()), largest, rel_tol=1e-3)


def test_what_runs_can_be_cancelled(opened):
    page = opened(f"#/intervene?prompt={PROMPT.replace(' ', '%20')}&edits=L3M5:set:9@all&new_tokens=200")
    expect(page.locator(".pair .text span:not(.given)").first).to_be_visible()  # a link with edits runs on arrival
    page.get_by_role("contentinfo").get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    expect(page.get_by_role("contentinfo").get_by_text("Ready")).to_be_visible()
