"""What a circuit's numbers leave out by default is what no probability of the model depends on."""

from collections.abc import Callable

import pytest
import torch

import unembed
from tests.conftest import tiny
from tests.families import build
from unembed.attention.circuits import Circuits
from unembed.attention.paths.geometry import subspaces, virtual_weights
from unembed.attention.weights.folded_weights import (
    at_least_float32,
    default_basis,
    ignores_channel_mean,
    ignores_logit_mean,
)

TOKENS = torch.tensor([[5, 9, 31, 5, 77]])
READINGS: dict[str, Callable[[Circuits, str, bool], torch.Tensor]] = {
    "copying": lambda c, basis, centre: c.copying_scores(basis, centre=centre),
    "OV entries": lambda c, basis, centre: c.ov_full(1, 2, basis, centre=centre).dense(),
    "OV entries of a virtual head": lambda c, basis, centre: (
        c.virtual_head((0, 1), (1, 2)).ov_full(basis, centre=centre).dense()
    ),
    "virtual weights": lambda c, basis, centre: virtual_weights(c.lm, basis, centre=centre).ratio.nan_to_num(),
    "subspaces": lambda c, basis, centre: subspaces(c.lm, basis, centre=centre).effective_rank,
}


def shifted(name: str, logits: bool) -> tuple[Circuits, Circuits]:
    """A model and one of the same probabilities: all logits, or all channels of an embedding, moved by a constant."""
    before, after = (unembed.load(build(name, torch.float64)) for _ in range(2))
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        if logits:
            after.weights.W_U.add_(torch.randn(after.d_model, 1, generator=g, dtype=torch.float64))
        else:
            after.weights.W_E.add_(torch.randn(after.d_vocab, 1, generator=g, dtype=torch.float64))
    one, other = (lm.run(TOKENS).logits.log_softmax(-1) for lm in (before, after))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    return unembed.circuits(before), unembed.circuits(after)


@pytest.mark.parametrize("basis", ["raw", "folded"])
@pytest.mark.parametrize("reading", list(READINGS))
@pytest.mark.parametrize("name", ["llama", "gpt_neox", "attention-only"])
def test_a_constant_on_all_logits_changes_only_uncentred_numbers(name: str, reading: str, basis: str) -> None:
    before, after = shifted(name, logits=True)
    read = READINGS[reading]
    torch.testing.assert_close(read(before, basis, True), read(after, basis, True), rtol=1e-6, atol=1e-6)
    assert (read(before, basis, False) - read(after, basis, False)).abs().max() > 1e-3


@pytest.mark.parametrize("reading", [*READINGS, "matching", "QK entries"])
def test_a_constant_on_all_channels_of_a_layer_norm_model_changes_only_uncentred_numbers(reading: str) -> None:
    before, after = shifted("gpt_neox", logits=False)
    read = {
        **READINGS,
        "matching": lambda c, basis, centre: c.matching(basis, centre=centre).score,
        "QK entries": lambda c, basis, centre: c.qk_full(1, 2, 3, basis, centre=centre).dense(),
    }[reading]
    torch.testing.assert_close(read(before, "raw", True), read(after, "raw", True), rtol=1e-6, atol=1e-6)
    assert (read(before, "raw", False) - read(after, "raw", False)).abs().max() > 1e-3


def test_entries_of_qk_are_scores_above_the_mean_over_sources() -> None:
    circuits = unembed.circuits(tiny("llama", torch.float64))
    raw, centred = (circuits.qk_full(1, 3, 2, centre=centre).dense() for centre in (False, True))
    W_E = circuits.lm.weights.W_E
    torch.testing.assert_close(raw, W_E @ circuits.qk(1, 3, 2).dense() @ W_E.T)
    torch.testing.assert_close(centred, raw - raw.mean(dim=1, keepdim=True))
    torch.testing.assert_close(centred.softmax(-1), raw.softmax(-1))
    ids = torch.tensor([5, 9])
    some = circuits.qk_full(1, 3, 2, destinations=ids, sources=ids).dense()
    torch.testing.assert_close(some, centred[ids][:, ids])


def test_means_that_the_model_can_see_are_never_subtracted() -> None:
    assert not ignores_logit_mean(tiny("gemma2")) and ignores_logit_mean(tiny("llama"))
    assert ignores_channel_mean(tiny("gpt2")) and not ignores_channel_mean(tiny("llama"))
    assert not ignores_channel_mean(tiny("attention-only")) and not ignores_channel_mean(tiny("olmo2"))
    gemma = unembed.circuits(tiny("gemma2", torch.float64))
    torch.testing.assert_close(gemma.ov_full(1, 2).dense(), gemma.ov_full(1, 2, centre=False).dense())
    assert [default_basis(tiny(name)) for name in ("gpt2", "attention-only")] == ["folded", "raw"]


def test_most_heads_of_the_one_layer_model_copy_once_the_mean_logit_is_subtracted() -> None:
    circuits = unembed.circuits(unembed.load("attn-1l"))
    assert int((circuits.copying_scores(centre=False) >= 0.5).sum()) == 4
    assert int((circuits.copying_scores() >= 0.5).sum()) == 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("basis", ["raw", "folded"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_bigcode", "gemma2", "qwen3", "falcon-40b", "mixtral"])
def test_half_precision_gives_the_circuits_of_its_own_weights(name: str, basis: str, dtype: torch.dtype) -> None:
    """Against circuits of the same rounded weights in float64 (float32 for experts, which run no wider)."""
    half = unembed.load(build(name, dtype))
    exact = unembed.load(build(name, dtype).to(torch.float32 if name == "mixtral" else torch.float64))
    a, b = unembed.circuits(half), unembed.circuits(exact)
    for read in (
        lambda c: c.ov_full(1, 2, basis).dense(),
        lambda c: c.qk_full(1, 2, 0, basis).dense(),
        lambda c: c.virtual_head((0, 1), (1, 2)).ov_full(basis).dense(),
        lambda c: c.copying(basis).score,
        lambda c: c.matching(basis).score,
        lambda c: c.composition("k", basis=basis),
        lambda c: virtual_weights(c.lm, basis).ratio.nan_to_num(),
    ):
        mine, theirs = at_least_float32(read(a)).double(), read(b).double()
        assert float((mine - theirs).norm() / theirs.norm()) < 1e-2
