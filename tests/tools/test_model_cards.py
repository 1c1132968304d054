"""Samples of a card: which tokens can be drawn, and how often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tools.model_cards import LEAST_SHARE, TEMPERATURE, sample

from unembed.training.vocabulary import tokenizer_of

TOKENIZER = tokenizer_of([("a", -1.0), ("b", -1.5), ("c", -2.0), ("d", -2.5)])


def test_improbable_tokens_are_never_drawn_and_others_by_their_probability() -> None:
    shares = {"a": 1.0, "b": 0.4, "c": LEAST_SHARE * 1.02, "d": LEAST_SHARE * 0.98}  # of the highest probability
    logits = torch.full((TOKENIZER.get_vocab_size(),), -torch.inf)
    for piece, share in shares.items():
        logits[TOKENIZER.token_to_id(piece)] = TEMPERATURE * torch.tensor(share).log()

    def model(ids: torch.Tensor) -> Any:
        return SimpleNamespace(logits=logits.expand(1, ids.shape[1], -1))

    drawn = "".join(sample(cast("Any", model), TOKENIZER, "a", n_new=400, seed=seed)[1:] for seed in range(5))
    assert set(drawn) == {"a", "b", "c"}
    total = 1.4 + LEAST_SHARE * 1.02
    for piece in "abc":  # four standard errors of 2,000 draws are less than 0.045
        assert drawn.count(piece) / len(drawn) == pytest.approx(shares[piece] / total, abs=0.045)
