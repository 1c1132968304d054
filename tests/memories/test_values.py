"""Readings of all values against plain products and full sorts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unembed
from tests.conftest import tiny
from tests.families import WITH_MEMORIES, build
from unembed.errors import InvalidInput, OutOfRange
from unembed.language_model import load
from unembed.memories.values import Values, first_tokens, value_readings, values_of, written_values


@pytest.mark.parametrize("name", WITH_MEMORIES)
@pytest.mark.parametrize("basis", ["raw", "final"])
def test_all_values_readings_equal_a_full_sort(name: str, basis: str) -> None:
    lm = tiny(name)
    found = value_readings(lm, 5, basis=basis, show_unlearned=True)
    for layer in range(lm.n_layers):
        values = written_values(lm, layer)
        s = lm.structure
        with torch.no_grad():
            scores = values @ lm.weights.W_U if basis == "raw" else s.capped(s.head(s.final_norm.module(values)))
        expected = scores.sort(dim=-1, descending=True).values[:, :5]
        torch.testing.assert_close(found.scores[layer], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(scores.gather(1, found.ids[layer].long()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_values_of_any_layers_come_in_the_requested_order(name: str) -> None:
    lm = tiny(name)
    pairs = [(1, 3), (0, 5), (1, 0), (0, 5), (1, 79)]
    expected = torch.stack([written_values(lm, layer)[index] for layer, index in pairs])
    assert torch.equal(values_of(lm, pairs), expected) and torch.equal(values_of(lm, np.array(pairs)), expected)


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_the_histogram_of_scores_counts_every_learned_token_once(name: str) -> None:
    lm = tiny(name)
    edges, counts = Values(lm).score_histogram(1, 3, 7, show_unlearned=True)
    scores = (written_values(lm, 1)[3] @ lm.weights.W_U).float().detach().numpy()
    expected, bounds = np.histogram(scores, bins=7)
    assert counts.tolist() == expected.tolist() and int(counts.sum()) == lm.d_vocab
    np.testing.assert_allclose(edges.numpy(), bounds, rtol=1e-5, atol=1e-7)
    wren = load()
    assert int(wren.values.score_histogram(5, 3)[1].sum()) == wren.d_vocab - int(wren.unlisted.sum())


def test_bottom_tokens_are_the_top_tokens_of_the_negated_value() -> None:
    lm = tiny("gpt2")
    ids, scores = Values(lm).top(0, 3, 4, bottom=True, show_unlearned=True)
    raw = lm.weights.W_out[0][3] @ lm.weights.W_U
    assert torch.equal(ids, raw.argsort()[:4])
    torch.testing.assert_close(scores, raw.sort().values[:4])


def test_unlearned_tokens_are_left_out_unless_requested() -> None:
    lm = load()
    found, full = (value_readings(lm, 30, layers=[5], bottom=True, show_unlearned=show) for show in (False, True))
    unlearned = lm.unlearned.cpu()
    assert not unlearned[found.ids.long()].any() and unlearned[full.ids.long()].any()
    ids, _ = lm.values.top(5, 3, 30, bottom=True)
    assert ids.tolist() == found.ids[0, 3].tolist() and not found.show_unlearned and full.show_unlearned


def test_behind_a_branch_norm_the_gain_is_part_of_a_values_reading() -> None:
    lm = tiny("gemma2")
    norm = lm.feed_forward(0).branch_norm
    assert norm is not None
    torch.testing.assert_close(
        written_values(lm, 0), lm.weights.W_out[0] * (1 + norm.module.weight), rtol=1e-5, atol=1e-5
    )


def test_bad_input_is_refused() -> None:
    lm = tiny("gpt2")
    with pytest.raises(OutOfRange, match="memory in layer 0: 192"):
        Values(lm).top_tokens(0, 192)
    with pytest.raises(InvalidInput, match="a value vector alone has no run"):
        value_readings(lm, basis="frozen")


@pytest.mark.parametrize("family", ["gpt2", "phi", "llama", "gemma2", "olmo2", "cohere", "opt"])
@pytest.mark.parametrize("basis", ["raw", "final"])
def test_first_tokens_of_both_ends_are_those_of_the_model_itself(family: str, basis: str) -> None:
    lm = unembed.load(build(family, torch.float64))
    head, norm = lm.hf.get_output_embeddings(), lm.structure.final_norm
    for layer in range(lm.n_layers):
        v = written_values(lm, layer)
        plus, minus = first_tokens(lm, layer, basis=basis, negated=True)
        for sign, found in ((1, plus), (-1, minus)):
            with torch.no_grad():
                scores = sign * v @ lm.weights.W_U if basis == "raw" else head(norm.module(sign * v))
            assert found is not None and torch.equal(found, scores.argmax(-1))
        once, none = first_tokens(lm, layer, basis=basis)
        assert none is None and torch.equal(once, plus)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pair_is_one_experts_memory(dtype: torch.dtype) -> None:
    lm = load(build("qwen2_moe", dtype))
    number = lm.memory(0, (1, 2))[1]
    ids, scores = lm.values.top(0, (1, 2), 5)
    assert (ids.tolist(), scores.tolist()) == tuple(part.tolist() for part in lm.values.top(0, number, 5))
    assert ids.shape == (5,)
    assert lm.values.norm(0, (1, 2)) == lm.values.norm(0, number)
    assert lm.values.top(0, [1, 2], 5)[0].shape == (2, 5)  # a list is several memories


def test_value_readings_show_their_size_and_basis() -> None:
    found = value_readings(tiny("gpt2"), 5, layers=[1])
    assert repr(found) == f"ValueReadings(1 layers of up to {found.ids.shape[1]:,} memories, top 5 tokens, basis 'raw')"
