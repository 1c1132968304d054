"""Composition in models in which some layers have no attention."""

from __future__ import annotations

import torch

from tests.models.decoder_classes import tiny_model
from unembed.attention import Circuits
from unembed.language_model import load


def test_heads_compose_across_layers_without_attention() -> None:
    lm = load(tiny_model("granitemoehybrid"))
    writing, reading = lm.attention_layers
    assert (writing, reading) == (1, 3)
    circuits = Circuits(lm)
    for mode, ratios in circuits.compositions("raw").items():
        assert (ratios > 0).nonzero()[:, [0, 2]].unique(dim=0).tolist() == [[writing, reading]]
        assert ratios[[0, 2]].isnan().all() and ratios[:, :, [0, 2]].isnan().all()
        for a in range(lm.n_heads):
            for b in range(lm.n_heads):
                written = circuits.ov(writing, a).dense().double()
                qk, ov = circuits.qk(reading, b).dense().double(), circuits.ov(reading, b).dense().double()
                read = {"q": qk, "k": qk.T, "v": ov}[mode]
                ratio = (written @ read).norm() / written.norm() / read.norm()
                torch.testing.assert_close(ratios[writing, a, reading, b], ratio, rtol=1e-4, atol=1e-6)
    assert {partner.layer for partner in circuits.partners(reading, 0)} == {writing}
