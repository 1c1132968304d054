"""A token's rise is its change by hand, over the mean and spread of the changes by other value vectors of the layer."""

from __future__ import annotations

import torch

from unembed.atlas.effects import REFERENCE, ValueEffects
from unembed.language_model import load
from unembed.memories.truth_of_values import value_effects
from unembed.memories.values import written_values


def test_a_rise_is_a_change_over_those_of_the_reference() -> None:
    wren = load("wren")
    windows = [torch.arange(i, i + 5) for i in range(3)]
    layer, vectors = 1, written_values(wren, 1, torch.tensor([0, 2]))
    measured = ValueEffects(wren, {"first": windows[:2], "second": windows[2:]}, seed=4)
    found = measured.of(layer, vectors, "first")

    generator = torch.Generator().manual_seed(4 * 10_007 + layer)
    drawn = torch.randperm(wren.n_memories_of(layer), generator=generator)[:REFERENCE]
    values = written_values(wren, layer, drawn)

    def changes(added: torch.Tensor) -> torch.Tensor:
        each = [value_effects(wren, added, layer, [window])[:, : wren.d_vocab].double() for window in windows[:2]]
        return sum((one / one.std(dim=1, keepdim=True) for one in each), torch.zeros(())) / 2

    usual = changes(torch.cat([values, -values]))
    expected = (changes(vectors) - usual.mean(dim=0)) / usual.std(dim=0).clamp_min(0.05)
    torch.testing.assert_close(found.changes.double(), changes(vectors), atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(found.rises.double(), expected, atol=2e-2, rtol=1e-2)
    assert not torch.allclose(measured.of(layer, vectors, "second").rises, found.rises)
