"""Every finding of geva2022 on made-up numbers: one set agrees, one disagrees, and one decides nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unembed.document.intervals import Measured, mean_of
from unembed.reports.geva2022 import QUANTITIES
from unembed.reports.quantities import Numbers


def around(value: float, half: float = 0.0) -> Measured:
    """A measured number with its interval."""
    return Measured(float(value), float(value - half), float(value + half), 100)


def curves(*by_layer: float, spread: float = 0.0) -> np.ndarray:
    """(layer, example) values around these means."""
    noise = np.random.default_rng(0).standard_normal((len(by_layer), 400)) * spread
    return np.array(by_layer)[:, None] + noise


RULE: dict[str, Any] = {
    "ordered_accuracy": 93.0, "ordered_accuracy_std": 1.0, "ordered_saved_layers": 3.0, "ordered_saved_layers_std": 0.3,
    "rule_accuracy": 94.0, "rule_accuracy_std": 1.0, "rule_saved_layers": 3.2, "rule_saved_layers_std": 0.3,
    "classifier_accuracy": 94.4, "classifier_accuracy_std": 2.0, "classifier_saved_layers": 3.0,
    "classifier_saved_layers_std": 0.4, "oracle": 6.0, "n_layers": 16,
}  # fmt: skip
NORM = {"has_norm": True, "random": around(0.6), "value_with_random": around(0.01), "random_with_value": around(0.01)}
COVERAGE = {"by_lens": None, "values": around(0.4), "random": around(0.2), "updates": around(0.1)}


def peaks(maxima: np.ndarray) -> dict[str, Any]:
    """Maxima by layer, in logits a fifth of these."""
    return {"means": [], "minima": None, "seed": 0, "maxima": maxima, "maxima_in_logits": maxima / 5}


def minima(scores: np.ndarray) -> dict[str, Any]:
    """Minima by layer, the same in logits."""
    return {"means": [], "maxima": None, "seed": 0, "minima": scores, "minima_in_logits": scores}


CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "scores scale probabilities": tuple(
        {
            "signs": around(*x),
            "signs_of_logits": around(0.97),
            "chance": 0.5,
            "rank": 0.95,
            "least": 0.9,
            "has_norm": True,
        }
        for x in ((0.95, 0.01), (0.65, 0.02), (0.9, 0.02))
    ),
    "values against random": tuple(
        {**COVERAGE, "against_random": around(*x)} for x in ((2.3, 0.3), (1, 0.2), (1.5, 0.4))
    ),
    "updates against values": tuple(
        {**COVERAGE, "updates_against_values": around(*x)} for x in ((0.3, 0.1), (1.1, 0.2), (0.7, 0.2))
    ),
    "stop words in updates": tuple(
        {"in_updates": around(0.2), "in_values": around(0.1), "difference": around(*x)}
        for x in ((0.2, 0.05), (0.021, 0.01), (0.06, 0.04))
    ),
    "number of concepts": tuple(
        {"values": around(*x), "random": around(0.5), "difference": around(0.5, 0.2)}
        for x in ((1.5, 0.2), (0.67, 0.1), (1.0, 0.2))
    ),
    "coverage of every layer": (
        {"layers": [around(0.3, 0.1), around(0.6, 0.1)]},
        {"layers": [around(0.1, 0.05), around(0.6, 0.1)]},
        {"layers": [around(0.15, 0.1), around(0.6, 0.1)]},
    ),
    "mostly semantic": tuple(
        {"semantic": around(s, 0.01), "other": around(0.1), "difference": around(*x)}
        for s, x in ((0.25, (0.1, 0.05)), (0.01, (0.01, 0.005)), (0.25, (0.01, 0.05)))
    ),
    "random vectors are not semantic": tuple(
        {"semantic": around(0.2), "random": around(0.01), "random_against_values": around(*x)}
        for x in ((0.1, 0.1), (1.0, 0.3), (0.5, 0.3))
    ),
    "last updates": tuple(
        {"last": around(last, 0.01), "earlier": around(0.2), "ratio": around(*x)}
        for last, x in ((0.03, (0.15, 0.1)), (0.2, (1.0, 0.3)), (0.08, (0.4, 0.3)))
    ),
    "maxima": tuple(
        {
            **{"saturation": around(s), "in_logits": around(s), "elimination": around(s / x[0]), "ratio": around(*x)},
            **{"eliminated_in_logits": around(s / 2), "ratio_in_logits": around(2, 0.5)},
        }
        for s, x in ((8.5, (2.1, 0.3)), (0.003, (1.9, 0.1)), (8.5, (1.5, 0.3)))
    ),
    "sides of saturations": tuple(
        {"most": around(s), "in_logits": around(s), "least": around(-1), "ratio": around(*x)}
        for s, x in ((8.5, (1.7, 0.2)), (0.003, (1.7, 0.2)), (8.5, (1.2, 0.2)))
    ),
    "sides of eliminations": tuple(
        {"most": around(4), "in_logits": around(1), "least": around(-4), "ratio": around(*x)}
        for x in ((1.1, 0.2), (0.38, 0.04), (0.7, 0.2))
    ),
    "eliminated indirectly": tuple(
        {"mean": around(-0.01), "falls": around(*x), "change": around(-0.1), "median": -0.05}
        for x in ((0.3, 0.1), (0.93, 0.02), (0.5, 0.1))
    ),
    "random sub-updates": tuple(
        {"dominant": around(d), "in_logits": around(d), "random": around(0.2), "ratio": around(*x)}
        for d, x in ((8.5, (0.02, 0.01)), (0.003, (0.02, 0.01)), (8.5, (0.1, 0.05)))
    ),
    "settled early": tuple(
        {"before": around(*x), "last": around(1 - x[0]), "lead": around(*lead)}
        for x, lead in (((0.66, 0.02), (0.2, 0.05)), ((0.3, 0.02), (0.4, 0.1)), ((0.66, 0.02), (0.01, 0.05)))
    ),
    "non-negative means": tuple(
        {"means": [around(v, 0.01) for v in x], "maxima": None, "minima": None, "seed": 0}
        for x in ((0.1, 0.2, 0.1, 0.3, -1), (0.1, -0.2, 0.1, 0.3, 1), (0, 0, 0, 0.3, 1))
    ),
    "early peaks": (
        peaks(curves(1, 4, 1, 1, 1, 1, 5, spread=0.1)),
        peaks(curves(1, 1, 1, 1, 1, 4, 5, spread=0.1)),
        peaks(curves(1, 1.5, 1, 1, 1, 1, 5, spread=1.5)),
    ),
    "strongly down": (
        minima(curves(-0.2, -0.2, -0.2, -2, spread=0.1)),
        minima(curves(-0.0024, -0.0024, -0.0024, -0.009)),
        minima(curves(-1, -1, -1, -2, spread=2)),
    ),
    "few values": (
        {"covered": 0.017, "by_chance": np.array([0.3, 0.4])},
        {"covered": 0.017, "by_chance": np.array([0.018, 0.019])},
        {"covered": 0.017, "by_chance": np.array([0.03, 0.04])},
    ),
    "two groups": (
        {"rare": np.full(20, 0.9), "common": np.linspace(0, 1, 20), "unseen": 0.1, "seed": 0},
        {"rare": np.full(20, 0.2), "common": np.full(20, 0.9), "unseen": 0.1, "seed": 0},
        {"rare": np.full(3, 0.9), "common": np.full(20, 0.1), "unseen": 0.1, "seed": 0},
    ),
    "easy inputs": tuple(
        {
            "extreme": around(*x),
            "all": around(0.3, 0.05),
            "cases": dict.fromkeys(("short_prefix", "easy_target", "period"), (around(0.4, 0.02), around(0.2, 0.01))),
        }
        for x in ((0.7, 0.1), (0.17, 0.04), (0.5, 0.1))
    ),
    "sub-updates rule": (RULE, {**RULE, "rule_saved_layers": 0.64}, {**RULE, "oracle": 0.5}),
    "less toxic": tuple(
        {"plain": around(0.58, 0.03), "picked": around(*x)} for x in ((0.4, 0.03), (0.6, 0.03), (0.56, 0.03))
    ),
    "norm keeps concepts": (
        {**NORM, "values": around(0.65, 0.02)},
        {**NORM, "values": around(0.68), "random_with_value": around(0.65)},
        {**NORM, "values": around(1.0), "has_norm": False},
    ),
    "contribution": tuple(
        {"layers": [around(*x)] * 3, "whole": around(x[0]), "even": 0.0024, "n_memories": "4,096"}
        for x in ((0.05, 0.01), (0.73, 0.01), (0.1, 0.02))
    ),
    "large contribution": tuple(
        {"layers": [around(0.05, 0.01), around(*x)], "whole": around(0.1)}
        for x in ((0.2, 0.01), (0.06, 0.01), (0.1, 0.01))
    ),
    "negative coefficients": tuple(
        {"whole": around(*x), "layers": [around(*x)]} for x in ((0.05, 0.01), (0.0, 0.0), (0.001, 0.001))
    ),
}


def test_every_claim_has_made_up_numbers() -> None:
    assert set(CASES) == {quantity.name for quantity in QUANTITIES}
    assert len(CASES) == len(QUANTITIES), "two quantities of one name"
    for q in QUANTITIES:
        assert q.claim and q.where and q.what and q.published and q.test, q.name


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda quantity: quantity.name)
def test_each_claim_can_agree_disagree_and_stay_open(quantity: Any) -> None:
    third = "not applicable" if quantity.name in ("norm keeps concepts", "sub-updates rule") else "inconclusive"
    for numbers, verdict in zip(CASES[quantity.name], ("agrees", "differs", third), strict=True):
        found = quantity.judge(Numbers(**numbers))
        assert (found.verdict, found.here[-1]) == (verdict, "."), (quantity.name, found)


def judge(name: str, **numbers: Any) -> str:
    """The verdict of a quantity on made-up numbers, the first of its cases but for those given."""
    (quantity,) = (quantity for quantity in QUANTITIES if quantity.name == name)
    found = quantity.judge(Numbers(**(CASES[name][0] | numbers)))
    assert found is not None
    return found.verdict


def test_rare_tokens_are_not_judged_where_half_of_the_vocabulary_has_no_count() -> None:
    assert judge("two groups") == "agrees"
    assert judge("two groups", unseen=0.6) == "inconclusive"


def test_short_prefixes_do_not_hide_that_targets_are_harder() -> None:
    cases = {**CASES["easy inputs"][0]["cases"], "easy_target": (around(0.05, 0.01), around(0.23, 0.01))}
    assert judge("easy inputs", cases=cases) == "differs"


def test_a_stream_that_grows_is_no_finding() -> None:
    """Raw scores in the ratio of the paper, which turns round once the length of the stream is divided out."""
    assert judge("maxima", ratio_in_logits=around(0.2, 0.05)) == "differs"
    assert judge("maxima", ratio_in_logits=around(1, 0.2)) == "inconclusive"
    assert judge("strongly down", minima_in_logits=curves(-2, -2, -2, -1, spread=0.1)) == "differs"


def test_constant_zeros_have_no_verdict_of_their_own() -> None:
    """What passed before at 0.00 and 0.00: a higher score that is no score."""
    (maxima,) = (quantity for quantity in QUANTITIES if quantity.name == "maxima")
    found = maxima.judge(
        Numbers(
            saturation=mean_of([1, 2]),
            in_logits=mean_of([0.001, 0.002]),
            elimination=mean_of([0.0, 0.0001]),
            ratio=around(20, 5),
            eliminated_in_logits=mean_of([0.0, 0.0001]),
            ratio_in_logits=around(20, 5),
        )
    )
    assert found is not None and found.verdict == "differs"
