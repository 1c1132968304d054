"""Numbers that TransformerLens also gives are the same here; where it is wrong, the model's own tensors show it.

Runs in an environment that has TransformerLens (`make parity`); skipped elsewhere.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import unembed
from tests.conftest import tiny

pytest.importorskip("transformer_lens", reason="`make parity` runs these in an environment of their own")

pytestmark = pytest.mark.filterwarnings("ignore")

FAMILIES = ("gpt2", "llama", "qwen2", "gemma2")
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}


@cache
def pair(name: str) -> tuple[Any, Any]:
    """Our handle and TransformerLens' bridge on copies of the same weights; both with eager attention."""
    import copy

    from transformer_lens.model_bridge import TransformerBridge

    lm = tiny(name)
    hf = copy.deepcopy(lm.hf)
    hf.set_attn_implementation("eager")
    hf.config.architectures = [type(hf).__name__]
    bridge = TransformerBridge.boot_transformers(name, hf_model=hf, tokenizer=unembed.load().tokenizer, device="cpu")
    return lm, bridge


@pytest.mark.parametrize("name", FAMILIES)
def test_captures_are_the_same(name: str, tokens: torch.Tensor) -> None:
    lm, bridge = pair(name)
    points = ("resid_pre", "resid_mid", "resid_post")
    run = lm.run(tokens, capture=points)
    with torch.no_grad():
        logits, cache = bridge.run_with_cache(tokens)
    torch.testing.assert_close(run.logits, logits, **TOLERANCE)
    for layer in range(lm.n_layers):
        for point in points:
            torch.testing.assert_close(run[point][layer], cache[point, layer], **TOLERANCE)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_bridge_opens_as_the_model_in_it(name: str, tokens: torch.Tensor) -> None:
    lm, bridge = pair(name)
    opened = unembed.load(bridge)
    run = opened.run(tokens, capture=("resid_post", "pattern", "coefficients"))
    expected = lm.run(tokens, capture=("resid_post", "pattern", "coefficients"))
    torch.testing.assert_close(run.logits, expected.logits, **TOLERANCE)
    for layer in range(lm.n_layers):
        for point in ("resid_post", "pattern", "coefficients"):
            torch.testing.assert_close(run[point][layer], expected[point][layer], **TOLERANCE)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_weights_in_the_same_orientation(name: str) -> None:
    lm, bridge = pair(name)
    torch.testing.assert_close(lm.weights.W_U, bridge.W_U, rtol=0, atol=0)
    torch.testing.assert_close(lm.weights.W_E, bridge.W_E, rtol=0, atol=0)
    for layer in range(lm.n_layers):
        torch.testing.assert_close(lm.weights.W_Q[layer], bridge.W_Q[layer], rtol=0, atol=0)
        torch.testing.assert_close(lm.weights.W_O[layer], bridge.W_O[layer], rtol=0, atol=0)


def test_composition_scores_are_the_same() -> None:
    import unembed

    lm, bridge = pair("gpt2")
    ours = unembed.circuits(lm)
    for letter in "QKV":
        theirs = bridge.all_composition_scores(letter)
        mine = ours.composition(letter.lower(), basis="raw").to(theirs.dtype)
        later = torch.triu(torch.ones(lm.n_layers, lm.n_layers, dtype=torch.bool), diagonal=1)[:, None, :, None]
        later = later.expand_as(theirs)
        torch.testing.assert_close(mine[later], theirs[later], rtol=1e-4, atol=1e-6)


def sorted_by_size(values: torch.Tensor) -> torch.Tensor:
    """Eigenvalues by modulus, then by imaginary part, so that conjugate pairs stand in one order."""
    listed = sorted(values.tolist(), key=lambda v: (-round(abs(v), 5), v.imag))
    return torch.tensor(listed)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("circuit", ["ov", "qk"])
