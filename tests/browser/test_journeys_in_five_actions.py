"""What a new user comes for, each in at most five actions: the visitor of each journey counts them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page, expect

import unembed
from tests.browser.conftest import LINES, Served
from tests.browser.visitor import Visitor
from tests.cli.conftest import save_model
from unembed.index.memory_search import search

STORY = "Once upon a time there was a little"
BORN = "He was born on 16"
PUBLISHED = Path(__file__).parents[1] / "data/models/stories260k"


def number(text: str) -> float:
    """A number as the page writes it."""
    return float(text.replace("−", "-").replace("+", "").replace("%", "").replace(",", "").strip())


def screen(page: Page, name: str):
    """The link to a screen."""
    return page.get_by_role("navigation", name="Screens").get_by_role("link", name=name)


@pytest.fixture(scope="module", params=["wren", "attn-2l"])
def anyone(request, served) -> Iterator[Served]:
    """An explorer of the embedded model, and one of a model of attention only."""
    if request.param == "wren":
        yield served
        return
    found = Served(unembed.load(request.param))
    yield found
    found.stop()


def test_why_this_token_and_not_that(opened, lm):
    page = opened()
    someone = Visitor(page)
    someone.type(page.get_by_role("textbox", name="Prompt"), STORY)
    expect(page.get_by_label("Predictions of the next token")).to_contain_text("·girl")
    someone.choose(page.get_by_role("combobox", name="Runner-up"), "·boy (runner-up)")
    someone.click(page.get_by_role("radio", name="Memory"))
    trace = unembed.load().trace(STORY)  # not by the server's model, which may be running
    girl, boy = (lm.encode(word)[0, 0].item() for word in (" girl", " boy"))
    question = trace.question(girl, boy)
    first = trace.memory_effects(question, -1, 5).rows[0]
    row = page.locator(".sub-update").filter(has=page.get_by_role("link", name=f"L{first.layer}M{first.index}"))
    expect(row.locator(".effect")).to_have_text(f"{first.score:+.3f}".replace("-", "−"))  # not of the first question
    someone.click(row.get_by_role("link"))
    expect(page.get_by_role("heading", level=1)).to_have_text(f"L{first.layer}M{first.index}")


def test_why_this_token_and_not_that_on_a_small_published_llama(opened):
    served, lm = Served(unembed.load(PUBLISHED)), unembed.load(PUBLISHED)  # two: the server runs its own meanwhile
    try:
        page = opened(at=served.address)
        someone = Visitor(page)
        someone.type(page.get_by_role("textbox", name="Prompt"), STORY)
        trace = lm.trace(STORY)
        first, _, third = (int(token) for token in lm.run(STORY).logits[0, -1].topk(3).indices)
        picker = page.get_by_role("combobox", name="Runner-up")
        expect(picker.locator(f"option[value='#{third}']")).to_be_attached()
        someone.choose(picker, picker.locator(f"option[value='#{third}']").inner_text())
        someone.click(page.get_by_role("radio", name="Memory"))
        most = trace.memory_effects(trace.question(first, third), -1, 5).rows[0]
        link = page.get_by_role("link", name=f"L{most.layer}M{most.index}", exact=True)
        row = page.get_by_role("region", name="Logit attribution").locator(".sub-update").filter(has=link)
        expect(row.locator(".effect")).to_have_text(f"{most.score:+.3f}".replace("-", "−"))  # not of the first question
        someone.click(row.get_by_role("link"))
        expect(page.get_by_role("heading", level=1)).to_have_text(f"L{most.layer}M{most.index}")
        page.close()
    finally:
        served.stop()


def test_find_a_theme_and_silence_it(opened, served, lm):
    page = opened()
    someone = Visitor(page)
    someone.click(page.get_by_role("button", name="Find a theme and silence it"))
    someone.click(page.get_by_role("checkbox", name="Choose all"))
    someone.click(page.get_by_role("button", name="Switch off"))
    someone.click(page.get_by_role("button", name="Run and compare"))
    expect(page.get_by_text("Diverges at generated token")).to_be_visible()
    hits = search(lm, served.session.index, "January", top=60).hits
    edits = [unembed.scale_coefficient(hit.layer, hit.index, 0.0) for hit in hits]
    month = lm.run(BORN).logits[0, -1].argmax()
    usual, edited = (lm.run(BORN, edits=some).logits[0, -1].softmax(-1)[month] for some in ([], edits))
    assert edited < 0.8 * usual, "the month is less likely"
    panes = page.locator(".pair .text")
    base, silenced = (lm.generate(BORN, some, max_new_tokens=30)[0] for some in ([], edits))
    expect(panes.nth(0)).to_have_text(base, use_inner_text=True)
    expect(panes.nth(1)).to_have_text(silenced, use_inner_text=True)


def test_find_an_induction_head_on_ones_own_text(opened, anyone):
    text, lm = (
        "the quick brown fox sleeps",
        unembed.load(anyone.session.lm.name),
    )  # not the server's, which it runs meanwhile
    page = opened(at=anyone.address)
    someone = Visitor(page)
    someone.click(screen(page, "Heads"))
    someone.type(page.get_by_role("textbox", name="Text to repeat"), text)
    scores = unembed.circuits(lm).head_scores(seed=0, n_sequences=16, length=32).induction
    layer, head = divmod(int(scores.argmax()), lm.n_heads)
    region = page.get_by_role("region", name="Repeated-token (induction) test")
    shown = region.get_by_text(re.compile(f"of the attention of L{layer}H{head} is on the outlined cells"))
    expect(shown).to_be_visible()
    expect(region.locator("rect.on")).to_have_count(lm.encode(text).shape[1])
    once = lm.encode(text)
    n = once.shape[1]
    weights = lm.run(torch.cat([once, once], dim=1), ("pattern",)).at("pattern", layer)[0, head]
    stripe = weights[torch.arange(n, 2 * n), torch.arange(1, n + 1)]  # to the token after the same one before
    assert number(shown.inner_text().split("%")[0]) == pytest.approx(100 * float(stripe.mean()), abs=0.051)


@pytest.fixture
def labelled(lm, tmp_path) -> Iterator[Served]:
    """An explorer whose index has no labels yet."""
    found = Served(lm, unembed.Index.build(lm, LINES, tmp_path / "of-labels", top=25))
    yield found
    found.stop()


def test_search_label_and_export(opened, labelled, lm):
    page = opened(at=labelled.address)
    someone = Visitor(page)
    someone.type(page.get_by_role("searchbox", name="Search memories").first, "month")
    someone.click(page.get_by_role("checkbox", name="Choose all"))
    someone.type(page.get_by_role("combobox", name="Concept"), "months of the year")
    someone.type(page.get_by_role("textbox", name="Annotator name"), "ann")
    # The page also lists memories found by words near in meaning, in the places of the last of these.
    hits = search(lm, labelled.session.index, "month", top=10).hits
    boxes = page.get_by_role("checkbox", name=re.compile(r"^Choose L\d+M\d+"))
    listed = [re.search(r"L(\d+)M(\d+)", box.get_attribute("aria-label") or "").groups() for box in boxes.all()]
    chosen = {(int(layer), int(index)) for layer, index in listed}
    expect(page.get_by_role("status").get_by_text(f"{len(chosen)} added to months of the year.")).to_be_visible()
    with page.expect_download() as download:
        someone.click(page.get_by_role("button", name="Export all labels"))
    rows = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert {(row["layer"], row["index"]) for row in rows} == chosen
    assert chosen > {(hit.layer, hit.index) for hit in hits}
    assert {(row["label"], row["author"]) for row in rows} == {("months of the year", "ann")}


def test_compare_two_prompts(opened, anyone):
    clean, corrupted = "The yellow car and the red", "The yellow sun and the red"
    lm = anyone.session.lm
    page = opened(at=anyone.address)
    someone = Visitor(page)
    someone.click(screen(page, "Compare"))
    someone.type(page.get_by_role("textbox", name="Clean prompt"), clean)
    someone.type(page.get_by_role("textbox", name="Corrupted prompt"), corrupted)
    target, rival = (int(lm.trace(prompt).prediction[-1]) for prompt in (clean, corrupted))
    found = lm.patch(clean, corrupted, "resid_pre", unembed.logit_difference(target, rival))
    words = lm.token_strings(lm.encode(corrupted)[0])
    sun = found.positions.index(words.index(" sun"))
    cell = page.get_by_role("gridcell", name=re.compile(rf"^Layer 0, position {found.positions[sun]} ·sun: "))
    someone.click(cell)
    shown = number(re.search(r": (\S+) %? ?recovered", cell.get_attribute("aria-label") or "").group(1))
    assert shown == pytest.approx(100 * float(found.recovered[0, sun]), abs=0.051)
    someone.click(page.get_by_role("button", name="Continue all three"))
    expect(page.get_by_role("region", name="Continuations").locator(".text")).to_have_count(3)


def test_open_ones_own_model_folder(opened, tmp_path):
    folder = save_model(tmp_path / "my model", "llama")
    lm = unembed.load(folder)
    command = [sys.executable, "-m", "unembed", "serve", "--model", str(folder), "--no-browser", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True
    ) as process:  # 1: the command, which opens the page
        try:
            assert process.stdout is not None
            address, token = re.search(r"(http://\S+/)\?token=(\S+)", process.stdout.readline()).groups()
            page = opened(at=address, token=token)
            someone = Visitor(page)
            someone.actions.append("unembed serve --model FOLDER")
            expect(page.get_by_role("gridcell").first).to_be_visible()
            expect(page.locator(".model-chip")).to_contain_text(f"{lm.n_layers} layers")
            someone.type(page.get_by_role("textbox", name="Prompt"), "the year")
            trace = lm.trace("the year")
            first = trace.readings().tokens[-1][-1][0].replace(" ", "·")
            cell = page.get_by_role(
                "gridcell", name=re.compile(f"^Layer {lm.n_layers - 1} after FFN, position {len(trace) - 1} ")
            )
            expect(cell).to_have_attribute("aria-label", re.compile(re.escape(f"first {first} ")))
            page.close()
        finally:
            process.terminate()
