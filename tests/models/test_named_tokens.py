"""The tokens that a component raises and lowers."""

from __future__ import annotations

import pytest
import torch

import unembed
from unembed.models.named_tokens import moved_tokens


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
