"""Circuits, copying and composition equal the dense float64 computation, on families of every kind."""

from functools import partial

import pytest
import torch

import unembed
from tests.conftest import tiny
from tests.families import FAMILIES
from unembed.attention.circuits import Circuits
from unembed.attention.weights import composition as pairs
from unembed.attention.weights.folded_weights import unembedding
from unembed.errors import InvalidInput, OutOfRange, Unsupported

MIXED = ["attention-only", "gpt2", "llama", "gpt_bigcode", "falcon-40b", "gpt_neox", "gemma2", "granite", "phi3"]
close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)


def of(name: str) -> Circuits:
    return unembed.circuits(tiny(name, torch.float64))


def dense_sides(name: str, layer: int, head: int, basis: str) -> tuple[torch.Tensor, ...]:
    """W_Q, W_K, W_V, W_O of one query head by the definition, norms folded by multiplying with diagonal matrices."""
    lm = tiny(name, torch.float64)
    site, w = lm.structure.blocks[layer].attention, lm.weights
    kv = head // (lm.n_heads // lm.n_kv_heads)
    sides = [w.W_Q[layer][head], w.W_K[layer][kv], w.W_V[layer][kv], w.W_O[layer][head]]
    if basis == "folded":
        if (norm := site.pre_norm) is not None:
            centring = torch.eye(lm.d_model, dtype=torch.float64) - (1 / lm.d_model if norm.centred else 0)
            sides[:3] = [centring @ torch.diag(norm.gain) @ side for side in sides[:3]]
        if site.branch_norm is not None:
            assert not site.branch_norm.centred
            sides[3] = sides[3] @ torch.diag(site.branch_norm.gain)
        sides[3] = sides[3] * site.multiplier
    return tuple(sides)


@pytest.mark.parametrize("basis", ["raw", "folded"])
@pytest.mark.parametrize("name", MIXED)
def test_both_circuits_are_products_of_the_head_s_own_weights(name: str, basis: str) -> None:
    circuits = of(name)
    for layer in range(2):
        for head in range(4):
            W_Q, W_K, W_V, W_O = dense_sides(name, layer, head, basis)
            close(circuits.ov(layer, head, basis).dense(), W_V @ W_O)
            close(circuits.qk(layer, head, basis=basis).dense(), W_Q @ W_K.T)


@pytest.mark.parametrize("name", ["attention-only", "gpt2", "llama", "gpt_neox", "phi3"])
def test_raw_circuits_are_views_on_the_model(name: str) -> None:
    circuits = of(name)
    storages = {p.untyped_storage().data_ptr() for p in circuits.lm.hf.parameters()}
    ov, qk = circuits.ov(1, 3), circuits.qk(1, 3)
    assert {t.untyped_storage().data_ptr() for t in (ov.left, ov.right, qk.left, qk.right)} <= storages


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("basis", ["raw", "folded"])
@pytest.mark.parametrize("name", MIXED)
def test_copying_and_matching_equal_dense_eigenvalues_over_the_vocabulary(name: str, basis: str, centre: bool) -> None:
    circuits = of(name)
    copying, matching = circuits.copying(basis, centre=centre), circuits.matching(basis, centre=centre)
    for layer in range(2):
        for head in range(4):
            for spectra, full in (
                (copying, circuits.ov_full(layer, head, basis, centre=centre)),
                (matching, circuits.qk_full(layer, head, basis=basis, centre=centre)),
            ):
                every = torch.linalg.eigvals(full.dense())
                expected = every.real.sum() / every[every.abs().argsort(descending=True)][:12].abs().sum()
                torch.testing.assert_close(spectra.score[layer, head], expected, rtol=1e-7, atol=1e-7)
    assert torch.equal(circuits.copying_scores(basis, centre=centre), copying.score)


def test_full_circuits_are_read_through_both_ends_of_the_model() -> None:
    circuits = of("granite")
    lm = circuits.lm
    ids = torch.tensor([5, 9, 70])
    W_V, W_O = dense_sides("granite", 1, 2, "folded")[2:]
    W_E = lm.weights.W_E[ids] * 3.0
    assert lm.structure.final_norm is not None
    W_U = lm.structure.final_norm.gain[:, None] * lm.weights.W_U / 2.0
    dense = W_E @ W_V @ W_O @ W_U
    close(circuits.ov_full(1, 2, "folded", sources=ids, centre=False).dense(), dense)
    close(circuits.ov_full(1, 2, "folded", sources=ids).dense(), dense - dense.mean(dim=1, keepdim=True))
    some = circuits.ov_full(1, 2, "folded", sources=ids, outputs=ids)
    close(some.dense(), (dense - dense.mean(dim=1, keepdim=True))[:, ids])
    raw = lm.weights.W_E[ids] @ circuits.ov(1, 2).dense() @ lm.weights.W_U[:, ids]
    close(circuits.ov_full(1, 2, sources=ids, outputs=ids, centre=False).dense(), raw)


