"""The tokens that a component raises and lowers."""

from __future__ import annotations

import pytest
import torch

import unembed
from unembed.models.named_tokens import COUNTS, moved_tokens


@pytest.fixture(scope="module")
def wren():
    return unembed.load("wren")


def _log_probabilities(lm, **logits):
    row = torch.full((lm.d_vocab,), -10.0)
    for token, value in logits.items():
        row[int(token.removeprefix("t"))] = value
    return row.log_softmax(-1)


def test_hidden_tokens_are_named_where_they_are_the_prediction_or_its_runner_up(wren):
    hidden = wren.unlisted.nonzero().flatten().tolist()[:3]
    listed = (~wren.unlisted).nonzero().flatten().tolist()[300:302]
    first, second, third = (f"t{token}" for token in hidden)
    plain, other = (f"t{token}" for token in listed)
    own = _log_probabilities(wren, **{first: 5.0, second: 3.0, third: 1.0, plain: 2.0, other: 2.0})
    without = _log_probabilities(wren, **{first: 3.0, second: 3.5, third: 0.0, plain: 4.0, other: 1.0})
    moved = moved_tokens(wren, own, without)
    texts = dict(zip([*hidden, *listed], wren.token_strings([*hidden, *listed]), strict=True))
    assert moved.raised == (texts[hidden[0]], texts[listed[1]])  # not the third byte, which nothing predicts
    assert moved.lowered[:2] == (texts[listed[0]], texts[hidden[1]])


@pytest.mark.parametrize("odds", [COUNTS * 1.01, COUNTS * 0.99, 1 / COUNTS * 0.99, 1 / COUNTS * 1.01])
def test_a_token_that_is_asked_about_comes_first_where_its_odds_change_by_a_factor_that_counts(wren, odds):
    asked, *others = (~wren.unlisted).nonzero().flatten().tolist()[300:304]
    logits = torch.zeros(wren.d_vocab, dtype=torch.float64)
    logits[others] = torch.tensor([9.0, 8.0, 7.0], dtype=torch.float64)
    logits[asked] = 10.0
    without = logits.clone()
    without[others] += torch.tensor([3.0, 2.0, -2.0])
    rest = [i for i in range(wren.d_vocab) if i != asked]
    # The odds of a token are its exponentiated logit by the sum of the others'.
    own_odds = logits[asked] - logits[rest].logsumexp(0)
    without[asked] = own_odds + without[rest].logsumexp(0) - torch.tensor(odds).log()
    moved = moved_tokens(wren, logits.log_softmax(-1), without.log_softmax(-1), [asked])
    (name,) = wren.token_strings([asked])
    plain = moved_tokens(wren, logits.log_softmax(-1), without.log_softmax(-1))
    assert (moved.raised[0] == name) == (odds > COUNTS) and (moved.lowered[0] == name) == (odds < 1 / COUNTS)
    if 1 / COUNTS < odds < COUNTS:
        assert moved == plain
    else:
        assert {*moved.raised, *moved.lowered} >= {name} and moved != plain
