"""A memory's contexts, heads on a prompt, landmarks of an edit, two runs side by side, the laboratories' dials."""

from __future__ import annotations

import math
import re
import time

import pytest
from playwright.sync_api import expect

import unembed
from tests.browser.axe_rules import assert_no_violation
from tests.browser.conftest import address
from tests.browser.test_journeys import PROMPT
from unembed.attention import raised_view
from unembed.attention.text.head_examples import HeadExamples, examples_of_heads
from unembed.index.coefficients import coefficients_view

COOK = "Captain Cook sailed north. Captain"
HERE = f"prompt={PROMPT.replace(' ', '%20')}"


def number(text: str) -> float:
    """A number as the page writes it."""
    return float(text.replace("−", "-").replace(",", ""))


def test_contexts_are_shaded_and_cut_at_the_chosen_length(opened, index, firing):
    layer, i = firing
    page = opened(f"#/memory?memory=L{layer}M{i}")
    rows = list(index.triggers(layer, i, 10).rows())
    region = page.get_by_role("region", name="Top activating examples")
    first = region.locator(".trigger").first
    expect(first.locator(".context span[title^=coefficient]").first).to_be_attached()
    for shown, row in zip(region.locator(".trigger").all(), rows, strict=False):
        assert number(shown.locator(".value").inner_text()) == pytest.approx(row["coefficient"], rel=0.01)
        titles = [s.get_attribute("title") or "" for s in shown.locator(".context > [title^=coefficient]").all()]
        values = [number(t.split()[1]) for t in titles]
        assert values[-1] == pytest.approx(row["coefficient"], rel=1e-3)
        assert shown.locator("mark").inner_text().strip() == row["token"].strip()
    whole = next(n for n, row in enumerate(rows) if len(row["prefix"].split()) > 10)
    text = region.locator(".trigger .context").nth(whole)
    region.get_by_role("radio", name="Short").click()
    expect(text).to_contain_text("…")
    assert text.locator("span:not(.next), mark").count() == 9
    region.get_by_role("radio", name="Full").click()
    expect(text).not_to_contain_text("…")
    assert " ".join(text.inner_text().split()).startswith(" ".join(rows[whole]["prefix"].split()))
    region.get_by_role("button", name="Use this text as the prompt").nth(whole).click()
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value(
        (rows[whole]["prefix"] + rows[whole]["token"]).lstrip()
    )


def test_weaker_contexts_come_from_the_sample_and_are_marked(opened, lm, index, firing):
    layer, i = firing
    page = opened(f"#/memory?memory=L{layer}M{i}")
    view = coefficients_view(lm, index, layer, i)
    region = page.get_by_role("region", name="Top activating examples")
    expect(region.get_by_text(f"Examples by quantile, among {view.sampled} sampled tokens")).to_be_visible()
    expect(
        region.get_by_text(f"The {min(25, len(list(index.triggers(layer, i, 25).rows())))} strongest")
    ).to_be_visible()
    bands = region.locator("details")
    expect(bands).to_have_count(len(view.bands))
    band = view.bands[-1]
    bands.last.locator("summary").click()
    shown = bands.last.locator(".trigger")
    expect(shown).to_have_count(len(band.contexts))
    for row, one in zip(shown.all(), band.contexts, strict=True):
        assert number(row.locator(".value").inner_text()) == pytest.approx(one.coefficient, rel=0.02)


