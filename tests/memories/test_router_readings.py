"""Tokens of a router by its weights: the router's own scores of embeddings."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny
from unembed.errors import Unsupported
from unembed.memories.router_readings import router_tokens


def test_router_tokens_are_those_its_own_module_scores_highest() -> None:
    lm = tiny("qwen2_moe")
    for layer in range(lm.n_layers):
        block = lm.hf.model.layers[layer]
        with torch.no_grad():
            x = block.post_attention_layernorm(lm.hf.get_input_embeddings().weight)
            own = (x @ block.mlp.gate.weight.T).double()
        expected = (own - own.mean(1, keepdim=True)).T
        ids, scores = router_tokens(lm, layer, 5, show_unlearned=True)
        best = expected.topk(5, dim=1)
        assert torch.equal(ids, best.indices)
        torch.testing.assert_close(scores.double(), best.values, rtol=1e-4, atol=1e-5)


def test_a_layer_without_experts_is_refused() -> None:
    with pytest.raises(Unsupported, match="not a mixture of experts"):
        router_tokens(tiny("llama"), 0)
