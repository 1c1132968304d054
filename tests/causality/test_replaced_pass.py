"""A pass that skips blocks leaves those of other threads alone."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import torch
from tests.conftest import tiny

from unembed.causality.replaced_pass import record_outputs, replaced_pass

TOKENS = torch.tensor([[5, 17, 23, 42]])


def test_a_pass_of_another_thread_skips_no_block() -> None:
    """The explorer runs the model in two threads: a circuit's pass must not meet the skipped blocks of a removal."""
    lm = tiny("gpt2")
    expected = lm.run(TOKENS).logits
    with ExitStack() as stack:
        forms = record_outputs(stack, lm)
        lm.run(TOKENS)
    assert len(forms) == lm.n_layers

    def skipping() -> None:
        with replaced_pass(lm, [], skipped=forms[:1]):
            pass

    other = threading.Thread(target=skipping)
    with lm.lock:
        other.start()
        end = time.monotonic() + 0.5
        while time.monotonic() < end and "forward" not in lm.structure.blocks[0].module.__dict__:
            time.sleep(0.01)
        assert torch.equal(lm.run(TOKENS).logits, expected)
    other.join()
