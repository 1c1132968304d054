"""The sizes of a model that the page draws from."""

from __future__ import annotations

import pytest

import unembed
from tests.conftest import tiny
from unembed.models import model_sizes


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2_moe"])
def test_the_sizes_are_the_models_own(name: str) -> None:
    lm = tiny(name)
    found, config = model_sizes(lm), lm.hf.config
    assert (found["n_layers"], found["n_heads"]) == (config.num_hidden_layers, config.num_attention_heads)
    assert found["d_vocab"] == config.vocab_size
    assert found["mixers"] == ["attention"] * lm.n_layers and found["ffns"] == [True] * lm.n_layers
    assert [len(one) for one in (found["memories"], found["mixers"], found["ffns"])] == [lm.n_layers] * 3


def test_a_model_without_ffns_has_none_in_any_layer() -> None:
    found = model_sizes(unembed.load("attn-2l"))
    assert found["ffns"] == [False, False] and found["memories"] == [0, 0]
