"""A model that nnsight has open is the transformers model in it; skipped outside the environment of `make parity`."""

from __future__ import annotations

import pytest
import torch

import unembed
from tests.conftest import tiny

nnsight = pytest.importorskip("nnsight", reason="`make parity` runs these in an environment of their own")

pytestmark = pytest.mark.filterwarnings("ignore")


def test_an_nnsight_model_opens_and_its_saved_tensor_is_ours(tokens: torch.Tensor) -> None:
    lm = tiny("gpt2")
    model = nnsight.NNsight(lm.hf)
    opened = unembed.load(model)
    assert opened.hf is lm.hf
    with model.trace(tokens):
        saved = model.transformer.h[1].mlp.output.save()
    torch.testing.assert_close(opened.run(tokens, capture=("mlp_out",))["mlp_out"][1], saved, rtol=1e-6, atol=1e-6)
