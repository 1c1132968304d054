"""A pass of one position on kept keys and values gives what a pass of the whole prompt gives there."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from tests.conftest import tiny
from unembed.language_model import LanguageModel
from unembed.names import SUM_TOLERANCE
from unembed.stream.attention_keys import attending_to, keep_keys, keeps_keys

KEPT = ["gpt2", "llama", "gemma2", "qwen2_moe", "gpt_neox", "phi3"]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("position", [0, 5, -1])
def test_one_position_on_kept_keys(name: str, dtype: torch.dtype, position: int, tokens: torch.Tensor) -> None:
    lm = tiny(name, dtype)
    assert keeps_keys(lm)
    ids = tokens[:1]
    position %= ids.shape[1]
    with ExitStack() as stack:
        kept = keep_keys(stack, lm)
        whole = lm.hf(ids, use_cache=False).logits[0, position].double()
    other = lm.hf(ids[:, :1].expand(3, 1), position_ids=torch.full((3, 1), position), use_cache=False).logits[1, 0]
    with attending_to(lm, kept, position):
        places = torch.full((3, 1), position)
        found = lm.hf(ids[:, [position]].expand(3, 1), position_ids=places, use_cache=False).logits[:, 0].double()
    tolerance = 1e-5 if dtype == torch.float32 else SUM_TOLERANCE[lm.dtype_name]
    scale = float(whole.abs().max())
    assert float((found - whole).abs().max()) <= tolerance * scale
    if position:  # the same pass without them differs
        assert float((other.double() - whole).abs().max()) > 2 * tolerance * scale
    plain = lm.hf(ids, use_cache=False).logits[0, position].double()  # the model is as it was
    torch.testing.assert_close(plain, whole, rtol=0, atol=0)


def test_models_whose_attention_has_no_function_to_replace_keep_none(any_lm: LanguageModel) -> None:
    mixers = [block.mixer for block in any_lm.structure.blocks if block.mixer is not None]
    if keeps_keys(any_lm):
        assert all(mixer.is_attention for mixer in mixers)
    for name in ("gptj", "bloom"):
        assert not keeps_keys(tiny(name))