def test_eigenvalues_of_full_circuits_are_the_same(name: str, circuit: str) -> None:
    """Rotary positions: at offset 0 nothing is turned, which is all that the peer's product of weights knows."""
    from transformer_lens import FactoredMatrix

    import unembed

    lm, bridge = pair(name)
    ours = unembed.circuits(lm)
    spectra = ours.copying("raw", centre=False) if circuit == "ov" else ours.matching("raw", centre=False)
    W_E, W_U, shared = bridge.W_E, bridge.W_U, lm.n_heads // lm.n_kv_heads
    for layer in range(lm.n_layers):
        for head in range(lm.n_heads):
            W_Q, W_K, W_V, W_O = (
                lm.weights.W_Q[layer][head], lm.weights.W_K[layer][head // shared],
                lm.weights.W_V[layer][head // shared], lm.weights.W_O[layer][head],
            )  # fmt: skip
            product = (
                FactoredMatrix(W_E @ W_V, W_O @ W_U) if circuit == "ov" else FactoredMatrix(W_E @ W_Q, (W_E @ W_K).T)
            )
            theirs, mine = sorted_by_size(product.eigenvalues), sorted_by_size(spectra.eigenvalues[layer, head])
            scale = mine[0].abs() / theirs[0].abs()  # a score is divided by sqrt(d_head)
            torch.testing.assert_close(mine, theirs * scale, rtol=1e-3, atol=1e-4 * float(mine[0].abs()))


def test_centring_is_the_peers_centred_unembedding() -> None:
    """Ours leave the mean of W_U out by default; the peer does so where a model is processed (`center_unembed`)."""
    from transformer_lens import FactoredMatrix

    import unembed

    lm, bridge = pair("llama")
    ours = unembed.circuits(lm)
    W_U = bridge.W_U - bridge.W_U.mean(dim=1, keepdim=True)
    W_V, W_O = lm.weights.W_V[0][0], lm.weights.W_O[0][0]
    theirs = sorted_by_size(FactoredMatrix(bridge.W_E @ W_V, W_O @ W_U).eigenvalues)
    mine = sorted_by_size(ours.copying("raw").eigenvalues[0, 0])
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4 * float(mine[0].abs()))
    uncentred = sorted_by_size(ours.copying("raw", centre=False).eigenvalues[0, 0])
    assert (uncentred - mine).abs().max() > 1e-3 * mine.abs().max()


@pytest.mark.parametrize("name", FAMILIES)
def test_heads_are_detected_alike(name: str) -> None:
    """The peer's share of a pattern on a stripe is our mean attention on it, times the positions that have one."""
    from transformer_lens import head_detector

    import unembed

    lm, bridge = pair(name)
    once = torch.randperm(90, generator=torch.Generator().manual_seed(3))[:12] + 3
    tokens = torch.cat([once, once])[None]
    scores = unembed.circuits(lm).head_scores(tokens=tokens)
    with torch.no_grad():
        _, cache = bridge.run_with_cache(tokens)
    n, half = tokens.shape[1], len(once)
    for kind, with_one in (("previous_token", n - 1), ("duplicate_token", half), ("induction", half)):
        stripe = getattr(head_detector, f"get_{kind}_head_detection_pattern")(tokens)
        for layer in range(lm.n_layers):
            for head in range(lm.n_heads):
                theirs = head_detector.compute_head_attention_similarity_score(
                    cache["pattern", layer][0, head], stripe, exclude_bos=False, exclude_current_token=False,
                    error_measure="mul",
                )  # fmt: skip
                assert float(scores[kind][layer, head]) == pytest.approx(theirs * n / with_one, rel=1e-4, abs=1e-6)


def log_pattern_differences(lm: Any, tokens: torch.Tensor, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of the last position's sources above those of the first, as the model's own pattern has them."""
    pattern = lm.run(tokens, "pattern")["pattern"][0][0, head, -1].double().log()
    return pattern - pattern[0], pattern


def test_rotary_scores_are_those_of_the_model_and_the_peers_product_leaves_the_rotation_out() -> None:
    import unembed

    lm, _ = pair("llama")
    ours, tokens = unembed.circuits(lm), torch.tensor([[5, 17, 23, 42, 11, 8]])
    x = lm.run(tokens, "resid_pre")["resid_pre"][0][0].double()
    norm = lm.structure.blocks[0].attention.pre_norm
    assert norm is not None
    x = x / norm.scale(x) if norm.scale(x).ndim == x.ndim else x / norm.scale(x)[..., None]
    wanted, _ = log_pattern_differences(lm, tokens, 0)
    last = tokens.shape[1] - 1

    def scores(circuits: list[Any]) -> torch.Tensor:
        found = torch.stack([x[last] @ qk.double().dense() @ x[src] for src, qk in enumerate(circuits)])
        return (found - found[0]) / lm.d_head**0.5

    turned = scores([ours.qk(0, 0, offset=last - src, basis="folded") for src in range(last + 1)])
    plain = scores([ours.qk(0, 0, offset=0, basis="folded")] * (last + 1))
    torch.testing.assert_close(turned, wanted, rtol=1e-3, atol=1e-4)
    assert (plain - wanted).norm() > 0.05 * wanted.norm(), "without the rotation the product misses the model's scores"


def test_scores_behind_a_norm_of_queries_and_keys_are_not_a_product_of_weights() -> None:
    """A QK-norm divides each query and key by its own size: `score_terms` does so, W_Q W_K' cannot."""
    import unembed

    lm, tokens = tiny("qwen3"), torch.tensor([[5, 17, 23, 42, 11, 8]])
    found = unembed.circuits(lm).score_terms(tokens, 0, 0)
    wanted, _ = log_pattern_differences(lm, tokens, 0)
    exact = found.scores[-1].double() - found.scores[-1, 0].double()
    torch.testing.assert_close(exact, wanted, rtol=1e-3, atol=1e-4)
    assert any("norm" in note for note in unembed.circuits(lm).qk(0, 0).notes)
    x = lm.run(tokens, "resid_pre")["resid_pre"][0][0]
    product = x[-1] @ lm.weights.W_Q[0][0] @ lm.weights.W_K[0][0].T @ x.T / lm.d_head**0.5
    assert (product - product[0] - wanted).norm() > 0.1 * wanted.norm()


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
@pytest.mark.parametrize("point", ["resid_pre", "resid_mid", "attn_out", "mlp_out"])
def test_patched_activations_give_the_same_metric(name: str, point: str) -> None:
    from transformer_lens import patching

    lm, bridge = pair(name)
    clean, corrupted, metric = two_prompts()
    ours = lm.patch(clean, corrupted, point, metric).values
    with torch.no_grad():
        _, cache = bridge.run_with_cache(clean[None])
        patched = getattr(patching, f"get_act_patch_{point}")
        theirs = patched(bridge, corrupted[None], cache, lambda logits: metric(logits[:, -1])[0])
    torch.testing.assert_close(ours, theirs.double(), **TOLERANCE)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "gemma2"])
