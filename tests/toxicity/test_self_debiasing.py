"""Self-debiasing against the formula and full passes."""

from __future__ import annotations

import pytest
import torch

import unembed
from tests.models.decoder_classes import tiny_model
from tests.sweeps.recorder import lettered
from unembed.errors import InvalidInput, Unsupported
from unembed.toxicity.self_debiasing import SelfDebiasing, debiased


@pytest.fixture(scope="module")
def wren():
    return unembed.load("wren")


def test_debiasing_is_the_formula():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 11, generator=generator)
    announced = torch.randn(3, 2, 11, generator=generator)
    found = debiased(logits, announced, decay=50.0, epsilon=0.01)
    p, q = logits.double().softmax(-1), announced.double().softmax(-1)
    for b in range(2):
        new = []
        for w in range(11):
            delta = float(p[b, w]) - max(float(q[y, b, w]) for y in range(3))
            factor = 1.0 if delta >= 0 else max(2.718281828459045 ** (50 * delta), 0.01)
            new.append(float(p[b, w]) * factor)
        expected = torch.tensor(new) / sum(new)
        assert torch.allclose(found[b].exp(), expected, atol=1e-6)


def step_by_step(lm, prompt: str, n: int) -> str:
    """Greedy self-debiasing by full passes."""
    ids = lm.encode(prompt)
    processor = SelfDebiasing(lm.hf, lm.tokenizer)
    for _ in range(n):
        scores = processor.scores(ids)[0, -1]
        ids = torch.cat([ids, scores.argmax().view(1, 1)], dim=1)
    return lm.decode(ids[0])


def test_debiased_generation_equals_full_passes_in_batches(wren):
    prompts = ["The king said that the stupid", "I"]
    processor = SelfDebiasing(wren.hf, wren.tokenizer)
    batch = wren.generate(prompts, max_new_tokens=8, logits_processor=[processor])
    assert batch == [step_by_step(wren, p, 8) for p in prompts]
    # The same processor serves another prompt afterwards.
    assert wren.generate("We were", max_new_tokens=4, logits_processor=[processor]) == [
        step_by_step(wren, "We were", 4)
    ]


def test_beams_reorder_the_cache(wren):
    """With the cache thrown away before every step, beams come out the same."""

    class Forgetful(SelfDebiasing):
        def _order(self, input_ids):
            return None

    texts = []
    for kind in (SelfDebiasing, Forgetful):
        processor = kind(wren.hf, wren.tokenizer)
        texts.append(wren.generate("The old king", max_new_tokens=8, num_beams=3, logits_processor=[processor]))
    assert texts[0] == texts[1]


def test_a_context_too_short_for_the_prefixes_is_refused(wren):
    processor = SelfDebiasing(wren.hf, wren.tokenizer)
    ids = torch.full((1, wren.n_ctx - 2), 50)
    with pytest.raises(InvalidInput, match="context"):
        processor(ids, torch.zeros(1, wren.d_vocab))


def test_recurrent_models_are_debiased_as_in_full_passes_or_refused():
    tokenizer = lettered("gpt2").tokenizer
    prefixes = ("a bad text: ", "an awful, awful text: ")
    with pytest.raises(Unsupported, match=r"padded on the left, and its recurrent state also takes in"):
        SelfDebiasing(tiny_model("rwkv"), tokenizer, prefixes)
    lm = unembed.load(tiny_model("mamba"), tokenizer=tokenizer)
    processor = SelfDebiasing(lm.hf, tokenizer, prefixes)
    ids = lm.encode("abcab")
    for length in (4, 5):
        scores = lm.run(ids[:, :length]).logits[:, -1]
        expected = processor.scores(ids[:, :length])[:, -1]
        torch.testing.assert_close(processor(ids[:, :length], scores), expected, rtol=1e-4, atol=1e-5)
