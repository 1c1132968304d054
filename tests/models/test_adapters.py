"""Folders with a PEFT adapter: applied and said, or refused by name; never dropped in silence."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import unembed
from tests.families import build
from unembed.errors import ExtraMissing, ModelUnavailable, UnembedWarning

# peft imports bitsandbytes, which imports this.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
TOKENS = torch.tensor([[3, 4, 5]])


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A folder with an adapter of the query projections of the tiny Llama in the folder beside it."""
    model = build("llama")
    model.save_pretrained(tmp_path / "base")
    folder = tmp_path / "adapter"
    folder.mkdir()
    about = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(
        json.dumps({**about, "base_model_name_or_path": str(tmp_path / "base")}), encoding="utf-8"
    )
    made = torch.Generator().manual_seed(0)
    rows = {}
    for name, weight in model.state_dict().items():
        if name.endswith("q_proj.weight"):
            path = f"base_model.model.{name.removesuffix('.weight')}"
            rows[f"{path}.lora_A.weight"] = torch.randn(4, weight.shape[1], generator=made)
            rows[f"{path}.lora_B.weight"] = torch.randn(weight.shape[0], 4, generator=made)
    save_file(rows, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def test_an_adapter_opens_over_its_base_model_and_says_so(adapter: Path) -> None:
    base = unembed.load(adapter.parent / "base").run(TOKENS).logits
    with pytest.warns(UnembedWarning, match="PEFT adapter, which is applied to .*base"):
        lm = unembed.load(adapter)
    assert float((lm.run(TOKENS).logits - base).abs().max()) > 1e-3


def test_a_model_with_an_adapter_beside_it_says_that_the_adapter_is_applied(adapter: Path) -> None:
    base = unembed.load(adapter.parent / "base").run(TOKENS).logits
    for file in (adapter.parent / "base").iterdir():
        shutil.copy(file, adapter)
    with pytest.warns(UnembedWarning, match="applied to the model in the same folder"):
        lm = unembed.load(adapter)
    assert float((lm.run(TOKENS).logits - base).abs().max()) > 1e-3


def test_without_peft_an_adapter_is_refused_and_never_dropped(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExtraMissing, match=r"PEFT adapter, and peft is not installed.*pip install peft"):
        unembed.load(adapter)


@pytest.mark.parametrize(("content", "why"), [("{", "cannot be read"), ("{}", "names no base model")])
def test_an_adapter_that_cannot_be_applied_is_one_line(adapter: Path, content: str, why: str) -> None:
    (adapter / "adapter_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelUnavailable, match=why):
        unembed.load(adapter)


def test_an_adapter_given_beside_its_model_is_what_its_own_folder_opens(adapter: Path) -> None:
    base = adapter.parent / "base"
    with pytest.warns(UnembedWarning, match="PEFT adapter"):
        meant = unembed.load(adapter).run(TOKENS).logits
    lm = unembed.load(base, adapter=adapter)
    assert torch.equal(lm.run(TOKENS).logits, meant)
    assert lm.name == "base+adapter" and lm.provenance().model == "base+adapter"
    assert not lm.hf.training


def test_an_adapter_of_another_model_says_so_and_one_that_does_not_fit_is_refused(
    adapter: Path, tmp_path: Path
) -> None:
    build("llama").save_pretrained(tmp_path / "other")
    with pytest.warns(UnembedWarning, match=r"adapter was trained on .*base; it is applied to other"):
        unembed.load(tmp_path / "other", adapter=adapter)
    with pytest.raises(ModelUnavailable, match=r"does not fit attn-1l|adapter.*another shape"):
        unembed.load("attn-1l", adapter=adapter)
    with pytest.raises(ModelUnavailable, match=r"contains no adapter_config\.json"):
        unembed.load("attn-1l", adapter=tmp_path / "other")


def test_without_peft_a_given_adapter_is_refused(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExtraMissing, match="pip install peft"):
        unembed.load(adapter.parent / "base", adapter=adapter)


def test_an_adapter_that_lacks_a_matrix_is_refused(adapter: Path) -> None:
    from safetensors.torch import load_file

    rows = load_file(adapter / "adapter_model.safetensors")
    kept = {name: rows[name] for name in list(rows)[1:]}
    save_file(kept, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnavailable, match="files lack"):
        unembed.load(adapter.parent / "base", adapter=adapter)
