"""A HookedTransformer opens as the model of its name, if both predict the same; the parity tests have a real one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import PreTrainedModel

import unembed
from tests.families import build
from unembed.errors import InvalidInput

IDS = torch.tensor([[3, 4, 5]])


class HookedTransformer(torch.nn.Module):
    """A copy of a model whose logits are shifted, as a centred unembedding shifts them."""

    def __init__(self, hf: PreTrainedModel, name: str | None) -> None:
        super().__init__()
        self.held = [hf]
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.cfg = SimpleNamespace(
            tokenizer_name=name, original_architecture=name and "LlamaForCausalLM", d_vocab=97, dtype=torch.float32
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.held[0](tokens).logits + 3.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hooked") / "llama"
    build("llama").save_pretrained(path)
    return path


def test_it_opens_as_the_model_of_its_name(folder: Path) -> None:
    opened = unembed.load(HookedTransformer(build("llama"), str(folder)))
    assert opened.name == "llama" and torch.equal(opened.run(IDS).logits, unembed.load(build("llama")).run(IDS).logits)


def test_one_that_was_trained_further_is_refused(folder: Path) -> None:
    changed = build("llama")
    changed.lm_head.weight.data[7] += 0.5
    with pytest.raises(InvalidInput, match=r"log-probabilities differ from those of llama by up to \d"):
        unembed.load(HookedTransformer(changed, str(folder)))


def test_one_that_was_not_made_from_a_model_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not made by from_pretrained"):
        unembed.load(HookedTransformer(build("llama"), None))
