"""What is wired to a memory: full products in float64, one head and one memory at a time."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny
from unembed.attention.paths.geometry import keys_of, values_of
from unembed.attention.paths.memory_connections import memory_connections
from unembed.attention.weights.folded_weights import writing_weights
from unembed.errors import OutOfRange


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gptj"])
@pytest.mark.parametrize("basis", ["raw", "folded"])
def test_strengths_are_those_of_the_full_products(name: str, basis: str) -> None:
    lm = tiny(name)
    layer, index = lm.n_layers - 1, 5
    everything = memory_connections(lm, layer, index, 10_000, basis)
    centred = all(
        norm is not None and norm.centred
        for block in lm.structure.blocks
        for norm in (block.attention.pre_norm, block.feed_forward.pre_norm)
    )

    def written(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.double()
        return rows - rows.mean(-1, keepdim=True) if centred else rows

    key = keys_of(lm, layer, basis)[:, index].double()
    key = key / key.norm()
    last = layer if lm.structure.blocks[layer].parallel else layer + 1
    heads = {(one.layer, one.index): one.strength for one in everything.heads}
    assert len(heads) == last * lm.n_heads
    for n in range(last):
        for h in range(lm.n_heads):
            W_O = written(writing_weights(lm, n, basis)[h])
            assert heads[n, h] == pytest.approx(float((W_O @ key).norm() / W_O.norm()), rel=1e-4)
    writers = {(one.layer, one.index): one.strength for one in everything.writers}
    assert len(writers) == layer * lm.d_mlp
    for n in range(layer):
        rows = written(values_of(lm, n, basis))
        for i in (0, 3, lm.d_mlp - 1):
            assert writers[n, i] == pytest.approx(float(rows[i] @ key / rows[i].norm()), rel=1e-3, abs=1e-6)
    assert everything.readers == [], "nothing reads the last layer but the unembedding"
    early = memory_connections(lm, 0, index, 10_000, basis)
    value = written(values_of(lm, 0, basis)[index][None])[0]
    readers = {(one.layer, one.index): one.strength for one in early.readers}
    column = keys_of(lm, 1, basis)[:, 2].double()
    expected = float(value @ column / value.norm() / column.norm())
    assert readers[1, 2] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_the_strongest_come_first_whatever_their_sign() -> None:
    found = memory_connections(tiny("gpt2"), 1, 7, 5)
    for list_ in (found.heads, found.writers):
        strengths = [abs(one.strength) for one in list_]
        assert strengths == sorted(strengths, reverse=True) and len(list_) == min(5, len(list_))
    with pytest.raises(OutOfRange):
        memory_connections(tiny("gpt2"), 1, 10_000)


def test_half_precision_agrees_with_float32() -> None:
    full, half = (memory_connections(tiny("llama", dtype), 1, 7, 1000) for dtype in (torch.float32, torch.bfloat16))
    of_half = {(one.layer, one.index): one.strength for one in half.heads}
    for one in full.heads:
        assert of_half[one.layer, one.index] == pytest.approx(one.strength, rel=0.03, abs=0.01)
