"""The prediction without each part, against runs of the model with that part alone edited."""

from __future__ import annotations

import math

import pytest
import torch
from tests.conftest import tiny

import unembed
from unembed.circuit_graph.cases import Case
from unembed.circuit_graph.node_scores import Node
from unembed.circuit_graph.removal_of_each import removal_of_each, with_each
from unembed.models.decoder import Decoder
from unembed.models.named_tokens import COUNTS, LIKELY, MOVED, moved_tokens
from unembed.stream.interventions import Edit

PROMPT, OTHER = (5, 17, 23, 42, 11, 8), (5, 17, 61, 42, 11, 8)
NODES = [Node("head", 0, 3, 1), Node("head", 1, 0, 2), Node("memory", 0, 3, 7), Node("memory", 1, 0, 4)]


def edited(lm: Decoder, node: Node, value: float | None) -> torch.Tensor:
    """The logits with a head at 0, or a memory at a value, at one position."""
    at = (len(PROMPT) - 1 - node.back,)
    edit = (
        Edit(target="head", action="scale", layer=node.layer, index=node.index, value=0.0, positions=at)
        if node.kind == "head"
        else Edit(target="coefficient", action="set", layer=node.layer, index=node.index, value=value, positions=at)
    )
    return lm.run(torch.tensor([PROMPT]), edits=[edit]).logits[0, -1].double()


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "mixtral"])
def test_a_removal_is_an_edit_of_that_part_alone(name: str) -> None:
    lm = tiny(name)
    whole, *found = removal_of_each(lm, [Case(PROMPT, OTHER, 5, 9)], [[node] for node in NODES], "zero")
    logits = lm.run(torch.tensor([PROMPT])).logits[0, -1].double()
    assert whole.metric == pytest.approx(float(logits[5] - logits[9]), abs=1e-5)
    assert whole.probabilities == pytest.approx(logits.softmax(-1)[[5, 9]].tolist(), abs=1e-6)
    for node, removal in zip(NODES, found, strict=True):
        changed = edited(lm, node, 0.0)
        assert removal.metric == pytest.approx(float(changed[5] - changed[9]), abs=1e-5)
        assert removal.probabilities == pytest.approx(changed.softmax(-1)[[5, 9]].tolist(), abs=1e-6)


def test_a_counterfactual_value_is_that_of_the_other_prompt() -> None:
    lm = tiny("llama")
    node = NODES[2]
    value = float(lm.run(torch.tensor([OTHER]), ("coefficients",)).at("coefficients", 0)[0, 2, 7])
    _, found = removal_of_each(lm, [Case(PROMPT, OTHER, 5, None)], [[node]], "counterfactual")
    assert found.metric == pytest.approx(float(edited(lm, node, value)[5]), abs=1e-5)
    assert len(found.probabilities) == 1


def test_more_nodes_than_fit_in_one_pass_give_the_same_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lm, case = tiny("gpt2"), Case(PROMPT, OTHER, 5, 9)
    together = removal_of_each(lm, [case], [[node] for node in NODES], "counterfactual")
    monkeypatch.setattr("unembed.circuit_graph.removal_of_each.BATCH_TOKENS", 2 * len(PROMPT))
    apart = removal_of_each(lm, [case], [[node] for node in NODES], "counterfactual")
    assert [one.metric for one in apart] == pytest.approx([one.metric for one in together], abs=1e-6)
    assert len({round(one.metric, 6) for one in apart}) > 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_raised_and_lowered_tokens_are_those_whose_probability_changes_most(dtype: torch.dtype) -> None:
    lm = tiny("llama", dtype=dtype)
    whole, found = removal_of_each(lm, [Case(PROMPT, OTHER, 5, 9)], [NODES[:1]], "zero")
    before = lm.run(torch.tensor([PROMPT])).logits[0, -1].double().softmax(-1)
    after = edited(lm, NODES[0], 0.0).softmax(-1)
    likely = sorted({*before.topk(LIKELY).indices.tolist(), *after.topk(LIKELY).indices.tolist()})
    ranked = sorted(likely, key=lambda token: float((before[token] / after[token]).log()))
    odds = {token: float((before[token].logit() - after[token].logit()).exp()) for token in (5, 9)}
    up, down = [t for t in odds if odds[t] >= COUNTS], [t for t in odds if odds[t] <= 1 / COUNTS]
    assert found.tokens.raised == tuple(lm.token_strings([*up, *(t for t in ranked[::-1] if t not in up)][:MOVED]))
    assert found.tokens.lowered == tuple(lm.token_strings([*down, *(t for t in ranked if t not in down)][:MOVED]))
    assert whole.tokens is None


def test_the_tokens_of_the_question_come_first_where_a_node_changes_their_odds_by_a_factor_that_counts() -> None:
    lm = unembed.load("wren")
    prompt = tuple(lm.encode("The dogs")[0].tolist())
    are, is_ = (lm.single_token(text) for text in (" are", " is"))
    names = lm.token_strings([are, is_])
    nodes = [Node("head", layer, 0, head) for layer in range(lm.n_layers) for head in range(lm.n_heads)]
    _, *found = removal_of_each(lm, [Case(prompt, None, are, is_)], [[node] for node in nodes], "zero")
    before, sides = lm.run(torch.tensor([prompt])).logits[0, -1].double().softmax(-1).logit(), set()
    for node, removal in zip(nodes, found, strict=True):
        edit = Edit("head", "scale", node.layer, node.index, 0.0, (len(prompt) - 1,))
        after = lm.run(torch.tensor([prompt]), edits=[edit]).logits[0, -1].double().softmax(-1).logit()
        for side, tokens in ((1, removal.tokens.raised), (-1, removal.tokens.lowered)):
            moved = [
                n
                for n, token in zip(names, (are, is_), strict=True)
                if side * (before - after)[token] >= math.log(COUNTS)
            ]
            assert list(tokens[: len(moved)]) == moved
            sides.update((side, name) for name in moved)
    assert len(sides) > 1


def test_prompts_with_different_questions_have_no_token_that_comes_first() -> None:
    lm = unembed.load("wren")
    prompt = tuple(lm.encode("The dogs")[0].tolist())
    are, is_ = (lm.single_token(text) for text in (" are", " is"))
    node, one, other = Node("head", 0, 0, 0), Case(prompt, None, are, None), Case(prompt, None, is_, None)
    logs = []
    for edits in ([], [Edit("head", "scale", 0, 0, 0.0, (len(prompt) - 1,))]):
        logs.append(lm.run(torch.tensor([prompt]), edits=edits).logits[0, -1].double().log_softmax(-1))
    _, found = removal_of_each(lm, [one, other], [[node]], "zero")
    assert found.tokens == moved_tokens(lm, *logs)


def test_several_prompts_give_the_mean_and_a_prompt_that_is_too_short_stays_unchanged() -> None:
    lm = tiny("gpt2")
    long, short = Case(PROMPT, OTHER, 5, 9), Case(PROMPT[:2], OTHER[:2], 5, 9)
    node = Node("memory", 0, 4, 3)
    together = removal_of_each(lm, [long, short], [[node]], "zero")
    (whole, without), (unchanged, same) = (removal_of_each(lm, [case], [[node]], "zero") for case in (long, short))
    assert same.metric == unchanged.metric and without.metric != whole.metric
    assert [one.metric for one in together] == pytest.approx(
        [(a.metric + b.metric) / 2 for a, b in ((whole, unchanged), (without, same))], abs=1e-9
    )


def test_nothing_is_measured_without_a_change() -> None:
    assert with_each(tiny("gpt2"), Case(PROMPT, OTHER, 5, 9), [], "zero") == []
