"""A model that another library has open; the parity tests open those of nnsight and TransformerLens themselves."""

import copy

import pytest
import torch

import unembed
from tests.families import build

TOKENS = torch.tensor([[3, 4, 5]])


@pytest.mark.parametrize("attribute", ["_module", "original_model", "_orig_mod"])
def test_the_model_inside_opens(attribute: str) -> None:
    model, outer = build("llama"), torch.nn.Module()
    setattr(outer, attribute, model)
    assert unembed.load(outer).hf is model
    assert torch.equal(unembed.load(outer).run(TOKENS).logits, unembed.load(model).run(TOKENS).logits)


class Bridge(torch.nn.Module):
    """A part that stands for another, and computes something else."""

    def __init__(self, original: torch.nn.Module) -> None:
        super().__init__()
        self._original_component = original

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice what the part gives."""
        return 2 * self._original_component(x)


def test_parts_that_stand_for_the_models_own_are_left_out_and_stay_where_they_are() -> None:
    model = build("llama")
    expected = unembed.load(copy.deepcopy(model)).run(TOKENS).logits
    block = model.model.layers[0]
    block.mlp = Bridge(block.mlp)
    opened = unembed.load(model)
    assert torch.equal(opened.run(TOKENS).logits, expected)
    assert isinstance(block.mlp, Bridge) and opened.hf is not model
    assert opened.hf.lm_head.weight.data_ptr() == model.lm_head.weight.data_ptr()


def test_a_part_whose_forward_was_replaced_runs_as_its_class_does() -> None:
    model = build("llama")
    expected = unembed.load(copy.deepcopy(model)).run(TOKENS).logits
    part = model.model.layers[0].mlp
    vars(part)["__nnsight__"] = True
    part.forward = lambda x: 0.0 * x
    assert torch.equal(unembed.load(model).run(TOKENS).logits, expected)
