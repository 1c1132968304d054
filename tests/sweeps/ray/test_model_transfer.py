"""A model arrives in another process with the weights it has here, or is refused; hooks and caches stay behind."""

from __future__ import annotations

import pickle

import pytest
import torch

import unembed
from tests.families import FAMILIES, build
from tests.sweeps.recorder import lettered
from unembed.errors import ModelUnavailable
from unembed.language_model import load
from unembed.sweeps.ray.model_transfer import deserialize_model, serialize_model


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_arrives_bit_for_bit(family: str) -> None:
    lm = load(build(family))
    there = deserialize_model(pickle.loads(pickle.dumps(serialize_model(lm))))
    here, found = (dict(m.hf.named_parameters()) | dict(m.hf.named_buffers()) for m in (lm, there))
    assert here.keys() == found.keys() and all(torch.equal(here[name], found[name]) for name in here)
    assert not there.hf.training and there.hf.config._attn_implementation == lm.hf.config._attn_implementation
    tokens = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(lm.hf(tokens).logits, there.hf(tokens).logits)


def test_a_watched_model_with_a_tokenizer_in_bfloat16() -> None:
    lm = lettered("llama", torch.bfloat16)
    handle = lm.hf.register_forward_hook(lambda *_: None)  # a lambda cannot be pickled, and need not
    try:
        there = deserialize_model(pickle.loads(pickle.dumps(serialize_model(lm))))
    finally:
        handle.remove()
    assert there.dtype == torch.bfloat16 and torch.equal(there.encode("abc"), lm.encode("abc"))


def test_shipped_models_and_wikilm_arrive() -> None:
    for name in ("wren", "attn-2l"):
        lm = unembed.load(name)
        there = deserialize_model(pickle.loads(pickle.dumps(serialize_model(lm))))
        assert there.name == name and torch.equal(there.unlearned, lm.unlearned)


def test_weights_that_do_not_arrive_are_noticed() -> None:
    lm = load(build("gpt2"))
    sent = serialize_model(lm)
    sent.weights["transformer.h.0.mlp.c_fc.weight"][0][:] = 0
    with pytest.raises(ModelUnavailable, match="differ from those of the model in the process that started the sweep"):
        deserialize_model(sent)
