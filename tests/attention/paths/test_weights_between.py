"""Virtual weights between single heads and memories, against plain matrix products."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny
from unembed.attention.paths.weights_between import Part, readers_of, virtual_weight, writers_of
from unembed.errors import InvalidInput, OutOfRange
from unembed.language_model import LanguageModel


def ratio(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a @ b).norm() / (a.norm() * b.norm()))


def written(lm: LanguageModel, rows: torch.Tensor) -> torch.Tensor:
    """Without the mean over channels, where LayerNorms subtract it."""
    return rows - rows.mean(-1, keepdim=True) if lm.name == "gpt2" else rows


@pytest.mark.parametrize("family", ["gpt2", "llama", "attention-only"])
def test_every_pair_is_the_product_of_its_weights(family: str) -> None:
    lm = tiny(family, torch.float64)
    w = lm.weights
    W_O, value = written(lm, w.W_O[0][3]), None if family == "attention-only" else written(lm, w.W_out[0][5])
    group = lm.n_heads // lm.n_kv_heads
    inputs = {"Q": w.W_Q[1][2], "K": w.W_K[1][2 // group], "V": w.W_V[1][2 // group]}
    found = {v.input: v.ratio for v in readers_of(lm, "L0H3", 10_000) if v.reader == "L1H2"}
    assert found == pytest.approx({name: ratio(W_O, matrix) for name, matrix in inputs.items()})
    back = {v.input: v.ratio for v in writers_of(lm, "L1H2", 10_000) if v.writer == "L0H3"}
    assert back == pytest.approx(found)
    torch.testing.assert_close(virtual_weight(lm, "L0H3", "L1H2")["Q"], W_O @ w.W_Q[1][2])
    plain = virtual_weight(lm, "L0H3", "L1H2", centre=False)["Q"]
    torch.testing.assert_close(plain, w.W_O[0][3] @ w.W_Q[1][2])
    if family == "attention-only":
        return
    keys = w.W_in[1] if w.W_gate[1] is None else w.W_gate[1]
    columns = {"key": keys[:, 7]} | ({} if w.W_gate[1] is None else {"up": w.W_in[1][:, 7]})
    of_head = {v.input: v.ratio for v in readers_of(lm, "L0H3", 10_000) if v.reader == "L1M7"}
    assert of_head == pytest.approx({n: ratio(W_O, c[:, None]) for n, c in columns.items()})
    of_memory = [v for v in readers_of(lm, "L0M5", 10_000) if v.reader in ("L1M7", "L1H2")]
    assert value is not None
    for v in of_memory:
        if v.reader == "L1H2":
            assert v.ratio == pytest.approx(ratio(value[None], inputs[v.input])) and v.cosine is None
        else:
            assert v.cosine == pytest.approx(float(torch.cosine_similarity(value, columns[v.input], dim=0)))
            assert v.ratio == pytest.approx(abs(v.cosine))
    assert {v.input for v in of_memory} == {*inputs, *columns}
    mine = {(v.writer, v.input): v.ratio for v in writers_of(lm, "L1M7", 10_000)}
    assert mine["L0H3", "key"] == pytest.approx(of_head["key"]) and ("L0M5", "key") in mine
    same_layer = {v.reader for v in readers_of(lm, "L1H0", 10_000)}
    assert same_layer == {f"L1M{i}" for i in range(lm.d_mlp)}, "a head is read by the FFN of its own layer"


def test_the_strongest_come_first_and_parallel_parts_do_not_read_each_other() -> None:
    lm = tiny("gpt2")
    every = readers_of(lm, "L0M1", 10_000)
    assert [v.ratio for v in every] == sorted((v.ratio for v in every), reverse=True)
    assert readers_of(lm, "L0M1", 5) == every[:5]
    assert not readers_of(tiny("gptj"), "L1H0")
    with pytest.raises(InvalidInput, match="does not come after"):
        virtual_weight(lm, "L1M0", "L1H0")
    with pytest.raises(InvalidInput, match="L0H3, a memory L5M278"):
        readers_of(lm, "head 3")
    with pytest.raises(OutOfRange):
        Part.named(lm, "L0H9")
