"""SAELens opens the dictionaries that unembed writes, and unembed those that SAELens writes: the same numbers.

SAELens and SAEBench take the memories of a layer as a dictionary. SAELens needs TransformerLens 3, so `make parity`
runs this in that environment; skipped elsewhere.
"""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import unembed
from tests.conftest import tiny
from unembed.dictionaries import Dictionary, MemoryDictionary, open_dictionary, save_dictionary
from unembed.language_model import LanguageModel
from unembed.stream.hooks import attach_hooks

sae_lens = pytest.importorskip("sae_lens", reason="`make parity` runs these in an environment of their own")

pytestmark = pytest.mark.filterwarnings("ignore")
D, N, K = 16, 48, 5
X = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(9))
NAMES = {"relu": "Standard", "jumprelu": "JumpReLU", "topk": "TopK", "gated": "Gated"}


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def agree(ours: Dictionary, theirs: Any) -> None:
    features = theirs.encode(X)
    features = features.to_dense() if features.is_sparse else features
    assert 0.05 < float((features > 0).float().mean()) < 0.95
    torch.testing.assert_close(ours.encode(X), features, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.decode(features), theirs.decode(features), rtol=1e-5, atol=1e-5)


def dictionary(activation: str, writes: str, b_in: torch.Tensor | None) -> Dictionary:
    parts = {"jumprelu": {"threshold": random(N, seed=4).abs()}, "topk": {"k": K}}
    parts["gated"] = {"r_mag": random(N, seed=5) / 4, "b_mag": random(N, seed=6)}
    made: dict[str, Any] = {"b_in": b_in, "reads": "mlp_in", "writes": writes, "layer": 2, **parts.get(activation, {})}
    W_enc, b_enc = random(D, N, seed=0), random(N, seed=1)
    return Dictionary(W_enc, b_enc, (random(N, D, seed=2),), random(D, seed=3), activation, **made)


@pytest.mark.parametrize("activation", list(NAMES))
@pytest.mark.parametrize("b_in", [None, random(D, seed=3), random(D, seed=8)], ids=["none", "b_dec", "another"])
@pytest.mark.parametrize("writes", ["mlp_in", "mlp_out"])
def test_saelens_opens_what_unembed_writes(
    activation: str, writes: str, b_in: torch.Tensor | None, tmp_path: Path
) -> None:
    ours = dictionary(activation, writes, b_in)
    theirs = sae_lens.SAE.load_from_disk(save_dictionary(ours, tmp_path))
    has_class = writes == "mlp_in" or activation in ("relu", "jumprelu")
    kind = "SAE" if writes == "mlp_in" or not has_class else "Transcoder"
    assert type(theirs).__name__ == f"{NAMES[activation]}{kind}".replace("StandardTranscoder", "Transcoder")
    assert theirs.cfg.metadata.hook_name == "blocks.2.mlp.hook_in"
    agree(ours, theirs)


@pytest.mark.parametrize("kind", [*(f"{name}SAE" for name in NAMES.values()), "Transcoder", "JumpReLUTranscoder"])
def test_unembed_opens_what_saelens_writes(kind: str, tmp_path: Path) -> None:
    is_transcoder = "Transcoder" in kind
    fields: dict[str, Any] = {"k": K} if kind == "TopKSAE" else {}
    fields |= {"d_out": D, "apply_b_dec_to_input": False} if is_transcoder else {}
    theirs = getattr(sae_lens, kind)(getattr(sae_lens, f"{kind}Config")(d_in=D, d_sae=N, **fields))
    theirs.cfg.metadata.hook_name = "blocks.2.mlp.hook_in"
    theirs.cfg.metadata.hook_name_out = "blocks.2.hook_mlp_out" if is_transcoder else None
    for seed, (name, parameter) in enumerate(theirs.named_parameters()):
        made = random(*parameter.shape, seed=seed)
        parameter.data = made.abs() if name == "threshold" else made / 4 if name == "r_mag" else made
    theirs.save_model(tmp_path)
    ours = open_dictionary(tmp_path)
    assert isinstance(ours, Dictionary) and (ours.reads, ours.layer) == ("mlp_in", 2)
    assert ours.is_transcoder == is_transcoder
    with torch.no_grad():
        agree(ours, theirs)


@cache
def bridge(name: str) -> tuple[LanguageModel, Any]:
    """Our handle and SAELens' model on copies of the same weights."""
    from sae_lens.analysis.sae_transformer_bridge import SAETransformerBridge  # pyright: ignore[reportMissingImports]

    lm = tiny(name)
    hf = copy.deepcopy(lm.hf)
    hf.set_attn_implementation("eager")
    hf.config.architectures = [type(hf).__name__]
    tokenizer = unembed.load().tokenizer
    return lm, SAETransformerBridge.boot_transformers(name, hf_model=hf, tokenizer=tokenizer, device="cpu")


