"""Memories and heads that erase: found by their weights, and checked on text against the stream itself."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import unembed
from tests.conftest import tiny
from tests.families import build
from tests.sweeps.recorder import lettered
from unembed.attention.paths.erasure import ErasureOnText, memory_management


def test_erasing_memories_are_found_and_seen_to_erase() -> None:
    model = build("gpt2", torch.float64)
    lm = unembed.load(model)
    with torch.no_grad():
        lm.weights.W_out[1][7] = -4 * lm.weights.W_in[1][:, 7]
    found = memory_management(lm, top=3)
    assert (found.memories[0].layer, found.memories[0].index) == (1, 7)
    assert found.memories[0].cosine == pytest.approx(-1.0)
    assert found.memories[0].on_text is None and found.n_memories == 2 * 192
    cosines = torch.nn.functional.cosine_similarity(lm.weights.W_in[1].T, lm.weights.W_out[1])
    assert found.counts[1] == int((cosines < -5 / 48**0.5).sum())
    ov = lm.weights.W_V[0][2] @ lm.weights.W_O[0][2]
    values = torch.linalg.eigvals(ov)
    expected = -values.real.clamp_max(0).sum() / values.abs().sum()
    assert found.heads[0, 2].item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_gated_memory_erases_where_its_coefficient_falls_along_its_value(family: str) -> None:
    """The mean gradient is that of autograd, one memory and position at a time."""
    lm, text = lettered(family, torch.float64), ["the dog sat of a zebra"]
    found = memory_management(lm, top=500, corpus=text)
    cosines = {(one.layer, one.index): one.cosine for one in found.memories}
    act = lm.hf.model.layers[1].mlp.act_fn  # type: ignore[union-attr, operator]
    x = lm.run(text[0], "mlp_in")["mlp_in"][1, 0, 1:].detach().requires_grad_()
    for index in (0, 7, 33, 79):
        gate, up = lm.weights.W_gate[1], lm.weights.W_in[1]
        assert gate is not None
        coefficients = act(x @ gate[:, index]) * (x @ up[:, index])
        (gradient,) = torch.autograd.grad(coefficients.sum(), x)
        expected = torch.cosine_similarity(gradient.mean(dim=0), lm.weights.W_out[1][index], dim=0)
        assert cosines[1, index] == pytest.approx(float(expected), abs=1e-5)  # activations are read in float32
    assert list(cosines.values()) == sorted(cosines.values())


def test_a_gated_layer_with_an_activation_of_its_own_is_left_out_with_the_reason() -> None:
    lm, text = unembed.load(build("llama"), tokenizer=lettered("llama").tokenizer), ["the dog sat of a zebra"]
    block = lm.structure.blocks[1]
    assert block.feed_forward is not None
    object.__setattr__(block, "feed_forward", replace(block.feed_forward, activation="OwnActivation"))
    found = memory_management(lm, top=500, corpus=text)
    assert found.missing["memories of layer 1"] == "the derivative of its activation, OwnActivation, is not known"
    assert found.memories and all(one.layer != 1 for one in found.memories)


def test_verified_on_text_by_the_stream_before_and_after() -> None:
    lm = unembed.load()
    found = memory_management(lm, top=1, verify=True, corpus=["the first of the months " * 30], max_tokens=64)
    (one,), (head,) = found.memories, found.erasing_heads
    assert one.on_text is not None and head.on_text is not None
    corpus = unembed.open_corpus(["the first of the months " * 30], segmentation="windows", window=256, overlap=0)
    batch = next(iter(corpus.batches(lm, tokens=1024)))
    run = lm.run(
        batch.tokens, ("resid_pre", "resid_mid", "resid_post", "coefficients", "z"), attention_mask=batch.mask.long()
    )
    real = batch.mask.bool()
    v = lm.weights.W_out[one.layer][one.index]
    v = v / v.norm()
    m = run.at("coefficients", one.layer)[real][:, one.index]
    where = m.abs().topk(max(1, int(0.02 * len(m)))).indices
    for point, value in (("resid_mid", one.on_text.before), ("resid_post", one.on_text.after)):
        expected = (run.at(point, one.layer)[real] @ v)[where].abs().mean().item()
        assert value == pytest.approx(expected, rel=1e-3, abs=1e-6)
    signs = (run.at("resid_mid", one.layer)[real] @ v)[where] * m[where]
    assert one.on_text.opposes == pytest.approx((signs < 0).double().mean().item())
    z = run.at("z", head.layer)[real][:, head.head]
    written = z @ lm.weights.W_O[head.layer][head.head]
    where = written.norm(dim=-1).topk(max(1, int(0.02 * len(z)))).indices
    d = torch.nn.functional.normalize(written[where], dim=-1)
    for point, value in (("resid_pre", head.on_text.before), ("resid_mid", head.on_text.after)):
        along = (run.at(point, head.layer)[real][where] * d).sum(dim=-1)
        assert value == pytest.approx(along.abs().mean().item(), rel=1e-3, abs=1e-6)
        if point == "resid_pre":
            assert head.on_text.opposes == pytest.approx((along < 0).double().mean().item())


def test_folded_directions_are_those_behind_the_gains_of_the_norms() -> None:
    lm, text = lettered("gemma2", torch.float64), ["the dog sat of a zebra"]
    found = memory_management(lm, "folded", top=1, verify=True, corpus=text)
    (one,) = found.memories
    block = lm.hf.model.layers[one.layer]
    read, written, entered, left = (
        1 + getattr(block, f"{name}_layernorm").weight.detach()
        for name in ("pre_feedforward", "post_feedforward", "input", "post_attention")
    )
    gate, up = (w[one.layer][:, one.index] * read for w in (lm.weights.W_gate, lm.weights.W_in))
    a, b = (x[one.layer, 0, 1:, one.index] for x in map(lm.run(text[0], ("gate", "up")).__getitem__, ("gate", "up")))
    with torch.enable_grad():
        act = block.mlp.act_fn(leaf := a.detach().clone().requires_grad_())
        (slope,) = torch.autograd.grad(act.sum(), leaf)
    key = (slope * b).mean() * gate + act.detach().mean() * up
    value = lm.weights.W_out[one.layer][one.index] * written
    assert one.cosine == pytest.approx(float(torch.cosine_similarity(key, value, dim=0)), rel=1e-6)
    assert one.cosine != pytest.approx(float(torch.cosine_similarity(key / read, value / written, dim=0)), rel=1e-3)
    for head in range(lm.n_heads):
        W_V = lm.weights.W_V[one.layer][head // (lm.n_heads // lm.n_kv_heads)]
        values = torch.linalg.eigvals((lm.weights.W_O[one.layer][head] * left) @ (entered[:, None] * W_V))
        expected = -values.real.clamp_max(0).sum() / values.abs().sum()
        assert float(found.heads[one.layer, head]) == pytest.approx(float(expected), rel=1e-6)
    run = lm.run(text[0], ("resid_mid", "resid_post", "coefficients"))
    d, m = value / value.norm(), run.at("coefficients", one.layer)[0, :, one.index]
    where = m.abs().topk(max(1, int(0.02 * len(m)))).indices
    assert one.on_text is not None
    for point, measured in (("resid_mid", one.on_text.before), ("resid_post", one.on_text.after)):
        expected = (run.at(point, one.layer)[0] @ d)[where].abs().mean()
        assert measured == pytest.approx(float(expected), rel=1e-5)


def test_less_afterwards_and_opposed_beyond_chance_is_erasing() -> None:
    assert ErasureOnText(2.0, 1.0, 0.9, 100).erases is True
    assert ErasureOnText(2.0, 3.0, 0.9, 100).erases is False, "more is there than before"
    assert ErasureOnText(2.0, 1.0, 0.1, 100).erases is False, "it adds to what is there"
    assert ErasureOnText(2.0, 1.0, 0.55, 100).erases is None, "a coin opposes as often"
    assert ErasureOnText(2.0, 3.0, 0.55, 100).erases is False, "more is there, however often it opposes"


def test_random_heads_are_the_baseline_of_negative_shares() -> None:
    lm = tiny("gpt2", torch.float64)
    mean, deviation = memory_management(lm).chance
    g = torch.Generator().manual_seed(5)
    shares = []
    for _ in range(100):
        values = torch.linalg.eigvals(torch.randn(12, 48, generator=g) @ torch.randn(48, 12, generator=g))
        shares.append(float(-values.real.clamp_max(0).sum() / values.abs().sum()))
    assert mean == pytest.approx(float(torch.tensor(shares).mean()), abs=0.03)
    assert deviation == pytest.approx(float(torch.tensor(shares).std()), rel=0.4)


def test_listed_memories_and_heads_are_rows_of_one_table(tmp_path: Path) -> None:
    found = memory_management(tiny("gpt2"), top=3)
    rows = list(found.to_table())
    assert [(row["layer"], row["memory"]) for row in rows[:3]] == [(m.layer, m.index) for m in found.memories]
    assert [(row["layer"], row["head"]) for row in rows[3:]] == [(h.layer, h.head) for h in found.erasing_heads]
    assert all((row["memory"] is None) != (row["head"] is None) for row in rows)
    found.save(tmp_path / "found")
    assert list(unembed.open_result(tmp_path / "found").to_table()) == rows
