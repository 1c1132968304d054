"""Files of dictionaries: hooks mean what TransformerLens means by them, and what is damaged is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import unembed
from tests.families import build
from unembed.dictionaries.files import open_dictionary, save_dictionary
from unembed.errors import InvalidInput, UnembedError
from unembed.language_model import LanguageModel

IDS = torch.tensor([[3, 4, 5, 6]])
LAYER = 1


def weights(d: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    return {
        "W_enc": torch.randn(d, 40, generator=made),
        "b_enc": torch.randn(40, generator=made),
        "W_dec": torch.randn(40, d, generator=made),
        "b_dec": torch.randn(d, generator=made),
    }


def folder(path: Path, tensors: dict[str, torch.Tensor], **fields: Any) -> Path:
    path.mkdir()
    save_file(tensors, path / "sae_weights.safetensors")
    about = {"architecture": "standard", "hook_name": f"blocks.{LAYER}.hook_resid_post", **fields}
    (path / "cfg.json").write_text(json.dumps(about), encoding="utf-8")
    return path


def model(family: str) -> tuple[LanguageModel, dict[str, torch.Tensor]]:
    """A model whose norms have gains and biases, and what plain hooks see around the norm before a layer's FFN."""
    hf = build(family)
    made = torch.Generator().manual_seed(1)
    for module in hf.modules():
        if "norm" in type(module).__name__.lower():
            for parameter in module.parameters():
                parameter.data = 0.5 + torch.rand(parameter.shape, generator=made)
    lm = unembed.load(hf)
    site = lm.structure.blocks[LAYER].feed_forward
    assert site is not None and site.pre_norm is not None
    module, seen = site.pre_norm.module, {}
    handle = module.register_forward_hook(lambda _m, given, out: seen.update(before=given[0], after=out))
    with torch.no_grad():
        seen["logits"] = hf(IDS).logits
    handle.remove()
    x = seen["before"].detach().double()
    eps = getattr(module, "eps", None) or getattr(module, "variance_epsilon", None) or module.eps
    if family == "gpt2":
        x = x - x.mean(-1, keepdim=True)
    seen["normalized"] = (x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()).float()
    return lm, seen


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize(
    ("hook", "meant"),
    [
        ("hook_mlp_in", "before"),
        ("hook_resid_mid", "before"),
        ("ln2.hook_normalized", "normalized"),
        ("mlp.hook_in", "after"),
    ],
)
def test_a_hook_is_read_where_transformer_lens_has_it(family: str, hook: str, meant: str, tmp_path: Path) -> None:
    lm, seen = model(family)
    own = weights(lm.d_model)
    x = seen[meant].detach()
    for name, apply in (("plain", False), ("minus the bias", True)):
        at = folder(tmp_path / name, own, hook_name=f"blocks.{LAYER}.{hook}", apply_b_dec_to_input=apply)
        expected = ((x - own["b_dec"] * apply) @ own["W_enc"] + own["b_enc"]).relu()
        found = lm.attach(at).features(IDS)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.max()))
        again = save_dictionary(open_dictionary(at), tmp_path / f"{name} again")  # type: ignore[arg-type]
        assert torch.equal(lm.attach(again).features(IDS), found)


def test_a_dictionary_of_centred_weights_reads_centred_activations_where_norms_centre(tmp_path: Path) -> None:
    own = weights(build("gpt2").config.hidden_size)
    for family, is_centred in (("gpt2", True), ("llama", False)):
        lm = unembed.load(build(family))
        own = weights(lm.d_model)
        at = folder(
            tmp_path / family,
            own,
            apply_b_dec_to_input=True,
            model_from_pretrained_kwargs={"center_writing_weights": True},
        )
        x = lm.run(IDS, "resid_post").at("resid_post", LAYER)
        x = x - x.mean(-1, keepdim=True) if is_centred else x
        expected = ((x - own["b_dec"]) @ own["W_enc"] + own["b_enc"]).relu()
        assert torch.allclose(lm.attach(at).features(IDS), expected, rtol=1e-4, atol=1e-5)


def _cut(path: Path, to: int) -> None:
    path.write_bytes(path.read_bytes()[:to])


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "cfg.json: it is not JSON": lambda at: (at / "cfg.json").write_text('{"architecture": "stan'),
    "cfg.json is not a JSON object": lambda at: (at / "cfg.json").write_text("[]"),
    "cfg.json cannot be read: it is not UTF-8": lambda at: (at / "cfg.json").write_bytes(b'{"a": "\xff"}'),
    "sae_weights.safetensors cannot be read": lambda at: _cut(at / "sae_weights.safetensors", 500),
    "sae_weights.safetensors cannot be read: ": lambda at: _cut(at / "sae_weights.safetensors", 0),
}


@pytest.mark.parametrize("why", list(DAMAGE))
def test_a_damaged_file_is_refused_by_its_name(why: str, tmp_path: Path) -> None:
    at = folder(tmp_path / "it", weights(8))
    DAMAGE[why](at)
    with pytest.raises(InvalidInput) as caught:
        open_dictionary(at)
    assert why.split(":")[0].strip() in str(caught.value) and why.split(":")[-1].strip() in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lacking", ["W_enc", "b_enc", "W_dec", "b_dec"])
def test_a_missing_tensor_is_refused_by_its_name(lacking: str, tmp_path: Path) -> None:
    rest = {name: tensor for name, tensor in weights(8).items() if name != lacking}
    with pytest.raises(InvalidInput, match=f"contains no {lacking}"):
        open_dictionary(folder(tmp_path / "saelens", rest))
    (tmp_path / "scope").mkdir()
    np.savez(tmp_path / "scope" / "params.npz", **{name: tensor.numpy() for name, tensor in rest.items()})
    with pytest.raises(InvalidInput, match=rf"params\.npz contains no {lacking}"):
        open_dictionary(tmp_path / "scope")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"no archive"])
def test_a_cut_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "params.npz").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"params\.npz cannot be read"):
        open_dictionary(tmp_path)


@pytest.mark.parametrize("shape", [(40,), (40, 8, 2), (39, 8)])
def test_a_tensor_of_another_shape_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    for name in ("W_enc", "W_dec", "b_enc", "b_dec"):
        at = folder(tmp_path / name, {**weights(8), name: torch.zeros(shape)})
        if name == "b_dec" and shape == (40,):
            with pytest.raises(UnembedError):
                unembed.load(build("gpt2")).attach(at)
            continue
        with pytest.raises(UnembedError) as caught:
            opened = open_dictionary(at)
            unembed.load(build("gpt2")).attach(opened)
        assert "\n" not in str(caught.value)


def test_a_layer_that_a_cross_layer_transcoder_lacks_is_refused(tmp_path: Path) -> None:
    save_file({"W_enc_0": torch.zeros(40, 8), "b_enc_0": torch.zeros(40)}, tmp_path / "W_enc_0.safetensors")
    with pytest.raises(InvalidInput, match=r"W_dec_0\.safetensors cannot be read"):
        open_dictionary(tmp_path)
