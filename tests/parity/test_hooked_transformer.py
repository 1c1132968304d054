"""A HookedTransformer with folded norms opens as the model it was made of (`make parity` has TransformerLens 3)."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest
import torch

import unembed
from unembed.errors import InvalidInput
from unembed.models.shipped_models import shipped_folder

lens = pytest.importorskip("transformer_lens", reason="`make parity` runs these in an environment of their own")
if int(version("transformer-lens").partition(".")[0]) > 3:
    pytest.skip("TransformerLens 4 has no HookedTransformer", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")


def hooked() -> Any:
    """Wren as `from_pretrained` makes it: norms folded, weights centred; its own loader would ask the hub."""
    from transformer_lens.pretrained.weight_conversions import gpt2  # pyright: ignore[reportMissingImports]

    hf = unembed.load().hf
    c = hf.config
    config = lens.HookedTransformerConfig(
        n_layers=c.n_layer, d_model=c.n_embd, n_heads=c.n_head, d_head=c.n_embd // c.n_head, d_vocab=c.vocab_size,
        d_mlp=c.n_inner or 4 * c.n_embd, n_ctx=c.n_positions, eps=c.layer_norm_epsilon, act_fn=c.activation_function,
        normalization_type="LN", device="cpu", original_architecture="GPT2LMHeadModel",
    )  # fmt: skip
    model = lens.HookedTransformer(config)
    model.load_and_process_state_dict(gpt2.convert_gpt2_weights(hf, config))
    model.cfg.tokenizer_name = str(shipped_folder("wren"))
    return model.eval()


def test_a_hooked_transformer_opens_as_the_model_that_it_was_made_from(tokens: torch.Tensor) -> None:
    model = hooked()
    assert not torch.allclose(model.W_in[0], unembed.load().weights.W_in[0], atol=1e-3)
    opened = unembed.load(model)
    assert torch.equal(opened.run(tokens).logits, unembed.load().run(tokens).logits)
    model.W_U.data[:, 5] *= 2
    with pytest.raises(InvalidInput, match="differ from those of wren"):
        unembed.load(model)
