"""Samples of a card: the same text for a seed, by the sampling that the card names."""

from __future__ import annotations

import pytest
import torch
from tools.model_cards import SAMPLING, draws, sample, samples
from tools.training.vocabulary import tokenizer_of
from transformers import GPT2Config, GPT2LMHeadModel

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


def score(model: GPT2LMHeadModel, shares: dict[str, float], *, base: float) -> None:
    """Make the scores after any text those of these shares of the highest probability; other pieces have none."""
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.copy_(torch.eye(16)[0])
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, 0] = -100.0
        for piece, share in shares.items():
            value = base + SAMPLING["temperature"] * torch.tensor(share).log()
            model.lm_head.weight[TOKENIZER.token_to_id(piece), 0] = value


def test_improbable_tokens_are_never_drawn_and_others_by_their_probability(model: GPT2LMHeadModel) -> None:
    shares = {"e": 1.0, "f": 0.4, "g": SAMPLING["min_p"] * 1.02, "h": SAMPLING["min_p"] * 0.98}
    score(model, shares, base=0.0)
    drawn = "".join(text[1:] for text in draws(model, TOKENIZER, "a", n=2000, n_new=1))
    assert set(drawn) == {"e", "f", "g"}
    total = 1.4 + SAMPLING["min_p"] * 1.02
    for piece in "efg":  # four standard errors of 2,000 draws are less than 0.045
        assert drawn.count(piece) / len(drawn) == pytest.approx(shares[piece] / total, abs=0.045)


def test_a_token_of_the_prompt_has_the_penalty(model: GPT2LMHeadModel) -> None:
    score(model, {"e": 1.0, "f": 1.0}, base=4.0)
    drawn = "".join(text[1:] for text in draws(model, TOKENIZER, "e", n=2000, n_new=1))
    again = torch.tensor([4.0 / SAMPLING["repetition_penalty"], 4.0]) / SAMPLING["temperature"]
    assert drawn.count("e") / len(drawn) == pytest.approx(again.softmax(0)[0].item(), abs=0.045)


def test_a_text_that_ends_early_is_shorter_and_does_not_show_the_end_token(model: GPT2LMHeadModel) -> None:
    score(model, {"<|endoftext|>": 1.0}, base=0.0)
    assert sample(model, TOKENIZER, "ab", n_new=20) == "ab"


def test_the_card_names_the_sampling(model: GPT2LMHeadModel) -> None:
    text = samples(model, TOKENIZER)
    assert "temperature 0.7" in text and "at least 5 %" in text and "repetition penalty of 1.1" in text
    assert text.count("\n> ") >= 5
