"""What a stranger asks of a model, answered on the page in a few actions: what moves a name, what a memory is about."""

from __future__ import annotations

import re

from playwright.sync_api import expect

import unembed
from tests.browser.visitor import Visitor
from unembed.gallery import memory_descriptions

PROMPT = "Mary and John went home . John saw Mary and"


def test_which_heads_move_a_name_and_what_happens_without_them(opened, lm):
    target = lm.single_token(" John")
    page = opened(f"#/trace?prompt={PROMPT.replace(' ', '+')}&token=%23{target}")
    someone = Visitor(page)
    someone.click(page.get_by_role("navigation", name="Screens").get_by_role("link", name="Heads"))
    moved = page.get_by_role("region", name="Heads that move the token")

    trace = lm.trace(PROMPT)
    question = trace.question(target)
    last = len(trace.token_strings) - 1
    at = [i for i, text in enumerate(trace.token_strings) if text.strip() == "John"]
    amounts: dict[tuple[int, int], float] = {}
    for row in trace.attribution(target, -1, question.against, by="source").rows:
        if row.source in at and row.index is not None and row.label.startswith("head "):
            amounts[row.layer, row.index] = amounts.get((row.layer, row.index), 0.0) + row.contribution
    best = sorted(((x, place) for place, x in amounts.items() if x > 0), reverse=True)[:5]
    expect(moved.get_by_role("link")).to_have_text([f"L{layer}H{head}" for _, (layer, head) in best])

    edits = [unembed.scale_head(layer, head, 0.0, positions=[last]) for _, (layer, head) in best]
    without = float(lm.run(PROMPT, edits=edits).logits[0, -1].softmax(-1)[target])
    after = re.escape(f"{100 * without:.1f}")
    expect(moved).to_contain_text(
        re.compile(rf"Without these {len(best)} heads here \(measured\): ·John from .*? to {after}.%")
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
