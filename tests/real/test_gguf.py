"""SmolLM2's published GGUF file opens as the copy that `unembed models get` made of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unembed
from unembed.language_model import LanguageModel

PROMPT = "The capital of France is"


def test_the_published_file_holds_the_model(smollm2: LanguageModel, smollm2_folder: Path) -> None:
    files = list(smollm2_folder.glob("*.gguf"))
    if not files:
        pytest.skip("this folder of SmolLM2 is without its GGUF file")
    lm = unembed.load(files[0])
    mine, copy = lm.hf.state_dict(), smollm2.hf.state_dict()
    assert list(mine) == list(copy) and all(torch.equal(mine[name], copy[name]) for name in mine)
    assert torch.equal(lm.encode(PROMPT), smollm2.encode(PROMPT))
    assert lm.provenance().notes == {"dequantised_from": "Q4_1 (210 of 272 tensors), Q8_0 (1 of 272 tensors)"}