def test_an_embedding_followed_by_a_norm_is_read_after_the_norm() -> None:
    circuits = of("bloom")
    ids = torch.tensor([5, 9, 70])
    entered = tiny("bloom", torch.float64).run(ids, "resid_pre").at("resid_pre", 0)[0]
    ov = circuits.ov(0, 1, "folded")
    dense = entered @ ov.dense() @ unembedding(circuits.lm, "folded")
    close(circuits.ov_full(0, 1, "folded", sources=ids, centre=False).dense(), dense)


def test_own_token_equals_the_dense_diagonal() -> None:
    circuits = of("gpt2")
    dense = circuits.ov_full(0, 2).dense()
    z = (dense.diagonal() - dense.mean(dim=1)) / dense.std(dim=1, correction=0)
    ranks = (dense > dense.diagonal()[:, None]).sum(dim=1)
    own = circuits.own_token(0, 2, top=7)
    assert own.mean_z == pytest.approx(z.mean().item(), rel=1e-9)
    assert own.top_share == pytest.approx((ranks < 7).double().mean().item())
    assert own.n_tokens == 97


@pytest.mark.parametrize("basis", ["raw", "folded"])
@pytest.mark.parametrize("name", MIXED)
def test_composition_equals_dense_frobenius_norms(name: str, basis: str) -> None:
    circuits = of(name)
    for mode in "qkv":
        found = circuits.composition(mode, basis=basis)
        assert found.shape == (2, 4, 2, 4)
        assert not found[1].any() and not found[:, :, 0].any()
        for a in range(4):
            for b in range(4):
                W_V, W_O = dense_sides(name, 0, a, basis)[2:]
                Q, K, V, out = dense_sides(name, 1, b, basis)
                written = W_V @ W_O
                read = {"q": Q @ K.T, "k": K @ Q.T, "v": V @ out}[mode]
                expected = (written @ read).norm() / (written.norm() * read.norm())
                torch.testing.assert_close(found[0, a, 1, b], expected, rtol=1e-10, atol=1e-12)


def test_composition_does_not_depend_on_how_heads_are_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    circuits = unembed.circuits(unembed.load("attn-2l"))
    whole = circuits.composition("k")
    monkeypatch.setattr(pairs, "_HEADS", 1)
    monkeypatch.setattr(pairs, "_BYTES", 1 << 15)
    torch.testing.assert_close(circuits.composition("k"), whole, rtol=1e-5, atol=1e-7)
    together = circuits.compositions()
    torch.testing.assert_close(together["k"], whole, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(together["q"], circuits.composition("q"), rtol=1e-5, atol=1e-7)


def test_the_baseline_is_what_random_circuits_have() -> None:
    circuits = of("gpt2")
    g = torch.Generator().manual_seed(3)
    ratios = []
    for _ in range(200):
        a, b, c, d = (torch.randn(48, 12, generator=g, dtype=torch.float64) for _ in range(4))
        left, right = a @ b.T, c @ d.T
        ratios.append((left @ right).norm() / (left.norm() * right.norm()))
    assert circuits.random_composition() == pytest.approx(torch.stack(ratios).mean().item(), rel=0.02)
    plain, less = circuits.composition("q"), circuits.composition("q", baseline=True)
    torch.testing.assert_close((plain - less)[0, :, 1], torch.full((4, 4), circuits.random_composition()).double())


@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_family_answers_or_gives_the_reason(name: str) -> None:
    circuits = unembed.circuits(tiny(name))
    for basis in ("raw", "folded"):
        assert torch.isfinite(circuits.copying_scores(basis)).all()
        try:
            circuits.qk(1, 3, offset=5, basis=basis)
        except Unsupported:
            assert not circuits.lm.structure.blocks[1].attention.scores.understood


def test_bad_questions_are_refused_with_the_reason() -> None:
    circuits = of("gpt2")
    with pytest.raises(OutOfRange, match="head 4"):
        circuits.ov(0, 4)
    with pytest.raises(OutOfRange, match="layer 2"):
        circuits.qk(2, 0)
    for offset in (-1, [3, -1]):
        with pytest.raises(InvalidInput, match="offset -1: a source never comes after its destination"):
            circuits.qk(0, 0, offset)
    with pytest.raises(InvalidInput, match="basis 'final'"):
        circuits.ov(0, 0, basis="final")
    with pytest.raises(InvalidInput, match="composition 'x'"):
        circuits.composition("x")
