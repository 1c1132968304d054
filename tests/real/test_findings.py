"""The findings of SmolLM2, and the numbers in them by other means."""

from __future__ import annotations

import pytest
import torch

from tests.trace.test_findings import compare, told
from unembed.language_model import LanguageModel

PROMPT = "The capital of France is"


def test_the_findings_are_those_of_the_table(smollm2: LanguageModel) -> None:
    compare(smollm2, "smollm2")


def test_without_the_head_that_reads_france_paris_falls_as_the_finding_says(smollm2: LanguageModel) -> None:
    """In plain torch: the head's columns of o_proj's input are zero at the last position, then at every position."""
    first = told(smollm2, PROMPT)[0]
    assert first.startswith("Head L23H4, reading ·France, decides: without it ·Paris falls from 77% to 15%")
    hf, ids = smollm2.hf, smollm2.encode(PROMPT)
    width = smollm2.d_model // smollm2.n_heads
    paris = smollm2.single_token(" Paris")

    def probability(positions: slice) -> float:
        def silent(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            z = inputs[0].clone()
            z[:, positions, 4 * width : 5 * width] = 0
            return (z,)

        handle = hf.model.layers[23].self_attn.o_proj.register_forward_pre_hook(silent)
        try:
            with torch.no_grad():
                return float(hf(ids).logits[0, -1].softmax(-1)[paris])
        finally:
            handle.remove()

    assert probability(slice(0, 0)) == pytest.approx(0.773, abs=0.001)
    assert probability(slice(-1, None)) == pytest.approx(0.147, abs=0.001)
    assert probability(slice(None)) == pytest.approx(0.141, abs=0.001)