def test_patched_heads_give_the_same_metric(name: str) -> None:
    from transformer_lens import patching

    lm, bridge = pair(name)
    clean, corrupted, metric = two_prompts()
    ours = lm.patch(clean, corrupted, "z", metric).values
    by_position = lm.patch(clean, corrupted, "z", metric, positions=range(len(clean))).values
    with torch.no_grad():
        _, cache = bridge.run_with_cache(clean[None])
        arguments = (bridge, corrupted[None], cache, lambda logits: metric(logits[:, -1])[0])
        theirs = patching.get_act_patch_attn_head_out_all_pos(*arguments).double()
        each = patching.get_act_patch_attn_head_out_by_pos(*arguments).double()
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    torch.testing.assert_close(by_position, each.movedim(1, 2), **TOLERANCE)


def two_prompts() -> tuple[torch.Tensor, torch.Tensor, Any]:
    clean = torch.tensor([5, 17, 23, 42, 11, 8])
    corrupted = torch.tensor([5, 60, 23, 42, 31, 8])
    return clean, corrupted, lambda logits: logits[:, 7].double() - logits[:, 9].double()


def test_neuron_results_of_sandwich_norms_miss_the_norm_and_ours_do_not(tokens: torch.Tensor) -> None:
    """Gemma 2 norms what the FFN writes before adding it; the peer's per-neuron results do not sum to what is added.

    When this fails, the peer has been mended, and the note in the documentation goes.
    """
    lm, bridge = pair("gemma2")
    run = lm.run(tokens, capture=("resid_mid", "resid_post", "mlp_out", "coefficients"))
    added = run["resid_post"][0] - run["resid_mid"][0]
    torch.testing.assert_close(run["mlp_out"][0], added, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        _, cache = bridge.run_with_cache(tokens)
    torch.testing.assert_close(run["coefficients"][0], cache["post", 0], **TOLERANCE)
    summed = cache.get_neuron_results(0).sum(dim=-2)
    assert (summed - added).norm() / added.norm() > 0.1
    assert lm.trace(tokens[:1]).attribution(5, by="memory").error < 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_readings_of_a_published_jacobian_lens_are_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lens that the peer fits and saves is read here as the peer reads it; one that is saved here, there."""
    from transformer_lens.tools.analysis import JacobianLens as Peer

    from unembed.jacobian import open_lens

    lm, bridge = pair(name)
    made = torch.Generator().manual_seed(3)
    monkeypatch.setattr(bridge, "to_tokens", lambda _: torch.randint(3, bridge.cfg.d_vocab, (1, 12), generator=made))
    theirs = Peer.fit(bridge, ["a", "b"], corpus="random tokens", skip_first_positions=2, show_progress=False)
    tokens = bridge.to_tokens("c")
    theirs.save(str(tmp_path / "theirs.pt"), dtype=torch.float32)
    ours = open_lens(tmp_path / "theirs.pt").bound_to(lm)
    read = theirs.readout(bridge, tokens, return_full_logits=True)
    assert read.lens_logits is not None
    run = lm.run(tokens[0], capture=("resid_post",))
    for layer in range(lm.n_layers):
        mine = ours.read(run.at("resid_post", layer)[0], layer)
        torch.testing.assert_close(mine, read.lens_logits[layer], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(ours.read(run.at("resid_post", 0)[0], 0), run.logits[0], atol=1e-2)
    ours.save(tmp_path / "ours.pt")
    back = Peer.load(str(tmp_path / "ours.pt"))
    assert back.source_layers == theirs.source_layers and back.n_prompts == 2
    torch.testing.assert_close(back.jacobians[0], theirs.jacobians[0], rtol=1e-3, atol=1e-3)
