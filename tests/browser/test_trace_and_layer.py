"""What a trace found, tokens that are followed, the race and its lanes, what edits reach, a layer's heads, timings."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import address
from tests.browser.test_journeys import AT, PROMPT, grid, the_sum
from tests.browser.test_ranges_links_tour import inspector
from unembed.trace import TraceSettings, trace_view
from unembed.trace.words import describe_events

LITTLE = "Once upon a time there was a little"
AT_LITTLE = f"#/trace?prompt={LITTLE.replace(' ', '+')}"
AT_LAYER = f"#/layer?layer=3&prompt={LITTLE.replace(' ', '+')}"


def shown(text):
    """A token as the page names it."""
    return text.replace(" ", "·")


def names(page):
    """The sentences of the cells of all layers."""
    every = page.locator(".cell").evaluate_all("cells => cells.map(c => c.getAttribute('aria-label'))")
    return [name for name in every if not name.startswith("Embedding")]


def listening(page):
    """What is asked of the server from now on."""
    requests = []
    page.on("request", lambda r: requests.append(r.url) if "/api/" in r.url else None)
    return requests


def settled_at(trace):
    """The heading of the cell in which the prediction saturates."""
    event = next(e for e in trace.events(-1) if e.kind == "saturation")
    return f"Layer {event.layer}, {'FFN' if event.cause == 'ffn' else 'attention'}"


def test_findings_link_to_the_screens_they_name(opened, lm, index):
    page = opened(AT_LITTLE)
    expect(the_sum(page)).to_be_visible()
    rows = page.get_by_role("list", name="Findings").get_by_role("button")
    expect(rows).to_have_count(3)
    trace = lm.trace(LITTLE)
    rows.filter(has_text="on.").first.click()
    expect(inspector(page).get_by_role("heading", name=settled_at(trace))).to_be_visible()
    settings = TraceSettings(LITTLE, -1, 5, "final", False, (), None)
    view, _ = trace_view(
        lm, settings, layer=None, memories=2, token=None, point=None, tracing=lm.trace, index=index, dominant=2
    )
    expect(rows).to_have_text([one.sentence for one in view.findings])
    part = view.findings[0]
    rows.first.click()
    name = {"head": f"L{part.layer}H{part.index}", "memory": f"L{part.layer}M{part.index}"}.get(part.kind)
    heading = f"Layer {part.layer}" if name is None else name
    expect(page.get_by_role("heading", name=heading).first).to_be_visible()


def effects(rows):
    """The effects of a table of writers, as it writes them, by name."""
    return {
        row.get_by_role("link").inner_text(): float(row.locator(".effect").inner_text().replace("−", "-"))
        for row in rows.all()
    }


def test_a_target_and_a_runner_up_drive_every_pane(opened, lm, index):
    page = opened(f"{AT_LITTLE}&by=memory")
    question = page.get_by_role("group", name="Target and runner-up")
    books = page.get_by_role("region", name="Logit attribution")
    trace = lm.trace(LITTLE)
    first, second = trace.question().token, trace.question().against

    def expected(question, order="effect", **more):
        return trace.memory_effects(question, top=20, index=index, order=order, **more)

    def agree(question):
        rows = books.locator(".updates").first.locator("tbody tr")
        found = expected(question)
        expect(rows.get_by_role("link")).to_have_text([f"L{r.layer}M{r.index}" for r in found.rows])
        shown_ = effects(rows)
        assert shown_ == pytest.approx({f"L{r.layer}M{r.index}": r.score for r in found.rows}, abs=6e-3)

    expect(the_sum(page)).to_be_visible()
    assert question.get_by_role("combobox", name="Target").input_value() == f"#{first}"
    assert question.get_by_role("combobox", name="Runner-up").input_value() == f"#{second}"
    agree(trace.question())
    question.get_by_role("combobox", name="Runner-up").select_option("none")
    expect(inspector(page).get_by_text("the logit of")).to_be_visible()
    agree(trace.question(alone=True))
    assert "single=1" in address(page)
    question.get_by_role("combobox", name="Runner-up").select_option("another")
    box = question.get_by_role("textbox", name="Runner-up: any token")
    box.fill("house")
    box.press("Enter")
    house = lm.single_token(" house")
    expect(question.get_by_role("combobox", name="Runner-up")).to_have_value(f"#{house}")
    agree(trace.question(against=house))
    finding = page.get_by_role("list", name="Findings").get_by_role("button").first
    expect(finding).to_contain_text("the difference of their logits")
    other = trace.prediction.tolist()[0]  # any token that is not among the first ten
    question.get_by_role("combobox", name="Target").select_option(index=2)
    chosen = int(question.get_by_role("combobox", name="Target").input_value()[1:])
    assert chosen not in (first, other)
    agree(trace.question(chosen, house))
    page.get_by_role("radio", name="Head", exact=True).click()
    by_head = trace.attribution(chosen, against=house, by="head").rows
    heads = sum(row.contribution for row in by_head if row.label.startswith("head "))
    expect(the_sum(page)).to_contain_text("Sum " + signless(heads))
    page.get_by_role("button", name="Open this layer").click()
    rows = page.locator(".updates").first.locator("tbody tr")
    last = lm.n_layers - 1
    layer = expected(trace.question(chosen, house), layers=[last])
    expect(rows).to_have_count(len(layer.rows))
    assert effects(rows) == pytest.approx({f"L{r.layer}M{r.index}": r.score for r in layer.rows}, abs=6e-3)
    page.get_by_role("radio", name="Heads", exact=True).click()
    heads = trace.head_updates(last, -1, chosen, house)
    expect(rows).to_have_count(lm.n_heads)
    assert effects(rows) == pytest.approx({f"L{last}H{h.index}": h.score for h in heads}, abs=6e-3)


def signless(x: float) -> str:
    """A number between 0.01 and 100 as the page writes it."""
    digits = 1 if abs(x) >= 10 else 2 if abs(x) >= 1 else 3
    return f"{x:.{digits}f}".replace("-", "−")


def test_memories_that_are_always_on_are_folded_and_the_mean_is_taken_away(opened, lm, index):
    page = opened(f"{AT_LAYER.replace('layer=3', 'layer=5')}&sort=deviation")
    trace = lm.trace(LITTLE)
    found = trace.memory_effects(top=20, index=index, order="deviation", layers=[5])
    rows = page.locator(".updates").first.locator("tbody tr")
    expect(rows).to_have_count(20)
    assert effects(rows) == pytest.approx({f"L5M{r.index}": r.deviation for r in found.rows}, abs=6e-3)
    assert list(effects(rows)) == [f"L5M{r.index}" for r in found.rows]
    fold = page.locator(".always-on")
    assert found.always_on and not {f"L5M{r.index}" for r in found.always_on} & set(effects(rows))
    expect(fold.get_by_role("table")).to_be_hidden()
    fold.locator("summary").click()
    assert list(effects(fold.locator("tbody tr"))) == [f"L5M{r.index}" for r in found.always_on][:20]


def test_one_token_is_found_with_or_without_its_space_and_several_are_listed(opened, lm):
    page = opened(AT_LITTLE)
    question = page.get_by_role("group", name="Target and runner-up")
    question.get_by_role("combobox", name="Target").select_option("another")
    box = question.get_by_role("textbox", name="Target: any token")
    box.fill("extraordinarily unlikely")
    question.get_by_role("button", name="Use").click()
    expect(page.locator("#live")).to_contain_text("tokens")
    box.fill("·boy")
    box.press("Enter")
    expect(question.get_by_role("combobox", name="Target")).to_have_value(f"#{lm.single_token(' boy')}")


def test_twenty_sub_updates_fit_on_one_screen(opened):
    page = opened(AT_LAYER)
    rows = page.locator(".updates").first.locator("tbody tr")
    expect(rows).to_have_count(20)
    boxes = [row.bounding_box() for row in rows.all()]
    assert all(box["height"] <= 30 for box in boxes), "one line each"
    assert boxes[-1]["y"] + boxes[-1]["height"] - boxes[0]["y"] < 620


def test_a_followed_token_shades_every_cell_and_is_requested_once(opened, lm):
    boy = lm.single_token(" boy")
    page = opened(f"{AT_LITTLE}&pins={boy}")
    expect(the_sum(page)).to_be_visible()
    page.get_by_role("radio", name="Followed token").click()
    expect(page.locator(".legend")).to_contain_text("of ·boy")
    found = lm.trace(LITTLE).ranks_and_probabilities(boy)[1]
    for name in names(page):
        layer, position = map(int, re.match(r"Layer (\d+) after FFN, position (\d+) ", name).groups())
        p = float(found[layer, position])
        percent = f"{100 * p:.1f} %" if p >= 0.001 else "<0.1 %"
        assert name.split(", ·boy ")[1].split(",")[0] == percent
        quarter = page.get_by_role("gridcell", name=name, exact=True).get_attribute("class")
        assert f"q{int(16 * p**0.5 + 0.5)} " in f"{quarter} "
    requests = listening(page)
    page.get_by_role("radio", name="Probability", exact=True).first.click()
    page.get_by_role("radio", name="Followed token").click()
    expect(page.locator(".legend")).to_contain_text("of ·boy")
    assert requests == []


def _led_by_turns(trace) -> bool:
    question = trace.question()
    first, second = (trace.ranks_of(token)[:, -1] for token in (question.token, question.against))
    return bool((first > second).any())


def test_token_ranks_in_probabilities_send_no_request_and_show_who_overtakes_whom(opened, lm):
    prompts = ("He was born on 16", "He died on 4", "They met again on 23", "The lake is 15", "The old man said")
    prompt, trace = next((text, run) for text in prompts if _led_by_turns(run := lm.trace(text)))
    page = opened(f"#/trace?prompt={prompt.replace(' ', '+')}")
    expect(the_sum(page)).to_be_visible()
    requests = listening(page)
    page.get_by_role("radiogroup", name="Scale").get_by_role("radio", name="Probability").click()
    first, second = trace.question().token, trace.question().against
    one, other = (shown(text) for text in lm.token_strings([first, second]))
    last = float(trace.ranks_and_probabilities(first)[1][-1, -1])
    chart = page.get_by_role("img", name=re.compile(f"^Probability after each layer. {one}: .*{100 * last:.2g} %$"))
    expect(chart).to_be_visible()
    assert requests == []
    page.get_by_role("button", name=f"Compare with {other}").click()
    ranks = [trace.ranks_of(t)[:, -1].tolist() for t in (first, second)]
    since = 1 + max(n for n in range(lm.n_layers) if ranks[0][n] > ranks[1][n])
    expect(
        page.get_by_text(
            f"{one} passes {other} for good in layer {since}: after layer {since}, "
            f"rank {ranks[0][since]} against {ranks[1][since]}, "
        )
    ).to_be_visible()
    assert f"pins={second}" in address(page)
    page.get_by_role("button", name="Clear pins").click()
    expect(page.get_by_text(f"passes {other}")).to_be_hidden()


def test_events_are_drawn_in_lanes_with_their_sentence(opened, lm):
    page = opened(AT_LITTLE)
    expect(the_sum(page)).to_be_visible()
    trace = lm.trace(LITTLE)
    girl = lm.single_token(" girl")
    expected = {
        (m.cause, f"Layer {m.layer} {'FFN' if m.cause == 'ffn' else 'attention'}") for m in trace.rank_changes(girl, -1)
    }
    for cause, name in (("attention", "attention"), ("ffn", "FFN")):
        lane = page.get_by_role("group", name=name, exact=True).get_by_role("button")
        labels = lane.evaluate_all("all => all.map(b => b.getAttribute('aria-label').split(':')[0])")
        assert sorted(labels) == sorted(where for by, where in expected if by == cause)
    marker = page.get_by_role("group", name="saturation").get_by_role("button")
    expect(marker).to_have_count(1)
    page.get_by_role("group", name="attention", exact=True).get_by_role("button").first.focus()
    sentence = describe_events(lm, trace.rank_changes(girl, -1))[0].sentence
    assert sentence.startswith("Layer 0 attention: ·girl rises from ")
    expect(page.locator(".told")).to_have_text(sentence)
    marker.click()
    expect(inspector(page).get_by_role("heading", name=settled_at(trace))).to_be_visible()
    page.keyboard.press("e")
    expect(marker).to_be_hidden()
    expect(page.locator(".glyph").first).to_be_hidden()
    other = opened("#" + address(page).split("#")[1])
    expect(the_sum(other)).to_be_visible()
    expect(other.locator(".lanes")).to_be_hidden()


def test_big_moves_of_the_answer_are_marked(opened, lm):
    page = opened(f"{AT_LITTLE}&stages=both")
    expect(the_sum(page)).to_be_visible()
    trace = lm.trace(LITTLE)
    mid, post = (trace.prediction_ranks(point) for point in ("resid_mid", "resid_post"))
    events = {(e.layer, e.position, "ffn" if e.cause == "ffn" else "attention") for e in trace.events()}
    expected = set()
    for p in range(len(trace)):
        was = int(trace.prediction_ranks("resid_pre")[0, p])
        for n in range(lm.n_layers):
            for cause, places in (("attention", mid), ("ffn", post)):
                now = int(places[n, p])
                if (was >= 8 * now or now >= 8 * was) and (n, p, cause) not in events:
                    expected.add((n, p, cause, "rise" if now < was else "fall"))
                was = now
    found = set()
    for name in names(page):
        if big := re.search(r"a big (rise|fall) here", name):
            n, stage, p = re.match(r"Layer (\d+) after (\w+), position (\d+) ", name).groups()
            found.add((int(n), int(p), stage.lower(), big[1]))
    assert found == expected and expected


def test_the_first_layer_on_top(opened, lm):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    page.get_by_text("Layout", exact=True).click()
    page.get_by_role("checkbox", name="First layer on top").check()
    expect(grid(page).get_by_role("rowheader")).to_have_text(["Embedding", *(f"Layer {n}" for n in range(lm.n_layers))])
    grid(page).focus()
    page.keyboard.press("ArrowUp")
    expect(inspector(page).get_by_role("heading", name=f"Layer {lm.n_layers - 2}, FFN")).to_be_visible()
    page.keyboard.press("Shift+ArrowUp")
    expect(
        inspector(page).get_by_role("heading", name=f"Layers {lm.n_layers - 3} to {lm.n_layers - 2}, together")
    ).to_be_visible()
    other = opened("#" + address(page).split("#")[1])
    expect(grid(other).get_by_role("rowheader").first).to_have_text("Embedding")


def test_what_edits_can_reach_is_tinted_and_nothing_else_changes(opened):
    page = opened(f"{AT}&edits=L3M5:set:60@2&diff=1")
    expect(the_sum(page)).to_be_visible()
    classes = page.locator(".cell").evaluate_all("cells => cells.map(c => [c.getAttribute('aria-label'), c.className])")
    for name, cls in classes:
        n, p = map(int, re.match(r"(?:Layer (\d+) after FFN|Embedding), position (\d+) ", name).groups("-1"))
        reached = (n > 3 and p >= 2) or (n == 3 and p == 2)
        assert ("cone" in cls) is reached
        assert reached or ("still" in cls and "moved" not in cls)
    assert any("moved" in cls for _, cls in classes)


def test_a_click_with_shift_pins(opened, lm):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    grid(page).get_by_role("gridcell", name=re.compile("^Layer 2 after FFN, position 3 ")).click(modifiers=["Shift"])
    token = int(lm.trace(PROMPT).readings().ids[2, 3, 0])
    expect(page.get_by_role("button", name="Clear pins")).to_be_visible()
    assert f"pins={token}" in address(page) and "position=3" not in address(page)


def test_a_layers_heads_and_memories_by_effect(opened, lm, index):
    trace = lm.trace(LITTLE)  # before the page runs the model
    question = trace.question()
    heads = trace.head_updates(3, -1, question.token, question.against)
    memories = trace.memory_effects(question, top=20, layers=[3], index=index).rows
    page = opened(AT_LAYER)
    rows = page.locator(".updates").first.locator(".sub-update")
    expect(rows).to_have_count(20)
    page.get_by_role("radio", name="Heads", exact=True).click()
    expect(rows).to_have_count(lm.n_heads)
    page.get_by_role("combobox", name="Rank by").select_option("size")
    expect(rows.get_by_role("link")).to_have_text([f"L3H{h.index}" for h in heads])
    # What the head promotes, or suppresses where its effect is negative.
    first = heads[0].top_tokens if heads[0].score >= 0 else heads[0].bottom_tokens
    assert all(shown(token) in rows.first.inner_text() for token in first[:3])
    page.get_by_role("radio", name="Both", exact=True).click()
    page.get_by_role("combobox", name="Rank by").select_option("effect")
    expect(rows).to_have_count(20 + lm.n_heads)
    found = {f"L3H{h.index}": h.score for h in heads} | {f"L3M{u.index}": u.score for u in memories}
    ordered = sorted(found, key=lambda name: -abs(found[name]))
    assert rows.get_by_role("link").all_inner_texts() == ordered
    for name, row in zip(ordered[:6], rows.all()[:6], strict=True):
        assert row.locator(".bar.minus" if found[name] < 0 else ".bar.plus").count() == 1
    page.get_by_role("combobox", name="Show").select_option("against")
    expect(rows).to_have_count(sum(x <= 0 for x in found.values()))
    other = opened("#" + address(page).split("#")[1])
    expect(other.locator(".updates").first.locator(".sub-update")).to_have_count(sum(x <= 0 for x in found.values()))
    rows.get_by_role("link", name=re.compile("^L3H")).first.click()
    expect(page.get_by_role("heading", name=re.compile(r"^L3H\d")).first).to_be_visible()


def test_a_head_is_switched_off_from_the_layer(opened, lm):
    page = opened(f"{AT_LAYER}&part=heads")
    first = lm.trace(LITTLE).head_updates(3)[0].index
    page.get_by_role("button", name=f"Switch L3H{first} off").click()
    expect(page.get_by_role("heading", name="1 edit")).to_be_visible()
    assert f"edits=L3H{first}" in address(page)


def test_candidates_show_how_many_ranks_they_moved(opened, lm):
    page = opened(AT_LAYER)
    column = page.locator(".sandwich > div").nth(2).get_by_role("listitem")
    expect(column).to_have_count(10)
    trace = lm.trace(LITTLE)
    for i, token in enumerate(trace.readings().ids[3, -1].tolist()):
        moved = int(trace.ranks_of(token, "resid_mid", position=7)[3, 0]) - 1 - i
        expected = f"▲{moved}" if moved > 0 else f"▼{-moved}" if moved else ""
        assert "".join(column.nth(i).locator(".delta").all_inner_texts()) == expected


def test_timings_are_the_pages_own_spans(opened):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    for _ in range(4):
        page.keyboard.press("[")
        page.wait_for_timeout(60)
    page.keyboard.press("m")
    page.wait_for_function("performance.getEntriesByName('recolour').length === 1")
    page.wait_for_function("performance.getEntriesByName('select').length === 4")
    page.keyboard.press("Control+k")
    page.keyboard.type("timings")
    page.keyboard.press("Enter")
    rows = page.get_by_role("dialog", name="Timings").get_by_role("row")
    cells = rows.filter(has_text="select").get_by_role("cell").all_inner_texts()
    durations = page.evaluate("performance.getEntriesByName('select').map(e => e.duration).sort((a, b) => a - b)")
    assert int(cells[1]) == 4 and int(cells[5]) == 50
    assert int(cells[2]) == pytest.approx(durations[1], abs=0.51) and int(cells[4]) == pytest.approx(
        durations[3], abs=0.51
    )


def test_the_inspector_is_widened_and_folded_by_keyboard_and_stays_so(opened, lm):
    page = opened(AT)
    expect(the_sum(page)).to_be_visible()
    narrow = inspector(page).bounding_box()["width"]
    inspector(page).get_by_role("button", name="Wider").focus()
    page.keyboard.press("Enter")
    expect(inspector(page).get_by_role("button", name="Hide")).to_be_focused()
    wide = inspector(page).bounding_box()["width"]
    assert wide > narrow + 50
    cell = grid(page).get_by_role("gridcell").first
    assert cell.bounding_box()["x"] < inspector(page).bounding_box()["x"]
    page.reload()
    expect(the_sum(page)).to_be_visible()
    assert inspector(page).bounding_box()["width"] == wide
    before = grid(page).bounding_box()["width"]
    inspector(page).get_by_role("button", name="Hide").press("Enter")
    show = inspector(page).get_by_role("button", name="Show")
    expect(show).to_be_focused()
    expect(inspector(page).get_by_role("heading")).to_have_count(0)
    assert grid(page).bounding_box()["width"] > before + wide - 200
    head = page.locator(".grid-token").last
    page.wait_for_function("el => el.getBoundingClientRect().right > innerWidth - 400", arg=head.element_handle())
    page.reload()
    expect(the_sum(page)).to_be_visible()
    show.click()
    expect(inspector(page).get_by_role("heading", name=f"Layer {lm.n_layers - 1}, FFN")).to_be_visible()
    assert inspector(page).bounding_box()["width"] == narrow


@pytest.mark.parametrize("width", [1280, 390])
def test_the_inspector_opens_alone_with_the_same_selection(opened, width):
    page = opened(AT, width=width)
    expect(the_sum(page)).to_be_visible()
    grid(page).get_by_role("gridcell", name=re.compile("^Layer 2 after FFN, position 3 ")).click()
    expect(inspector(page).get_by_role("heading", name="Layer 2, FFN")).to_be_visible()
    with page.context.expect_page() as popped:
        inspector(page).get_by_role("link", name="On its own page").click()
    alone = popped.value
    expect(inspector(alone).get_by_role("heading", name="Layer 2, FFN")).to_be_visible()
    expect(inspector(alone).get_by_text("position 3")).to_be_visible()
    expect(grid(alone)).to_be_hidden()
    assert alone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    alone.keyboard.press("]")
    expect(inspector(alone).get_by_role("heading", name="Layer 3, FFN")).to_be_visible()
    inspector(alone).get_by_role("link", name="Whole screen").click()
    expect(grid(alone)).to_be_visible()
    expect(inspector(alone).get_by_role("heading", name="Layer 3, FFN")).to_be_visible()


def test_going_back_brings_the_prompt_back_into_the_box_that_was_typed_in(opened):
    page = opened("#/trace?prompt=The first month")
    box = page.get_by_role("textbox", name="Prompt", exact=True)
    expect(box).to_have_value("The first month")
    expect(page.locator(".grid-token")).to_have_count(3)
    box.fill("She put the book on")
    box.press("Enter")
    expect(page.locator(".grid-token").first).to_contain_text("She")
    box.focus()
    page.go_back()
    expect(box).to_have_value("The first month")
    expect(page.locator(".grid-token")).to_have_count(3)


def test_the_picture_of_the_model_shows_what_each_part_adds_and_leads_there(opened, lm):
    page = opened(AT_LITTLE)
    picture = page.get_by_role("group", name="Where in the model")
    expect(picture).to_be_visible()
    trace = lm.trace(LITTLE)
    question = trace.question()
    found = trace.attribution(question.token, against=question.against)
    parts = picture.get_by_role("button")
    expect(parts).to_have_count(2 * lm.n_layers)
    added = {(n, kind): 0.0 for n in range(lm.n_layers) for kind in ("Attention", "FFN")}
    for row in found.rows:
        if row.layer is not None:
            added[row.layer, "FFN" if row.label.startswith("ffn") else "Attention"] += row.contribution
    for part in parts.all():
        label = re.match(r"Layer (\d+) (\w+) adds ([+−]?[\d.]+) to ·\w+ over ·\w+$", part.get_attribute("aria-label"))
        assert label, part.get_attribute("aria-label")
        number = float(label[3].replace("−", "-"))
        assert number == pytest.approx(added[int(label[1]), label[2]], abs=6e-3)
    expect(picture.locator("[aria-current]")).to_have_text(re.compile("^FFN"))
    picture.get_by_role("button", name=re.compile("^Layer 2 Attention ")).click()
    expect(inspector(page).get_by_role("heading", name="Layer 2, attention")).to_be_visible()
    expect(picture.locator("[aria-current]")).to_have_attribute("aria-label", re.compile("^Layer 2 Attention "))


@pytest.mark.parametrize("where", ["trace", "layer", "memory"])
def test_a_narrow_window_cuts_nothing_off(opened, where, lm):
    page = opened(f"#/{where}?prompt={LITTLE.replace(' ', '+')}&memory=L5M278", width=390)
    page.wait_for_load_state("networkidle")
    wide = page.evaluate(
        """() => [...document.querySelectorAll("#main *")].filter((el) => {
          const box = el.getBoundingClientRect();
          const scrolls = el.parentElement.closest(".scroll, .grid, .architecture, .updates, .wired, select, svg");
          return box.width && box.right > innerWidth + 1 && !scrolls && !el.closest(".toks");
        }).map((el) => el.className || el.tagName).slice(0, 5)"""
    )
    assert wide == []


def test_total_effects_are_shown_with_direct_ones_in_the_attribution(opened, lm):
    trace = lm.trace(LITTLE)  # before the page runs the model
    question = trace.question()
    attributions = {
        by: trace.attribution(question.token, against=question.against, by=by).with_effects(14).rows
        for by in ("component", "head")
    }
    page = opened(f"#/trace?prompt={LITTLE.replace(' ', '+')}")
    books = page.get_by_role("region", name="Logit attribution")
    expect(books.get_by_role("listitem").first).to_be_visible()
    books.get_by_role("checkbox", name="Total effects").check()
    for by, name in (("component", "Component"), ("head", "Head")):
        books.get_by_role("radio", name=name).click()
        found = attributions[by]
        for n in (1, 2):  # the first writer of the components is the first of the heads too
            expect(books.get_by_role("row").nth(n)).to_contain_text(found[n - 1].label)
        rows = books.get_by_role("row").all()[1:]
        assert len(rows) == 14
        for row, one in zip(rows, found, strict=True):
            label, direct, total, note = [cell.inner_text() for cell in row.get_by_role("cell").all()]
            assert (label, note) == (one.label, one.note)
            assert float(direct.replace("\u2212", "-")) == pytest.approx(one.direct, abs=0.006)
            assert (total == "") == (one.total is None)
            if one.total is not None:
                assert float(total.replace("\u2212", "-")) == pytest.approx(one.total, abs=0.006)
    other = opened("#" + address(page).split("#")[1])
    expect(other.get_by_role("region", name="Logit attribution").get_by_role("checkbox")).to_be_checked()
    books.get_by_role("radio", name="Source").click()
    expect(books.get_by_role("checkbox")).to_be_hidden()
