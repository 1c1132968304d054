"""A model that nnsight has open is the transformers model in it; skipped outside the environment of `make parity`."""

from __future__ import annotations

import copy

import pytest
import torch

import unembed
from tests.conftest import tiny

nnsight = pytest.importorskip("nnsight", reason="`make parity` runs these in an environment of their own")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", ["NNsight", "LanguageModel"])
def test_an_nnsight_model_opens_and_its_saved_tensor_is_ours(kind: str, tokens: torch.Tensor) -> None:
    hf = copy.deepcopy(tiny("gpt2").hf)
    # A LanguageModel will not go without a tokenizer; its ids are not used.
    model = nnsight.NNsight(hf) if kind == "NNsight" else nnsight.LanguageModel(hf, tokenizer=unembed.load().tokenizer)
    opened = unembed.load(model)
    shared = zip(opened.hf.parameters(), hf.parameters(), strict=True)
    assert all(one.data_ptr() == other.data_ptr() for one, other in shared)
    with model.trace(tokens):
        saved = model.transformer.h[1].mlp.output.save()
    torch.testing.assert_close(opened.run(tokens, capture=("mlp_out",))["mlp_out"][1], saved, rtol=1e-6, atol=1e-6)
