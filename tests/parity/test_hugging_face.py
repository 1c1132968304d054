"""What plain `transformers` says of a model and a text is what unembed says.

That captures, patterns and logits are bit-equal to `output_hidden_states`, `output_attentions` and logits in every
family stands in tests/stream/test_run.py; that generation with the cache is that of full passes, in test_generate.py
there; that traces read the softmax of those logits, in tests/test_trace.py. Here: the end of the stream, half
precision, models opened without unembed, ablations made in the weights.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import unembed
from tests.conftest import tiny
from unembed import steering
from unembed.language_model import LanguageModel
from unembed.models.shipped_models import shipped_folder, tokenizer_folder

TEXT = "The first month of the year is January , and the second one is"


def own_outputs(model: Any, tokens: torch.Tensor) -> Any:
    with torch.no_grad():
        return model(tokens, use_cache=False, output_hidden_states=True)


def test_the_last_hidden_state_is_the_last_stream_after_the_final_norm(
    any_lm: LanguageModel, tokens: torch.Tensor
) -> None:
    """Between the last block and the norm transformers shows nothing; its last state is what the norm makes of ours."""
    last = any_lm.run(tokens, ("resid_post",))["resid_post"][-1]
    norm = any_lm.structure.final_norm
    with torch.no_grad():
        normed = last if norm is None else norm.module(last)
    assert torch.equal(normed, own_outputs(any_lm.hf, tokens).hidden_states[-1])
    assert norm is None or not torch.equal(normed, last)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "gemma2", "falcon-40b", "cohere", "attention-only"])
def test_streams_and_logits_are_bit_equal_in_bfloat16(name: str, tokens: torch.Tensor) -> None:
    lm = tiny(name, torch.bfloat16)
    run, own = lm.run(tokens, ("resid_pre",)), own_outputs(lm.hf, tokens)
    assert run.logits.dtype == torch.bfloat16 and torch.equal(run.logits, own.logits)
    for layer in range(lm.n_layers):
        assert torch.equal(run["resid_pre"][layer], own.hidden_states[layer])


@pytest.mark.parametrize("name", ["wren", "attn-0l", "attn-1l", "attn-2l"])
def test_a_shipped_folder_opened_by_transformers_alone_gives_the_same_logits(name: str) -> None:
    folder = Path(str(shipped_folder(name)))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = AutoTokenizer.from_pretrained(tokenizer_folder(name))(TEXT, return_tensors="pt").input_ids
    lm = unembed.load(name)
    assert torch.equal(lm.encode(TEXT), ids)
    run, own = lm.run(TEXT, ("resid_pre",)), own_outputs(model, ids)
    assert torch.equal(run.logits, own.logits)
    for layer in range(lm.n_layers):
        assert torch.equal(run["resid_pre"][layer], own.hidden_states[layer])
    with torch.no_grad():
        greedy = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert lm.generate(TEXT, max_new_tokens=8) == [lm.decode(greedy[0])]


def test_perplexity_is_the_exponential_of_the_loss_with_labels() -> None:
    lm = unembed.load()
    rows = steering.windows(lm, steering.default_text(), window=64, max_tokens=256)
    with torch.no_grad():
        loss = lm.hf(rows, labels=rows).loss
    assert steering.perplexity(lm, rows) == pytest.approx(float(loss.double().exp()), rel=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "gemma2", "opt", "bloom", "olmo2", "phi"])
def test_an_ablation_is_the_model_whose_weights_are_zero_there(name: str, tokens: torch.Tensor) -> None:
    """A memory set to 0, a head scaled by 0, against a copy of the model in which value and W_O are zeros."""
    lm = tiny(name)
    edits = [unembed.set_coefficient(0, 7, 0.0), unembed.scale_head(1, 2, 0.0)]
    edited = lm.run(tokens, edits=edits).logits
    other = unembed.load(copy.deepcopy(lm.hf))
    with torch.no_grad():
        other.weights.W_out[0][7].zero_()
        other.weights.W_O[1][2].zero_()
        without = other.hf(tokens, use_cache=False).logits
    torch.testing.assert_close(edited, without, rtol=1e-5, atol=1e-5)
    assert (edited - lm.run(tokens).logits).abs().max() > 1e-3
