"""Generation step by step gives what generation at once gives."""

from __future__ import annotations

import pytest

import unembed
from unembed.errors import InvalidInput
from unembed.stream.generation import generate_steps

PROMPT = "The first month of the year is"
EDITS = [unembed.set_coefficient(3, 5, 20.0), unembed.scale_head(2, 1, 0.0, positions="last")]


@pytest.fixture(scope="module")
def lm():
    return unembed.load()


@pytest.mark.parametrize("edits", [(), EDITS])
@pytest.mark.parametrize("seed", [None, 3])
def test_the_same_text_as_generate(lm, edits, seed):
    found = list(generate_steps(lm, PROMPT, edits, max_new_tokens=8, seed=seed))
    assert PROMPT + found[-1].text == lm.generate(PROMPT, edits, max_new_tokens=8, seed=seed, top_k=50)[0]


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