def test_the_coefficient_here_has_a_percentile_among_the_sampled_ones(opened, lm, index, firing):
    layer, i = firing
    page = opened(f"#/memory?memory=L{layer}M{i}&{HERE}")
    m = lm.run(PROMPT, "coefficients").at("coefficients", layer)[0, :, i]
    here = float(m[m.abs().argmax()])
    view = coefficients_view(lm, index, layer, i)
    below = sum(n for n, edge in zip(view.counts, view.edges[1:], strict=True) if edge <= here)
    region = page.get_by_role("region", name="Activation distribution")
    expect(region.get_by_text(re.compile(f"^Largest on the tested text .*, above {below:,} of them"))).to_be_visible()
    expect(region.get_by_text(re.compile(r"^At \S+ \(\d+\) .*, above [\d,]+ of them"))).to_be_visible()
    density = page.locator("dl.figures").get_by_text(re.compile("% of tokens")).inner_text()
    assert number(density.split()[0]) == pytest.approx(100 * view.statistics["active_fraction"], rel=0.01)


def test_fifty_tokens_at_either_end_and_a_list_to_copy(opened, lm):
    page = opened("#/memory?memory=L3M5", permissions=["clipboard-read", "clipboard-write"])
    region = page.get_by_role("region", name="Effect of the value on the vocabulary")
    expect(region.locator(".bar-row")).to_have_count(20)
    region.get_by_role("button", name="Show 50").click()
    expect(region.locator(".bar-row")).to_have_count(100)
    region.get_by_role("button", name="Copy promoted").click()
    expect(page.get_by_text("copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").split("\n")[:3] == lm.values.top_tokens(3, 5, 3)


def test_next_leads_through_what_the_search_found(opened):
    page = opened("#/search?query=year")
    links = page.get_by_role("table").get_by_role("link")
    expect(links.first).to_be_visible()
    names = links.all_inner_texts()
    links.first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(names[0])
    expect(page.get_by_text(f"1 of {len(names)} found")).to_be_visible()
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(names[1])
    page.keyboard.press("[")
    page.keyboard.press("[")
    expect(page.get_by_role("heading", level=1)).to_have_text(names[-1])


def test_a_label_has_tags_a_verdict_and_a_note(opened, index):
    page = opened("#/memory?memory=L2M77")
    region = page.get_by_role("region", name="Labels")
    for name, text in (
        ("Name", "months"),
        ("Annotator name", "fay"),
        ("Tags", "time, year "),
        ("Note", "seen <b>often</b>"),
    ):
        region.get_by_role("textbox", name=name, exact=True).fill(text)
    region.get_by_role("combobox", name="Verdict").select_option("mixed")
    region.get_by_role("button", name="Save", exact=True).click()
    expect(region.get_by_text("mixed, seen <b>often</b>")).to_be_visible()
    expect(region.locator(".tag")).to_have_text(["time", "year"])
    notes = next(row for row in index.labels(2, 77).rows() if row["author"] == "fay")["notes"]
    assert notes == {"tags": ["time", "year"], "verdict": "mixed", "note": "seen <b>often</b>"}


def test_clustering_shows_its_progress_and_can_be_cancelled(opened, monkeypatch):
    ended = list[BaseException]()

    def slow(_lm, _n_clusters, progress):
        try:
            for done in range(1, 10_000):
                time.sleep(0.01)
                progress(done, 10_000)
        except BaseException as error:
            ended.append(error)
            raise

    monkeypatch.setattr("unembed.index.clusters.cluster_values", slow)
    page = opened("#/memory?memory=L3M5")
    region = page.get_by_role("region", name="Cluster")
    region.get_by_role("button", name="Compute clusters").click()
    expect(region.get_by_text(" of 10000 steps of clustering")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(region.get_by_role("button", name="Compute clusters")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    for _ in range(100):
        page.wait_for_timeout(50)
        if ended:
            break
    assert [type(error).__name__ for error in ended] == ["Superseded"]


def test_values_are_clustered_once_and_a_cluster_leads_to_its_members(opened, lm):
    page = opened("#/memory?memory=L3M5")
    region = page.get_by_role("region", name="Cluster")
    region.get_by_role("button", name="Compute clusters").click()
    clusters = unembed.cluster_values(lm, lm.n_layers * lm.d_mlp // 10)
    members = clusters.members(clusters.of(3, 5))
    expect(
        region.get_by_text(
            f"{len(members)} of {lm.n_layers * lm.d_mlp:,} values, in one of {clusters.n_clusters} clusters"
        )
    ).to_be_visible()
    links = region.get_by_role("link")
    expect(links).to_have_count(min(8, len(members) - 1))
    name = links.first.inner_text()
    links.first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(region.get_by_text(f"{len(members)} of {lm.n_layers * lm.d_mlp:,} values")).to_be_visible()
    expect(region.get_by_role("button", name="Compute clusters")).to_be_hidden()


def test_a_label_of_a_head_is_shown_wherever_the_head_is(opened, index):
    page = opened(f"#/heads?head=L2H3&{HERE}")
    region = page.get_by_role("region", name="Labels")
    for name, text in (("Name", "looks <i>back</i>"), ("Annotator name", "joe"), ("Tags", "order")):
        region.get_by_role("textbox", name=name, exact=True).fill(text)
    region.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("region", name="L2H3").get_by_role("button", name="looks <i>back</i>")).to_be_visible()
    expect(page.get_by_role("gridcell", name=re.compile("^L2H3: .* of \\d+, looks .*back"))).to_be_visible()
    assert [(row["kind"], row["author"]) for row in index.labels(2, 3, of="head").rows()] == [("head", "joe")]
    page.get_by_role("gridcell", name=re.compile("^L2H4: ")).click()
    expect(page.get_by_role("region", name="L2H4").get_by_role("button", name="looks")).to_have_count(0)
    page.goto(page.url.split("#")[0] + f"#/layer?{HERE}&layer=2&part=heads")
    row = page.locator(".sub-update").filter(has=page.get_by_role("link", name="L2H3", exact=True))
    expect(row.get_by_text("looks <i>back</i>")).to_be_visible()
    page.get_by_role("combobox", name="Show").select_option("named")
    expect(page.locator(".sub-update")).to_have_count(1)
    page.goto(page.url.split("#")[0] + '#/search?query=name:"looks"')
    page.get_by_role("table").get_by_role("link", name="L2H3").click()
    region.get_by_role("button", name="withdraw").click()
    expect(region.get_by_role("button", name="withdraw")).to_have_count(0)
    expect(page.get_by_role("gridcell", name=re.compile("^L2H3: .* of \\d+$"))).to_be_visible()


def test_heads_by_their_effect_on_the_target_against_the_runner_up(opened, lm):
    page = opened(f"#/heads?head=L2H3&{HERE}")
    region = page.get_by_role("region", name="All heads")
    region.get_by_role("radio", name="Effect, prompt").click()
    trace = lm.trace(PROMPT)
    question = trace.question()
    attribution = trace.attribution(question.token, -1, question.against, by="head")
    named = page.get_by_role("group", name="Target and runner-up")
    expect(named.get_by_role("combobox", name="Target")).to_have_value(f"#{question.token}")
    expect(named.get_by_role("combobox", name="Runner-up")).to_have_value(f"#{question.against}")
    headers = region.get_by_role("columnheader")
    expect(headers).to_have_text([f"H{n}" for n in range(lm.n_heads)])
    shares = {(r.layer, r.index): r.contribution for r in attribution.rows if r.label.startswith("head ")}
    order = sorted(shares, key=lambda at: -abs(shares[at]))
    for place, (layer, head) in enumerate(order[:5], 1):
        cell = region.get_by_role("gridcell", name=re.compile(f"^L{layer}H{head}: "))
        expect(cell).to_have_attribute("title", re.compile(f", {place} of {lm.n_layers * lm.n_heads}$"))
        shown = number((cell.get_attribute("title") or "").split()[1].rstrip(","))
        assert shown == pytest.approx(shares[layer, head], rel=0.01)
    region.get_by_role("slider", name="Show top n heads").fill("5")
    expect(region.get_by_text(f"Top 5 of {lm.n_layers * lm.n_heads} heads")).to_be_visible()
    numbered = region.get_by_role("gridcell").filter(has_text=re.compile(r"\d"))
    expect(numbered).to_have_count(5)
    assert {tuple(c.get_attribute("data-at").split(".")) for c in numbered.all()} == {
        (str(layer), str(head)) for layer, head in order[:5]
    }


def test_a_pattern_on_a_text_of_ones_own_by_weight_or_by_what_is_carried(opened, lm):
    page = opened(f"#/heads?head=L2H3&{HERE}")
    box = page.get_by_role("textbox", name="Text for the pattern")
    expect(box).to_have_value(PROMPT)
    text = "one two three one two"
    box.fill(text)
    box.press("Enter")
    region = page.get_by_role("region", name="L2H3")
    expect(region.locator(".chip-token")).to_have_count(5)
    expect(region.get_by_text("The first column is hidden")).to_be_visible()
    n = len(lm.encode(text)[0])
    weights = lm.run(text, ("pattern",)).at("pattern", 2)[0, 3]
    cell = region.locator("rect").last
    expect(cell.locator("title")).to_have_text(re.compile(rf"{100 * float(weights[n - 1, n - 1]):.1f} %$"))
    region.get_by_role("radio", name="Contribution").click()
    from unembed.attention.behaviour.value_weighted_attention import POINTS, contribution_norms

    norms = contribution_norms(lm, lm.run(text, POINTS), 2)[3]
    expect(cell.locator("title")).to_have_text(re.compile("contribution"))
    carried = number((cell.locator("title").text_content() or "").split()[-1])
    assert carried == pytest.approx(float(norms[n - 1, n - 1]), rel=0.01)
    region.get_by_role("checkbox", name="Leave out the first position").uncheck()
    expect(region.get_by_text("The first column is hidden")).to_be_hidden()
    assert region.locator("rect").count() == n * (n + 1) // 2


def test_a_hovered_token_shows_what_it_attends_to_and_what_attends_to_it(opened, lm):
    page = opened(f"#/heads?head=L2H3&{HERE}")
    chips = page.get_by_role("region", name="L2H3").locator(".chip-token")
    expect(chips).to_have_count(7)
    chips.nth(3).hover()
    weights = lm.run(PROMPT, ("pattern",)).at("pattern", 2)[0, 3]
    for i, chip in enumerate(chips.all()):
        w = float(weights[3, i] if i <= 3 else weights[i, 3])
        shade = f"{'w' if i <= 3 else 'c'}{max(1, min(6, math.ceil(w * 6)))}" if w > 0.01 else ""
        assert (chip.get_attribute("class") or "").replace("chip-token", "").replace(" on", "").strip() == shade
    best = int(weights[6].argmax())
    score = float(unembed.circuits(lm).score_terms(PROMPT, 2, 3).scores[6, best])
    line = page.get_by_text("Score before the softmax")
    expect(line).to_be_visible()
    assert number(line.inner_text().split("softmax ")[1].split(":")[0]) == pytest.approx(score, rel=0.01)
    page.get_by_role("heading", name="Heads", exact=True).hover()
    expect(chips.nth(6)).to_have_class(re.compile(r"\bw\d"))


def test_every_head_has_a_picture_and_a_name_and_a_press_opens_it(opened, lm):
    page = opened(f"#/heads?head=L2H3&{HERE}")
    region = page.get_by_role("region", name="Patterns on the prompt")
    pictures = region.get_by_role("button", name=re.compile("^Pattern of "))
    expect(pictures).to_have_count(lm.n_layers * lm.n_heads)
    scores = unembed.circuits(lm).head_scores(seed=0, n_sequences=16, length=32).induction
    layer, head = divmod(int(scores.argmax()), lm.n_heads)
    picture = region.get_by_role("button", name=f"Pattern of L{layer}H{head}, induction")
    expect(picture).to_be_visible()
    weights = lm.run(PROMPT, ("pattern",)).at("pattern", layer)[0, head]
    alpha = picture.locator("canvas").evaluate(
        "(c) => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].filter((_, i) => i % 4 === 3)"
    )
    drawn = [(a / 255) ** 2 for a in alpha]  # the square root of a weight, both in steps of 1 / 255
    assert drawn == pytest.approx(weights.flatten().tolist(), abs=1.5 / 255)
    picture.click()
    expect(page.get_by_role("heading", name=f"L{layer}H{head} · induction head")).to_be_visible()
    expect(picture).to_have_attribute("aria-pressed", "true")


def test_arcs_are_what_comes_from_each_source_token(opened, lm):
    page = opened(f"#/heads?head=L2H3&{HERE}")
    trace = lm.trace(PROMPT)
    question = trace.question()
    found = trace.attribution(question.token, -1, question.against, by="source")
    by_source = {r.source: r.contribution for r in found.rows if (r.layer, r.index) == (2, 3)}
    arcs = page.locator(".arcs path")
    expect(arcs.first).to_be_visible()
    most = max(abs(x) for x in by_source.values())
    drawn = {}
    for arc in arcs.all():
        title = arc.locator("title").text_content() or ""
        source = int(re.search(r"\((\d+)\): ", title).group(1))
        drawn[source] = number(title.split("): ")[1].split()[0])
        sign = "plus" if by_source[source] > 0 else "minus"
        assert sign in (arc.get_attribute("class") or "")
        width = float(arc.get_attribute("stroke-width") or 0)
        assert width == pytest.approx(0.8 + 7 * abs(by_source[source]) / most, abs=0.01)
    assert drawn == pytest.approx({i: x for i, x in by_source.items() if abs(x) >= 0.02 * most}, rel=0.02, abs=6e-4)
    shown = page.get_by_text(re.compile("^Adds .* to .* over ")).inner_text()
    assert number(shown.split()[1]) == pytest.approx(sum(by_source.values()), rel=0.01, abs=6e-4)
    page.get_by_role("combobox", name="Runner-up").select_option("none")
    alone = trace.attribution(question.token, by="source")
    whole = sum(r.contribution for r in alone.rows if (r.layer, r.index) == (2, 3))
    shown = page.get_by_text(re.compile("^Adds .* to the logit of "))
    expect(shown).to_be_visible()
    assert number(shown.inner_text().split()[1]) == pytest.approx(whole, rel=0.01, abs=6e-4)


def test_a_heads_card_lists_the_other_words_that_it_raises_when_asked(opened, lm):
    page = opened(f"#/heads?head=L5H2&{HERE}")
    page.get_by_role("button", name="Other words that it raises").click()
    expected = raised_view(unembed.circuits(lm), 5, 2, 20)
    rows = page.get_by_role("row").filter(has=page.get_by_role("cell", name=expected.raises[0], exact=True))
    expect(rows.first).to_be_visible()
    expect(page.get_by_text(expected.text)).to_be_visible()


def test_a_heads_examples_are_marked_and_lead_to_a_trace(opened, lm, index):
    page = opened("#/heads?head=L3H2")
    region = page.get_by_role("region", name="Top contexts in the corpus")
    expect(page.get_by_text("of the attention of L3H2")).to_be_visible()  # what is above has its height
    expect(region.get_by_role("button", name="Find examples")).to_be_hidden()  # with an index nobody needs to ask
    found = [one for one in examples_of_heads(lm, index.text_pieces(), 3) if isinstance(one, HeadExamples)]
    for head in (2, 7):
        expect(region.get_by_text(f"L3H{head} in 3 windows")).to_be_visible()
        rows = region.locator(".trigger")
        expect(rows).to_have_count(len(found[head].examples))
        for row, one in zip(rows.all(), found[head].examples, strict=True):
            assert number(row.locator(".value").inner_text()) == pytest.approx(one.value, rel=0.01)
            assert row.locator("mark").inner_text().strip() == one.tokens[-1].strip()
            if one.source < len(one.tokens) - 1:
                assert row.locator(".from").inner_text().strip() == one.tokens[one.source].strip()
            expect(row).to_contain_text(f"document {one.document}, reads")
        if head == 2:  # the layer is read: another head of it has its examples at once
            page.get_by_role("gridcell", name=re.compile("^L3H7: ")).click()
    one = found[7].examples[0]
    region.get_by_role("button", name="Use this text as the prompt").first.click()
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value(one.prompt)
    assert f"position={one.position}" in address(page)


def test_landmarks_of_a_coefficient_and_the_way_back(opened, lm, index):
    page = opened(f"#/intervene?{HERE}&edits=L3M5:set:20@all")
    region = page.get_by_role("region", name="Edits").first
    box = region.get_by_role("spinbutton", name="Value")
    view = coefficients_view(lm, index, 3, 5)
    expect(region.locator(".ticks-row i")).to_have_count(5)
    for name, value in (
        ("99th percentile", view.high),
        ("Largest of the layer", view.layer_largest),
        ("Here", float(lm.run(PROMPT, "coefficients").at("coefficients", 3)[0, -1, 5])),
    ):
        region.get_by_role("button", name=re.compile(f"^{name} ")).click()
        expect(box).not_to_have_value("20")
        assert float(box.input_value()) == pytest.approx(value, rel=1e-3, abs=1e-6)
        expect(region.get_by_role("button", name=re.compile("^Largest of the layer "))).to_be_visible()
    slider = region.get_by_role("slider", name="Value")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(slider).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(region.get_by_role("slider", name="Value")).to_be_focused()


def test_the_tray_shows_from_which_position_an_edit_holds(opened, lm):
    page = opened(f"#/intervene?{HERE}&edits=L3M5:set:20@all&new_tokens=4")
    region = page.get_by_role("region", name="Edits").first
    region.get_by_role("combobox", name="Where").select_option("the prompt")
    expect(page.locator("#tray")).to_contain_text("at 0 to 6")
    region.get_by_role("combobox", name="Where").select_option("from a position on")
    box = region.get_by_role("spinbutton", name="First position")
    expect(box).to_have_value("6")
    box.fill("2")
    box.press("Enter")
    expect(page.locator("#tray")).to_contain_text("at 2 to 10")


def test_two_runs_are_compared(opened, lm):
    page = opened(f"#/intervene?{HERE}&edits=L3M5:set:60@all&new_tokens=8")
    page.get_by_role("button", name="Run both").click()
    expect(page.get_by_role("status").filter(has_text="generated token")).to_be_visible()
    page.get_by_role("region", name="Edits").first.get_by_role("spinbutton", name="Value").fill("-60")
    page.get_by_role("region", name="Edits").first.get_by_role("spinbutton", name="Value").press("Enter")
    expect(page.get_by_text("Changed since the last run.")).to_be_visible()
    page.get_by_role("button", name="Run both").click()
    region = page.get_by_role("region", name="Runs")
    expect(region.get_by_role("button", name=re.compile("L3M5 set −60"))).to_be_visible()
    for box in (0, 1):
        region.get_by_role("checkbox").nth(box).check()
    panes = region.locator(".text")
    expect(panes).to_have_count(2)
    texts = [lm.generate(PROMPT, [unembed.set_coefficient(3, 5, v)], max_new_tokens=8)[0] for v in (60.0, -60.0)]
    assert panes.all_inner_texts() == texts
    same = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    expect(region.get_by_text(re.compile(f"same for {same - len(PROMPT)} characters|The same text"))).to_be_visible()


def test_an_edit_changed_during_a_run_is_not_what_the_run_shows(opened):
    page = opened(f"#/intervene?{HERE}&edits=L3M5:set:60@all&new_tokens=200")
    page.get_by_role("button", name="Run both").click()
    value = page.get_by_role("region", name="Edits").first.get_by_role("spinbutton", name="Value")
    value.fill("-60")
    value.press("Enter")
    expect(page.get_by_role("button", name="Run both")).to_be_enabled(timeout=60_000)
    expect(page.get_by_text("Changed since the last run.")).to_be_visible()


def test_moving_along_the_early_exit_curve_sends_no_request(opened, lm):
    page = opened(f"#/labs/early-exit?{HERE}")
    point = page.get_by_role("slider", name="Point on the curve")
    expect(point).to_be_visible()
    page.wait_for_load_state("networkidle")
    requests = []
    page.on("request", lambda r: requests.append(r.url))
    point.focus()
    page.keyboard.press("End")
    expect(page.get_by_text(f"{lm.n_layers - 1:.2f} of {lm.n_layers} layers saved")).to_be_visible()
    top = lm.trace(PROMPT).readings(top=1).ids[:, :, 0]
    wrong = int((top[0] != top[-1]).sum())
    expect(page.get_by_role("heading", name=f"{wrong} of 7 predictions change")).to_be_visible()
    end = point.bounding_box()
    page.keyboard.press("Home")
    expect(page.get_by_text("Every token goes through all layers.")).to_be_visible()
    start = point.bounding_box()
    assert end and start
    page.mouse.move(start["x"] + 10, start["y"] + 10)
    page.mouse.down()
    page.mouse.move(end["x"] + 12, end["y"] + 12, steps=4)
    page.mouse.up()
    expect(page.get_by_role("heading", name=f"{wrong} of 7 predictions change")).to_be_visible()
    assert requests == []
    page.get_by_role("button", name=re.compile("^Trace position")).first.click()
    expect(page.get_by_role("grid")).to_be_visible()
    assert "layer=0" in address(page)


def test_the_curve_is_saved_as_it_is_drawn(opened, lm):
    page = opened(f"#/labs/early-exit?{HERE}")
    expect(page.get_by_role("slider", name="Point on the curve")).to_be_visible()
    page.keyboard.press("x")
    with page.expect_download() as download:
        page.get_by_role("menuitem", name=re.compile("CSV")).click()
    lines = download.value.path().read_text().splitlines()[1:]  # below where it comes from
    assert "threshold" in lines[0] and lines[1].startswith("never,0,0,0")
    found = unembed.early_exit.examples_of_prefixes(lm, [lm.encode(PROMPT)[0][: i + 1] for i in range(7)])
    dial = list(unembed.early_exit.untrained(lm, "margin").tradeoff(found, 24).rows())
    assert len(lines) == len(dial) + 1
    assert [float(line.split(",")[1]) for line in lines[1:]] == pytest.approx([row["disagreement"] for row in dial])


def test_a_concept_is_scaled_and_its_cost_is_shown(opened, served):
    for index in (21, 22):
        served.session.index.add_label(3, index, "to be damped", author="gil")
    page = opened(f"#/labs/toxicity?{HERE}")
    page.get_by_role("combobox", name="What is changed").select_option("concept to be damped, 2")
    dial = page.get_by_role("slider", name="How much of each memory is left")
    expect(page.get_by_text("× 0: off")).to_be_visible()
    page.get_by_role("textbox", name="Prompts, one a line").fill(f"{PROMPT}\nShe said")
    page.get_by_role("spinbutton", name="Samples").fill("1")
    with page.expect_request("**/labs/suppress") as sent:
        page.get_by_role("button", name="Sample and score").click()
    edits = sent.value.post_data_json["edits"]
    assert [(e["layer"], e["index"], e["action"], e["value"]) for e in edits] == [
        (3, 21, "scale", 0),
        (3, 22, "scale", 0),
    ]
    assert sent.value.post_data_json["further"] == ["She said"]
    expect(page.get_by_role("table", name="Mean toxicity by prompt")).to_be_visible()
    dial.fill("1")
    expect(page.get_by_text("× 1: unchanged")).to_be_visible()
    page.get_by_role("button", name="Sample and score").click()
    table = page.get_by_role("table", name=re.compile("^Toxicity by"))
    expect(table).to_be_visible()
    expect(table).not_to_contain_text("…")  # the price comes last
    base, changed = (row.get_by_role("cell").all_inner_texts()[1:] for row in table.get_by_role("row").all()[1:])
    assert base == changed and len(base) == 2
    expect(page.get_by_text("may be offensive")).to_be_visible()
    assert page.get_by_text("She said").count() == 1


def test_the_help_of_a_pane_opens_on_request(opened):
    page = opened(f"#/labs/early-exit?{HERE}")
    page.get_by_text("What am I looking at?").click()
    expect(page.get_by_text("counted in layers, not in time.")).to_be_visible()


MORE = {
    "contexts": ("#/memory?memory=L3M5", "Examples by quantile"),
    "effects": ("#/heads?head=L2H3", "OV: output when attending to"),
    "landmarks": ("#/intervene?edits=L3M5:set:20@0,1,2;L2H3:scale:0@all", "Largest of the layer"),
    "early exit": ("#/labs/early-exit?prompt=one+two+three", "predictions change"),
    "toxicity": ("#/labs/toxicity?edits=L3M5:set:20@all", "Suppression and its cost"),
}


@pytest.mark.parametrize("screen", list(MORE))
def test_no_violation_in_both_themes(opened, screen):
    where, ready = MORE[screen]
    page = opened(where)
    page.locator("#main").get_by_text(ready).filter(visible=True).first.wait_for()
    if screen == "effects":
        page.get_by_role("radio", name="Effect, prompt").click()
        page.get_by_role("slider", name="Show top n heads").fill("9")
        page.get_by_text("windows (").wait_for()
    page.evaluate("document.querySelectorAll('#main details').forEach((el) => (el.open = true))")
    page.wait_for_timeout(300)
    assert_no_violation(page)


def test_the_card_of_a_head_begins_with_what_it_does_here(opened, lm):
    page = opened(f"#/heads?head=L5H0&prompt={COOK.replace(' ', '+')}")
    here = page.get_by_role("region", name="What the head does here")
    trace = lm.trace(COOK)
    question = trace.question()
    update = next(one for one in trace.head_updates(5, -1, question.token, question.against) if one.index == 0)
    weights = lm.run(COOK, ("pattern",)).at("pattern", 5)[0, 0, -1]
    best = int(weights.argmax())
    read = lm.token_strings(lm.encode(COOK)[0])[best].replace(" ", "·")
    expect(here).to_contain_text(f"Attends to {read} ({best}) {100 * float(weights[best]):.1f} %")
    assert number(here.locator("b").first.inner_text()) == pytest.approx(update.score, abs=0.006)
    expect(here).to_contain_text("promotes " + " ".join(one.replace(" ", "·") for one in update.top_tokens[:3]))
    here.get_by_role("button", name="Knock out").click()
    expect(page.get_by_role("heading", name="1 edit")).to_be_visible()


def test_a_click_on_any_head_leaves_its_card_in_view(opened):
    page = opened("#/heads?head=L5H0")
    matrix = page.get_by_role("grid", name=re.compile("^Heads by"))
    matrix.get_by_role("gridcell", name=re.compile("^L0H3")).click()
    expect(page.get_by_role("region", name=re.compile("^L0H3"))).to_be_in_viewport()
    expect(page.get_by_role("region", name="What the head does here")).to_be_in_viewport()
    narrow = opened("#/heads?head=L5H0", width=390)
    narrow.get_by_role("grid", name=re.compile("^Heads by")).get_by_role("gridcell", name=re.compile("^L0H3")).click()
    expect(narrow.get_by_role("region", name="What the head does here")).to_be_in_viewport()
