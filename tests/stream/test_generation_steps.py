"""Generation step by step gives what generation at once gives."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

import unembed
from unembed.errors import InvalidInput
from unembed.language_model import LanguageModel
from unembed.stream.generation import generate_ids
from unembed.stream.generation_steps import generate_steps

PROMPT = "The first month of the year is"
EDITS = [unembed.set_coefficient(3, 5, 20.0), unembed.scale_head(2, 1, 0.0, positions="last")]


@pytest.fixture(scope="module")
def lm():
    return unembed.load()


@pytest.mark.parametrize("edits", [(), EDITS])
@pytest.mark.parametrize("seed", [None, 3])
def test_the_same_text_as_generate(lm, edits, seed):
    found = list(generate_steps(lm, PROMPT, edits, max_new_tokens=8, seed=seed))
    assert PROMPT + found[-1].text == lm.generate(PROMPT, edits, max_new_tokens=8, seed=seed)[0]


def test_probabilities_are_those_of_the_model(lm):
    for step in generate_steps(lm, PROMPT, EDITS[:1], max_new_tokens=3, top=4):
        logits = lm.run(PROMPT + step.text[: len(step.text) - len(step.token)], (), EDITS[:1]).logits[0, -1]
        likely = logits.softmax(-1).topk(4)
        assert [c[0] for c in step.candidates] == likely.indices.tolist()
        assert [c[2] for c in step.candidates] == pytest.approx(likely.values.tolist(), rel=1e-4)
        assert step.probability == pytest.approx(step.candidates[0][2])


def test_between_steps_the_model_is_unchanged(lm):
    plain = lm.run(PROMPT).logits
    stepping = generate_steps(lm, PROMPT, EDITS, max_new_tokens=5)
    next(stepping)
    assert lm.run(PROMPT).logits.equal(plain)
    other = next(generate_steps(lm, PROMPT, max_new_tokens=1))
    assert other.id == int(plain[0, -1].argmax())
    next(stepping)


def test_what_cannot_be_done_is_refused(lm):
    with pytest.raises(InvalidInput, match="context"):
        next(generate_steps(lm, PROMPT, max_new_tokens=600))
    with pytest.raises(InvalidInput, match="above zero"):
        next(generate_steps(lm, PROMPT, seed=1, temperature=0.0))


CONFIGURATIONS = {
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 2,
    "suppress_tokens": [11, 12, 13],
    "begin_suppress_tokens": [11, 12, 13],
    "min_new_tokens": 6,
    "num_beams": 3,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.4,
    "min_p": 0.2,
    "typical_p": 0.5,
    "bad_words_ids": [[264], [263]],
}


def tiny(positions: dict | None = None) -> LanguageModel:
    """A small random Llama with strong weights, so that its most probable tokens differ along the text."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        rope_parameters=positions or {"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(6)
    model.generation_config.eos_token_id = None
    return unembed.load(model, tokenizer=unembed.load("attn-1l").tokenizer)


def as_transformers(lm: LanguageModel, ids: torch.Tensor, n: int, seed: int | None, **options: Any) -> list[int]:
    """The new tokens of `generate` itself."""
    with torch.random.fork_rng():
        if seed is not None:
            torch.manual_seed(seed)
        out = lm.hf.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n,
            do_sample=seed is not None,
            pad_token_id=0,
            **options,
        )
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", list(CONFIGURATIONS))
def test_every_generation_configuration_gives_the_text_of_transformers(name: str, seed: int | None) -> None:
    lm = tiny()
    ids = torch.tensor([[5, 9, 17]])
    plain = as_transformers(lm, ids, 12, seed)
    setattr(lm.hf.generation_config, name, CONFIGURATIONS[name])
    meant = as_transformers(lm, ids, 12, seed)
    if name in ("repetition_penalty", "no_repeat_ngram_size" if seed is None else "top_k"):
        assert meant != plain  # the configuration has an effect
    options = {"max_new_tokens": 12, "seed": seed, "generation_config": lm.hf.generation_config}
    found, start = generate_ids(lm, ids, **options)
    assert found[0, start:].tolist() == meant
    state = torch.get_rng_state()
    assert [step.id for step in generate_steps(lm, ids, **options)] == meant
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("name", ["repetition_penalty", "no_repeat_ngram_size", "suppress_tokens", "num_beams"])
def test_a_given_configuration_counts_as_in_transformers(name: str, seed: int | None) -> None:
    lm = tiny()
    ids = torch.tensor([[5, 9, 17]])
    # transformers fills in from the model's file what the given configuration leaves out.
    lm.hf.generation_config.bad_words_ids = [[264]]
    given = GenerationConfig(**{name: CONFIGURATIONS[name]})
    meant = as_transformers(lm, ids, 12, seed, generation_config=copy.deepcopy(given))
    options = {"max_new_tokens": 12, "seed": seed, "generation_config": given}
    found, start = generate_ids(lm, ids, **options)
    assert found[0, start:].tolist() == meant
    assert [step.id for step in generate_steps(lm, ids, **options)] == meant


@pytest.mark.parametrize(
    "positions",
    [
        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 8},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 8,
            "short_factor": [1.0] * 4,
            "long_factor": [1.0, 2.0, 3.0, 4.0],
        },
        {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 8},
    ],
    ids=lambda positions: positions["rope_type"],
)
def test_every_scheme_of_positions_gives_the_text_of_transformers_past_its_switch(positions: dict) -> None:
    lm = tiny(positions)
    ids = torch.tensor([[5, 9, 17]])
    meant = as_transformers(lm, ids, 16, None)
    assert [step.id for step in generate_steps(lm, ids, max_new_tokens=16)] == meant
    found, start = generate_ids(lm, ids, max_new_tokens=16)
    assert found[0, start:].tolist() == meant


def test_two_generations_in_turn_do_not_disturb_each_other() -> None:
    lm = tiny()
    ids = torch.tensor([[5, 9, 17]])
    alone = [[step.id for step in generate_steps(lm, ids, max_new_tokens=8, seed=seed)] for seed in (3, 4)]
    both = list(zip(*(generate_steps(lm, ids, max_new_tokens=8, seed=seed) for seed in (3, 4)), strict=True))
    assert [[pair[n].id for pair in both] for n in range(2)] == alone


def test_a_generation_that_is_abandoned_leaves_no_thread_and_no_hook() -> None:
    lm = tiny()
    before, plain = threading.active_count(), lm.run([5, 9, 17]).logits
    steps = generate_steps(lm, torch.tensor([[5, 9, 17]]), [unembed.scale_head(1, 1, 0.0)], max_new_tokens=8)
    next(steps)
    steps.close()
    assert threading.active_count() == before
    assert torch.equal(lm.run([5, 9, 17]).logits, plain)
