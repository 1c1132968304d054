"""Compiled models: hooks are called, so captures and edits hold."""

from __future__ import annotations

import torch

import unembed
from tests.families import build
from unembed.language_model import load
from unembed.stream.run import run


def _counting(graph, _inputs):
    return graph.forward


def test_a_model_compiled_in_place_is_captured_and_edited(tokens: torch.Tensor) -> None:
    plain = load(build("llama"))
    hf = build("llama")
    hf.compile(backend=_counting)
    with torch.no_grad():
        hf(tokens)  # compiled before any hook is there
    lm = load(hf)
    edits = [unembed.set_coefficient(0, 3, 40.0)]
    # A graph made for one set of hooks answers for the next set, so the order of the passes matters.
    for points, under in (([], []), (["resid_post", "z"], []), ([], edits), (["coefficients"], edits), (["z"], [])):
        seen, expected = (run(m, tokens, points, under) for m in (lm, plain))
        assert torch.equal(seen.logits, expected.logits)
        assert all(torch.equal(seen[point], expected[point]) for point in points)
    assert not torch.equal(run(lm, tokens, edits=edits).logits, run(lm, tokens).logits)


def test_generation_of_a_model_compiled_in_place_holds_edits(tokens: torch.Tensor) -> None:
    plain, hf = load(build("llama")), build("llama")
    hf.compile(backend=_counting)
    lm = load(hf)
    arguments = dict(max_new_tokens=6, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        unedited = hf.generate(tokens, **arguments)
        texts = []
        for model in (lm, plain):
            with model.edited([unembed.set_coefficient(1, 5, 60.0)]):
                texts.append(model.hf.generate(tokens, **arguments))
    assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[0], unedited)


def test_a_wrapped_compiled_model_is_unwrapped(tokens: torch.Tensor) -> None:
    hf = build("llama")
    lm = load(torch.compile(hf, backend=_counting))
    assert lm.hf is hf and lm.run(tokens).logits.shape == (2, 9, 97)
