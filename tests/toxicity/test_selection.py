"""Choice of values against brute force."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

import unembed
from tests.models.decoder_classes import tiny_model
from tests.toxicity.conftest import Vowels
from unembed import toxicity
from unembed.errors import InvalidInput, OutOfRange
from unembed.toxicity.selection import first_order


def texts(seed: int):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 90, (4, 12), generator=generator) for _ in range(3)]


def gain_of(lm, unwanted, wanted, edits) -> float:
    more, less = (loss_of(lm, rows, edits) - loss_of(lm, rows) for rows in (unwanted, wanted))
    return more - less


def test_value_scores_are_those_of_the_joined_top_tokens(lm):
    scores = toxicity.value_scores(lm, Vowels(), top=5)
    assert scores.shape == (lm.n_layers, lm.d_mlp)
    text = "".join(lm.values.top_tokens(1, 7, 5))
    assert float(scores[1, 7]) == pytest.approx(Vowels().score([text])["toxicity"][0], abs=1e-6)


def test_by_scorer_keeps_to_the_threshold_the_layers_and_the_seed(lm):
    scores = toxicity.value_scores(lm, Vowels())
    below = float(scores.median())
    chosen = toxicity.by_scorer(lm, Vowels(), 6, below=below, seed=3)
    assert chosen.edits == toxicity.by_scorer(lm, Vowels(), 6, below=below, seed=3).edits
    assert chosen.edits != toxicity.by_scorer(lm, Vowels(), 6, below=below, seed=4).edits
    assert all(scores[e.layer, e.index] < below and e.value == 3.0 for e in chosen.edits)
    lowest = toxicity.by_scorer(lm, Vowels(), 3, below=below, lowest=True, layers=[1])
    assert {e.index for e in lowest.edits} == set(scores[1].argsort(stable=True)[:3].tolist())
    assert all(e.layer == 1 for e in lowest.edits)
    with pytest.raises(InvalidInput, match="no 6 values"):
        toxicity.by_scorer(lm, Vowels(), 6, below=0.0)


def test_manual_values_are_checked(lm):
    assert toxicity.manual(lm, [(1, 3)]).edits == (unembed.set_coefficient(1, 3, 3.0),)
    with pytest.raises(OutOfRange):
        toxicity.manual(lm, toxicity.PAPER_VALUES)


def loss_of(lm, rows, edits=(), hooks=None) -> float:
    logits = lm.run(rows, (), edits, hooks=hooks).logits[:, :-1].double()
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))


def test_first_order_is_the_slope_of_the_loss(lm):
    rows = torch.randint(3, 90, (3, 12), generator=torch.Generator().manual_seed(0))
    to, step = 3.0, 1e-2
    found = first_order(lm, rows, to)
    for layer, index in ((0, 5), (1, 11), (1, 40)):
        # Move every position's coefficient a small part of the way and compare losses.
        slope = 0.0
        for sign in (1, -1):
            slope += sign * _moved(lm, rows, layer, index, sign * step, to)
        assert float(found[layer, index]) == pytest.approx(slope / (2 * step), rel=2e-2, abs=2e-5)


def test_layers_of_experts_and_dense_ones_are_chosen_from_together(lm):
    experts = unembed.load(tiny_model("glm4_moe"), tokenizer=lm.tokenizer)
    assert [experts.n_memories_of(n) for n in range(4)] == [80, 160, 160, 160]
    scores = toxicity.value_scores(experts, Vowels(), top=5)
    assert scores[0, 80:].isnan().all() and bool(scores[0, :80].isfinite().all() and scores[1:].isfinite().all())
    assert all(e.layer or e.index < 80 for e in toxicity.by_scorer(experts, Vowels(), 200, below=2.0).edits)
    rows = torch.randint(3, 90, (3, 12), generator=torch.Generator().manual_seed(0))
    found, to, step = first_order(experts, rows, 3.0), 3.0, 0.02
    assert not found[0, 80:].any()
    m = experts.run(rows, "coefficients").at("coefficients", 2)
    for index in (int(m.abs().sum((0, 1)).argmax()), 159):
        hooks = {sign: _pushed(2, index, sign * step, to) for sign in (1, -1)}
        slope = sum(sign * loss_of(experts, rows, hooks={"coefficients": hook}) for sign, hook in hooks.items())
        assert float(found[2, index]) == pytest.approx(slope / (2 * step), rel=3e-2, abs=5e-5)


def _pushed(layer, index, share, to):
    def hook(m, at):
        if at == layer:
            m[..., index] += share * (to - m[..., index])
            return m
        return None

    return hook


def _moved(lm, rows, layer, index, share, to) -> float:
    """The loss when a coefficient goes `share` of the way to `to` at every position of every row."""
    down = lm.feed_forward(layer).down_proj

    def change(_m, args):
        given = args[0].clone()
        given[..., index] += share * (to - given[..., index])
        return (given,)

    handle = down.register_forward_pre_hook(change)
    try:
        return loss_of(lm, rows)
    finally:
        handle.remove()


def test_greedy_stays_within_the_budget_and_its_curve_is_measured(lm):
    generator = torch.Generator().manual_seed(0)
    unwanted, clean, wanted = (torch.randint(3, 90, (4, 12), generator=generator) for _ in range(3))
    chosen = toxicity.greedy(lm, unwanted, clean, wanted=wanted, n=3, budget=0.2, tried=4)
    rows = list(chosen.table.rows())
    assert len(rows) == len(chosen.edits) + 1 > 1
    for k, row in enumerate(rows):
        edits = chosen.edits[:k]
        for name, text in (("unwanted_nats", unwanted), ("wanted_nats", wanted), ("price_nats", clean)):
            assert row[name] == pytest.approx(loss_of(lm, text, edits) - loss_of(lm, text), abs=1e-4)
        assert row["price_nats"] <= math.log(1.2) * k / 3 + 1e-6
    gains = [row["unwanted_nats"] - row["wanted_nats"] for row in rows]
    assert gains == sorted(gains) and gains[-1] > 0
    assert len({(e.layer, e.index) for e in chosen.edits}) == len(chosen.edits)


@pytest.mark.parametrize("budget", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("reverse", [False, True])
def test_no_budget_is_exceeded_and_each_step_adds_to_the_gain(lm, budget, reverse):
    unwanted, clean, wanted = texts(seed=1)
    strengths = (3.0, 12.0, -3.0, -12.0) if reverse else (3.0, 12.0)
    chosen = toxicity.greedy(lm, unwanted, clean, wanted=wanted, n=4, budget=budget, tried=6, strengths=strengths)
    assert chosen.edits and {e.value for e in chosen.edits} <= set(strengths)
    paid = [loss_of(lm, clean, chosen.edits[:k]) - loss_of(lm, clean) for k in range(len(chosen.edits) + 1)]
    assert max(paid) <= math.log1p(budget) + 1e-6
    gains = [gain_of(lm, unwanted, wanted, chosen.edits[:k]) for k in range(len(chosen.edits) + 1)]
    assert all(later > earlier for earlier, later in pairwise(gains))
    if reverse:
        assert any(e.value < 0 for e in chosen.edits)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_greedy_gains_at_least_what_the_ranking_at_once_gains(lm, seed):
    unwanted, clean, wanted = texts(seed)
    settings = dict(wanted=wanted, n=4, budget=0.3, strengths=(3.0, 6.0, 12.0))
    chosen = toxicity.greedy(lm, unwanted, clean, tried=12, **settings)
    slopes = {
        to: first_order(lm, unwanted, to) - first_order(lm, wanted, to) - first_order(lm, clean, to).clamp_min(0)
        for to in settings["strengths"]
    }
    ranked = sorted(
        ((float(v), n, i, to) for to, g in slopes.items() for n, row in enumerate(g) for i, v in enumerate(row))
    )
    at_once: list = []
    for _, layer, index, to in reversed(ranked[-60:]):
        more = [*at_once, unembed.set_coefficient(layer, index, to)]
        is_new = all((e.layer, e.index) != (layer, index) for e in at_once)
        if is_new and len(more) <= 4 and loss_of(lm, clean, more) - loss_of(lm, clean) <= math.log1p(0.3):
            at_once = more
    assert len(at_once) == 4
    assert gain_of(lm, unwanted, wanted, chosen.edits) >= gain_of(lm, unwanted, wanted, at_once)
