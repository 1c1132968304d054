"""Perplexity against the surprise of each token."""

from __future__ import annotations

import math
import threading

import pytest
import torch

import unembed
from tests.conftest import tiny
from unembed.early_exit.conformal import score_continuation
from unembed.errors import NotFinite
from unembed.steering.text_cost import default_text, perplexity, windows


@pytest.fixture(scope="module")
def wren():
    return unembed.load("wren")


def test_an_enormous_coefficient_is_one_error():
    lm = tiny("gpt2")
    edits = [unembed.set_coefficient(1, 3, 3e38)]
    with pytest.raises(NotFinite):
        perplexity(lm, torch.arange(3, 23)[None], edits)


def test_perplexity_is_the_mean_surprise_of_each_window(wren):
    text = default_text()[:3000]
    rows = windows(wren, text, window=64, max_tokens=200)
    assert rows.shape == (3, 64)
    assert rows.flatten().tolist() == wren.encode(text)[0, :192].tolist()
    surprise = []
    for row in rows:
        logits = wren.run(row[None]).logits[0].double().log_softmax(-1)
        surprise += [-float(logits[i, row[i + 1]]) for i in range(63)]
    assert math.isclose(perplexity(wren, rows), math.exp(sum(surprise) / len(surprise)), rel_tol=1e-5)


@pytest.mark.parametrize("edits", [[], [unembed.scale_head(1, 0, 0.5)]])
@torch.no_grad()
def test_no_other_thread_can_attach_hooks_during_a_pass(edits):
    lm, taken = tiny("gpt2"), []

    def attempt(*_: object) -> None:
        found = []
        thread = threading.Thread(target=lambda: found.append(lm.lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        taken.extend(found)

    handle = lm.hf.register_forward_pre_hook(attempt)
    try:
        perplexity(lm, torch.arange(3, 23)[None], edits)
        score_continuation(lm, torch.arange(3, 23)[None], 4)
    finally:
        handle.remove()
    assert taken == [False, False]
