"""SAELens opens the dictionaries that unembed writes, and unembed those that SAELens writes: the same numbers.

SAELens needs TransformerLens 3, so `make parity` runs this in that environment; skipped elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from unembed.dictionaries import Dictionary, open_dictionary, save_dictionary

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
