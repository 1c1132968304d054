"""Samples of a card: the same text for a seed, by the sampling that the card names."""

from __future__ import annotations

import pytest
import torch
from tools.model_cards import SAMPLING, sample, samples
from transformers import GPT2Config, GPT2LMHeadModel

from unembed.training.vocabulary import tokenizer_of

TOKENIZER = tokenizer_of([(piece, -1.0 - place) for place, piece in enumerate("abcdefgh")])


@pytest.fixture
def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = GPT2Config(vocab_size=TOKENIZER.get_vocab_size(), n_layer=1, n_embd=16, n_head=2, n_positions=512)
    return GPT2LMHeadModel(sizes).eval()


def test_a_seed_gives_the_same_text_whatever_was_drawn_before(model: GPT2LMHeadModel) -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    first = sample(model, TOKENIZER, "abc", n_new=20, seed=1)
    torch.testing.assert_close(torch.rand(2), expected, atol=0, rtol=0)
    assert first.startswith("abc") and len(first) > 3
    assert sample(model, TOKENIZER, "abc", n_new=20, seed=1) == first
    assert sample(model, TOKENIZER, "abc", n_new=20, seed=2) != first


def test_only_tokens_with_the_least_share_of_the_highest_probability_are_drawn(model: GPT2LMHeadModel) -> None:
    """All scores are equal but for those of four letters, whose shares are on either side of the cut."""
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.copy_(torch.eye(16)[0])
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, 0] = -100.0
        for piece, share in {"e": 1.0, "f": SAMPLING["min_p"] * 1.05, "g": SAMPLING["min_p"] * 0.95}.items():
            score = SAMPLING["temperature"] * torch.tensor(share).log()
            model.lm_head.weight[TOKENIZER.token_to_id(piece), 0] = score
    drawn = "".join(sample(model, TOKENIZER, "a", n_new=1, seed=seed)[1:] for seed in range(300))
    assert set(drawn) == {"e", "f"}
    assert drawn.count("f") / 300 == pytest.approx(0.05, abs=0.05)


def test_the_card_names_the_sampling(model: GPT2LMHeadModel) -> None:
    text = samples(model, TOKENIZER)
    assert "temperature 0.7" in text and "at least 5 %" in text and "repetition penalty of 1.1" in text
    assert text.count("\n> ") >= 5