@pytest.mark.parametrize("split_signs", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "gemma2"])
def test_saelens_attaches_memories_in_place_of_the_ffn(name: str, split_signs: bool, tokens: torch.Tensor) -> None:
    lm, model = bridge(name)
    memories = MemoryDictionary(lm, 1, split_signs=split_signs)
    with torch.no_grad():
        logits = model(tokens)
        x = model.run_with_cache(tokens)[1][memories.cfg.hook_name]
        torch.testing.assert_close(x, lm.run(tokens, "mlp_in").at("mlp_in", 1), rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(model.run_with_saes(tokens, saes=[memories]), logits, rtol=1e-5, atol=1e-5)
        two = MemoryDictionary(lm, 1, split_signs=split_signs, k=2)
        fewer = model.run_with_saes(tokens, saes=[two])
        restored = model.run_with_saes(tokens, saes=[two], use_error_term=True)
    assert float((fewer - logits).abs().max()) > 1e-3
    torch.testing.assert_close(restored, logits, rtol=1e-5, atol=1e-5)

    def largest(m: torch.Tensor, _layer: int) -> torch.Tensor:
        sizes = (m * lm.weights.W_out[1].norm(dim=-1)).abs()
        return m * (sizes >= sizes.topk(2).values[..., -1:])

    with attach_hooks(lm, {}, hooks={("coefficients", 1): largest}), torch.no_grad():
        torch.testing.assert_close(fewer, lm.hf(tokens).logits, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("split_signs", [False, True])
def test_saelens_counts_the_firings_of_memories(split_signs: bool, tokens: torch.Tensor) -> None:
    from sae_lens import evals  # pyright: ignore[reportMissingImports]
    from sae_lens.training.activation_scaler import ActivationScaler  # pyright: ignore[reportMissingImports]

    lm, model = bridge("llama")
    memories = MemoryDictionary(lm, 1, split_signs=split_signs, k=5)
    store = SimpleNamespace(get_batch_tokens=lambda _size: tokens, reset_input_dataset=lambda: None)
    store.context_size, store.store_batch_size_prompts = tokens.shape[1], tokens.shape[0]
    config = evals.EvalConfig(
        batch_size_prompts=2,
        compute_sparsity_metrics=True,
        compute_featurewise_density_statistics=True,
        compute_featurewise_weight_based_metrics=True,
    )
    found, features = evals.run_evals(memories, store, model, ActivationScaler(), config, exclude_special_tokens=False)
    own = memories.encode(lm.run(tokens, "mlp_in").at("mlp_in", 1)).flatten(0, 1)
    assert found["sparsity"]["l0"] == 5
    assert found["sparsity"]["l1"] == pytest.approx(float(own.abs().sum(-1).mean()), rel=1e-5)
    assert features["feature_density"] == pytest.approx((own != 0).float().mean(0).tolist())
    W_gate = lm.weights.W_gate[1]
    cosine = torch.nn.functional.cosine_similarity(W_gate.T, lm.weights.W_out[1]).tolist()
    expected = [*cosine, *(-c for c in cosine)] if split_signs else cosine
    assert features["encoder_decoder_cosine_sim"] == pytest.approx(expected, abs=1e-5)


def test_saebench_averages_the_features_of_memories(tokens: torch.Tensor) -> None:
    reason = "`make parity` installs SAEBench"
    collection = pytest.importorskip("sae_bench.sae_bench_utils.activation_collection", reason=reason)
    general = pytest.importorskip("sae_bench.sae_bench_utils.general_utils", reason=reason)
    lm = tiny("llama")
    memories = MemoryDictionary(lm, 1, split_signs=True)
    with pytest.warns(UserWarning, match="not normalized"):
        assert not general.check_decoder_norms(memories.W_dec.data)
    memories.fold_W_dec_norm()
    _, opened, _ = general.load_and_format_sae("wren", memories, "cpu")
    assert general.check_decoder_norms(opened.W_dec.data)
    assert (opened.cfg.architecture_str, opened.cfg.metadata.hook_layer) == ("memories", 1)
    x = lm.run(tokens, "mlp_in").at("mlp_in", 1)
    found = collection.get_sae_meaned_activations({"text": x}, opened, 1)["text"]
    torch.testing.assert_close(found, memories.encode(x).mean(1), rtol=1e-5, atol=1e-6)
