"""Without a configuration, greedy text is the argmax of the model's own next-token probabilities."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import GenerationConfig

from tests.stream.test_generation_steps import CONFIGURATIONS, as_transformers, tiny
from unembed.errors import UnembedWarning
from unembed.stream.generation import generate_ids
from unembed.stream.generation_rules import SAMPLING, rules_of
from unembed.stream.generation_steps import generate_steps

IDS = torch.tensor([[5, 9, 17]])
RULES = sorted(CONFIGURATIONS.keys() - SAMPLING)


@pytest.mark.parametrize("name", RULES)
def test_greedy_text_is_the_argmax_whatever_the_models_file_says(name: str) -> None:
    lm = tiny()
    ids = IDS
    for _ in range(12):
        ids = torch.cat([ids, lm.run(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    setattr(lm.hf.generation_config, name, CONFIGURATIONS[name])
    own = lm.hf.generation_config
    with pytest.warns(UnembedWarning, match=f"sets {name} .*own probabilities decide"):
        found, start = generate_ids(lm, IDS, max_new_tokens=12)
    with pytest.warns(UnembedWarning, match=name):
        steps = [step.id for step in generate_steps(lm, IDS, max_new_tokens=12)]
    assert found[0].tolist() == ids[0].tolist() and steps == ids[0, start:].tolist()
    assert lm.hf.generation_config is own and getattr(own, name) == CONFIGURATIONS[name]


@pytest.mark.parametrize("name", sorted(SAMPLING & CONFIGURATIONS.keys()))
def test_a_seed_samples_by_the_temperature_and_the_like_of_the_models_file_and_nothing_else(name: str) -> None:
    lm = tiny()
    setattr(lm.hf.generation_config, name, CONFIGURATIONS[name])
    meant = as_transformers(lm, IDS, 12, 3)
    lm.hf.generation_config.suppress_tokens = meant[:1]
    assert as_transformers(lm, IDS, 12, 3) != meant
    with pytest.warns(UnembedWarning, match="suppress_tokens"):
        assert generate_ids(lm, IDS, max_new_tokens=12, seed=3)[0][0, 3:].tolist() == meant
    with pytest.warns(UnembedWarning, match="suppress_tokens"):
        assert [step.id for step in generate_steps(lm, IDS, max_new_tokens=12, seed=3)] == meant


def test_options_that_are_named_hold_over_the_models_file() -> None:
    lm = tiny()
    lm.hf.generation_config.repetition_penalty = 1.1
    meant = as_transformers(lm, IDS, 12, None, repetition_penalty=1.4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert generate_ids(lm, IDS, max_new_tokens=12, repetition_penalty=1.4)[0][0, 3:].tolist() == meant


def test_the_models_file_is_back_after_a_fault_and_between_two_steps() -> None:
    lm = tiny()
    lm.hf.generation_config.repetition_penalty = 1.3
    own = lm.hf.generation_config
    with pytest.warns(UnembedWarning):
        steps = generate_steps(lm, IDS, max_new_tokens=4)
        next(steps)
    assert lm.hf.generation_config is own
    steps.close()
    with pytest.warns(UnembedWarning), pytest.raises(Exception, match="no_such"):
        generate_ids(lm, IDS, no_such=1)
    assert lm.hf.generation_config is own


def test_settings_without_effect_on_greedy_text_are_no_rules() -> None:
    plain = GenerationConfig(
        do_sample=True, temperature=0.2, top_k=3, eos_token_id=[1, 2], cache_implementation="static", num_beams=1,
        repetition_penalty=1.0, no_repeat_ngram_size=0, suppress_tokens=[],
    )  # fmt: skip
    assert rules_of(plain) == {} == rules_of(None)
    assert set(rules_of(GenerationConfig(**{name: CONFIGURATIONS[name] for name in RULES}))) == set(RULES)
