"""Norms as linear maps: the dtype of their own arithmetic."""

from __future__ import annotations

import pytest
import torch

import unembed
from tests.families import build
from unembed.logit_attribution import attribution


@pytest.mark.parametrize(("family", "computes_in"), [("llama", torch.float32), ("gpt2", torch.float64)])
def test_an_attribution_in_float64_allows_for_norms_that_compute_in_float32(
    family: str, computes_in: torch.dtype
) -> None:
    lm = unembed.load(build(family, torch.float64))
    assert lm.structure.final_norm is not None and lm.structure.final_norm.computes_in == computes_in
    error = attribution(lm, torch.arange(3, 12)[None], 11).error
    assert error < (1e-6 if computes_in == torch.float32 else 1e-10)
