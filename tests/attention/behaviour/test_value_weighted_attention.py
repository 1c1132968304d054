"""What a head carries from a source: its length, in every family."""

import pytest
import torch

from tests.conftest import tiny
from tests.families import FAMILIES
from unembed.attention.behaviour.value_weighted_attention import POINTS, contribution_norms
from unembed.errors import Unsupported

PROMPT = torch.tensor([[5, 9, 31, 5, 77, 12, 44]])


@pytest.mark.parametrize("name", list(FAMILIES))
def test_the_first_position_reads_itself_alone(name: str) -> None:
    lm = tiny(name)
    try:
        run = lm.run(PROMPT, (*POINTS, "z"))
    except Unsupported:
        assert name == "falcon-rw"
        return
    for layer in range(lm.n_layers):
        norms = contribution_norms(lm, run, layer)
        assert norms.shape == (lm.n_heads, 7, 7) and bool((norms >= 0).all()) and bool((norms.triu(1) == 0).all())
        written = torch.einsum("hd,hdm->hm", run.at("z", layer)[0, 0], lm.weights.W_O[layer]).norm(dim=-1)
        multiplier = abs(lm.structure.blocks[layer].attention.multiplier)
        torch.testing.assert_close(norms[:, 0, 0], written * multiplier, rtol=1e-4, atol=1e-6)


def test_contribution_norms_are_proportional_to_the_pattern() -> None:
    lm = tiny("gpt2")
    run = lm.run(PROMPT, POINTS)
    norms, pattern = contribution_norms(lm, run, 1), run.at("pattern", 1)[0]
    ratio = norms / pattern
    for src in range(7):
        carried = ratio[:, src:, src]
        torch.testing.assert_close(carried, carried[:, :1].expand_as(carried), rtol=1e-4, atol=1e-6)
