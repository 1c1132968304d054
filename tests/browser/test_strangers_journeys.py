"""What a stranger asks of a model, answered on the page in a few actions, on `wren` and on a model of 30 layers."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

import unembed
from tests.browser.visitor import Visitor
from unembed.gallery import memory_descriptions
from unembed.trace import TraceSettings, trace_view

PROMPTS = {"served": ("Mary and John went home . John saw Mary and", " John"), "deep": ("the cat sat", "a")}
"""By the fixture that serves a model: a prompt, and a token in it that heads may move."""


@pytest.fixture(params=list(PROMPTS))
def asked(request):
    """A served model, a prompt, and the id of a token in it."""
    served = request.getfixturevalue(request.param)
    prompt, word = PROMPTS[request.param]
    return served, prompt, served.session.lm.single_token(word)


def test_why_one_token_and_not_another(opened, asked):
    served, text, _ = asked
    lm = served.session.lm
    trace = lm.trace(text)
    best, other = trace.logits(-1).topk(3).indices[[0, 2]].tolist()
    page = opened(f"#/trace?prompt={text.replace(' ', '+')}", at=served.address)
    someone = Visitor(page)
    prediction = page.get_by_role("region", name="Prediction")
    someone.choose(prediction.get_by_role("combobox").nth(1), visible(lm.token_strings([other])[0]))

    settings = TraceSettings(text, -1, 10, None, False, (), None, other)
    view, _ = trace_view(lm, settings, layer=None, memories=5, token=None, point=None, tracing=lm.trace)
    first = view.findings[0]
    expect(page.get_by_text(first.sentence)).to_be_visible()
    logits = trace.logits(-1)
    assert f"{float(logits[best] - logits[other]):+.2f}" in first.sentence.replace("−", "-")


def test_which_heads_move_a_token_and_what_happens_without_them(opened, asked):
    served, text, target = asked
    lm = served.session.lm
    page = opened(f"#/trace?prompt={text.replace(' ', '+')}&token=%23{target}", at=served.address)
    someone = Visitor(page)
    someone.click(page.get_by_role("navigation", name="Screens").get_by_role("link", name="Heads"))
    moved = page.get_by_role("region", name="Heads that move the token")

    trace = lm.trace(text)
    question = trace.question(target)
    ids = lm.encode(text)[0].tolist()
    at = [i for i, one in enumerate(ids) if one == target]
    amounts: dict[tuple[int, int], float] = {}
    for row in trace.attribution(target, -1, question.against, by="source").rows:
        if row.source in at and row.index is not None and row.label.startswith("head "):
            amounts[row.layer, row.index] = amounts.get((row.layer, row.index), 0.0) + row.contribution
    best = sorted(((x, place) for place, x in amounts.items() if x > 0), reverse=True)[:5]
    expect(moved.get_by_role("link")).to_have_text([f"L{layer}H{head}" for _, (layer, head) in best])

    edits = [unembed.scale_head(layer, head, 0.0, positions=[len(ids) - 1]) for _, (layer, head) in best]
    without = float(lm.run(text, edits=edits).logits[0, -1].softmax(-1)[target])
    name, after = (re.escape(one) for one in (visible(lm.token_strings([target])[0]), f"{100 * without:.1f}"))
    expect(moved).to_contain_text(
        re.compile(rf"Without these {len(best)} heads here \(measured\): {name} from .*? to {after}.%")
    )
    someone.click(moved.get_by_role("button", name="Knock out"))
    expect(page.get_by_role("heading", name=f"{len(best)} edit")).to_be_visible()


def test_which_memory_is_about_a_word(opened, lm, served):
    described = memory_descriptions(lm, served.session.index.path)
    first = next(iter(described.containing("month")))
    page = opened()
    someone = Visitor(page)
    someone.type(page.get_by_role("searchbox", name="Search memories").first, "month")
    row = page.get_by_role("table").get_by_role("row").nth(1)
    expect(row).to_contain_text(first[3])
    expect(row.get_by_role("link")).to_have_text(f"{'-' if first[2] == 'negative' else ''}L{first[0]}M{first[1]}")
    expect(page.get_by_text("Near in meaning, by the model's own embedding:")).to_be_visible()


def visible(token: str) -> str:
    """A token as the page writes it."""
    return token.replace(" ", "·")
