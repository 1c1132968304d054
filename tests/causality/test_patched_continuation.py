"""Continuations of a patched run are those of edits and of the other run, where these say the same."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import tiny

import unembed
from unembed.causality.patched_continuation import continue_patched
from unembed.causality.rerun import Rerun
from unembed.errors import InvalidInput
from unembed.stream.generation import generate_ids

CLEAN, CORRUPTED = "The first month of the year is", "The last month of the year is"


@pytest.fixture(scope="module")
def lm():
    return unembed.load()


def test_a_patched_coefficient_continues_as_the_edit_that_sets_it(lm):
    position, layer, index = 1, 4, 278
    value = float(lm.run(CLEAN, "coefficients").at("coefficients", layer)[0, position, index])
    edit = unembed.set_coefficient(layer, index, value, positions=[position])
    found = list(continue_patched(lm, CLEAN, CORRUPTED, "coefficients", layer, position, index, max_new_tokens=8))
    ids, start = generate_ids(lm, [CORRUPTED], [edit], max_new_tokens=8)
    assert [one.id for one in found] == ids[0, start:].tolist()


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_the_last_stream_of_the_other_run_gives_its_next_token(lm, direction):
    last = lm.n_layers - 1
    position = len(lm.trace(CLEAN)) - 1
    source = CLEAN if direction == "denoising" else CORRUPTED
    first = next(
        continue_patched(lm, CLEAN, CORRUPTED, "resid_post", last, position, direction=direction, max_new_tokens=3)
    )
    assert first.id == int(lm.trace(source).prediction[-1])
    assert first.probability == pytest.approx(float(lm.trace(source).logits().softmax(-1).max()), rel=1e-4)


@pytest.mark.parametrize("name", ["gpt2-relu", "llama", "gemma2"])
def test_every_later_token_is_that_of_a_new_patched_run(name):
    lm = tiny(name)
    clean, corrupted = torch.tensor([5, 17, 23, 42, 11, 8]), torch.tensor([5, 60, 23, 42, 31, 8])
    from unembed.causality.replaced_pass import Replacement

    given = Rerun(lm, clean, ("z",)).activation("z", 1)[torch.tensor([4]), 0]
    replacement = Replacement("z", 1, torch.tensor([4]), 0, given)
    ids = corrupted[None]
    expected = []
    for _ in range(3):
        token = Rerun(lm, ids).logits([[replacement]])[0].argmax()
        expected.append(int(token))
        ids = torch.cat([ids, token[None, None]], dim=1)
    found = list(continue_patched(lm, clean, corrupted, "z", 1, 4, 0, max_new_tokens=3))
    assert [one.id for one in found] == expected[: len(found)] and found


def test_a_text_without_a_continuation_is_refused(lm):
    with pytest.raises(InvalidInput, match="has no rows for new tokens"):
        next(continue_patched(lm, CLEAN, CORRUPTED, "pattern", 1, 1, 0))
    with pytest.raises(InvalidInput, match="a single head or memory"):
        next(continue_patched(lm, CLEAN, CORRUPTED, "z", 1, 1))
    with pytest.raises(InvalidInput, match="aligned with it"):
        next(continue_patched(lm, CLEAN, CORRUPTED, "resid_pre", 1, 40))
