"""Every family answers what patching and ablation can answer of its architecture, and refuses the rest by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from tests.conftest import tiny
from tests.families import ATTENTION_ONLY, FAMILIES, PARALLEL
from tests.models.decoder_classes import tiny_model
from torch import Tensor

import unembed
from unembed.causality.estimated_effects import attribution_patching
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import Rerun, layers_with
from unembed.errors import PointMissing, Unsupported
from unembed.language_model import LanguageModel
from unembed.names import PATCH_POINTS
from unembed.stream.interventions import Edit

CLEAN = torch.tensor([5, 17, 23, 42, 11, 8])
CORRUPTED = torch.tensor([5, 60, 23, 42, 31, 8])
LACKS: dict[str, set[str]] = {
    **{name: {"resid_mid"} for name in PARALLEL},
    **{name: {"resid_mid", "mlp_out", "coefficients"} for name in ATTENTION_ONLY},
    "falcon-rw": {"pattern"},  # its eager attention adds ALiBi twice
    "mamba": {"resid_mid", "mlp_out", "coefficients", "z", "pattern"},
    "rwkv": {"resid_mid", "z", "pattern"},
    "zamba": {"resid_mid", "mlp_out", "coefficients", "pattern"},
    "nemotron_h": {"resid_mid"},
    "falcon_h1": {"resid_mid"},
    "gemma3n_text": {"resid_pre", "resid_mid", "resid_post"},
    "qwen3_5": {"pattern"},
    "diffllama": {"pattern"},
    "zaya": {"resid_mid"},
    "inkling_text": {"z", "pattern", "coefficients"},
}
"""By family, the points that its architecture lacks or that cannot be replaced in it."""
OTHERS = (
    *("gemma4", "deepseek_v3", "gpt_oss", "jamba", "mamba", "rwkv", "zamba", "nemotron_h", "falcon_h1", "gemma3n_text"),
    *("qwen3_5", "diffllama", "zaya", "inkling_text"),
)
"""Model types beside the families: mixers that are no attention, keys shared by layers, several streams, experts."""
MORE_THAN_THE_STREAM = ("gemma4", "zamba", "zaya")
"""Layers read more than the stream: embeddings, keys of another layer, what the router of the layer below computed."""
NAMED = {"pattern": ("values",), "coefficients": ("memories",)}
"""What a refusal of a point may be about: a replaced pattern mixes values, and coefficients are those of memories."""


@cache
def opened(name: str) -> LanguageModel:
    return tiny(name) if name in FAMILIES else unembed.load(tiny_model(name))


def metric(logits: Tensor) -> Tensor:
    return logits[:, 7].double() - logits[:, 9].double()


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_a_run_patched_into_itself_is_bit_for_bit_itself(name: str) -> None:
    lm, refused = opened(name), set()
    for point in PATCH_POINTS:
        try:
            own = Rerun(lm, CLEAN, (point,))
            for layer in layers_with(lm, point):
                head = 1 if point in ("z", "pattern") else None
                value = own.activation(point, layer)
                value = value[:, 1] if point == "z" else value[1] if point == "pattern" else value
                found = own.logits([[Replacement(point, layer, None, head, value)]])[0]
                assert torch.equal(found, own.reference), (point, layer)
        except (PointMissing, Unsupported) as error:
            assert any(word in str(error) for word in (point, *NAMED.get(point, ()))), error
            refused.add(point)
    assert refused == LACKS.get(name, set())


@pytest.mark.parametrize("name", [n for n in (*FAMILIES, *OTHERS) if n not in (*MORE_THAN_THE_STREAM, "gemma3n_text")])
def test_all_positions_of_a_layer_give_bit_for_bit_the_other_run(name: str) -> None:
    lm = opened(name)
    clean, corrupted = Rerun(lm, CLEAN, ("resid_pre", "resid_post")), Rerun(lm, CORRUPTED)
    assert not torch.equal(clean.reference, corrupted.reference)
    for layer in range(lm.n_layers):
        for point in ("resid_pre", "resid_post"):
            row = [Replacement(point, layer, None, None, clean.activation(point, layer))]
            assert torch.equal(corrupted.logits([row])[0], clean.reference)


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_total_effects_are_those_of_ablating_each_writer_at_the_position(name: str) -> None:
    lm = opened(name)
    trace = lm.trace(CLEAN)
    before = float(metric(lm.run(CLEAN).logits[:, -1]))
    edits: dict[str, Callable[[int, int | None], Edit]] = {
        "head": lambda layer, index: unembed.scale_head(layer, index or 0, 0.0, positions=-1),
        "memory": lambda layer, index: unembed.set_coefficient(layer, index or 0, 0.0, positions=-1),
        "attention": lambda layer, _: unembed.scale_attention(layer, 0.0, positions=-1),
        "mixer": lambda layer, _: unembed.scale_attention(layer, 0.0, positions=-1),
        "ffn": lambda layer, _: unembed.scale_ffn(layer, 0.0, positions=-1),
    }
    seen = set()
    for by in ("head", "memory", "component"):
        try:
            rows = trace.attribution(7, against=9, by=by).with_effects(8).rows
        except (PointMissing, Unsupported) as error:
            needed = {"head": {"z"}, "memory": {"coefficients"}, "component": {"attn_out", "mlp_out"}}[by]
            assert (needed | {"attn_out"}) & LACKS[name], error
            continue
        for row in rows:
            if row.total is None:
                continue
            kind = row.label.split()[0]
            after = float(metric(lm.run(CLEAN, edits=[edits[kind](row.layer, row.index)]).logits[:, -1]))
            assert row.total == pytest.approx(before - after, rel=1e-3, abs=1e-4), row.label
            seen.add(kind)
    assert seen or "attn_out" in LACKS[name]


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_a_screen_is_the_derivative_of_the_ablation(name: str) -> None:
    lm = opened(name)
    if {"z", "coefficients"} <= LACKS.get(name, set()):
        with pytest.raises(PointMissing, match="no heads or memories"):
            attribution_patching(lm, CLEAN, metric)
        return
    found = attribution_patching(lm, CLEAN, metric, top=3)
    assert len(found.exact) == 3
    if "z" in LACKS.get(name, set()):
        estimate, scaled = found.memories, unembed.scale_coefficient
    else:
        estimate, scaled = found.heads, unembed.scale_head
    assert estimate is not None
    # The last layer: the layers below pass through experts, whose choice makes jumps.
    layer, step = max(n for n in range(lm.n_layers) if bool(estimate[n, 0].isfinite())), 1e-2
    for index in (0, 1):
        up, down = (
            float(metric(lm.run(CLEAN, edits=[scaled(layer, index, by)]).logits[:, -1])) for by in (1 + step, 1 - step)
        )
        assert float(estimate[layer, index]) == pytest.approx((up - down) / (2 * step), rel=2e-2, abs=1e-3)
