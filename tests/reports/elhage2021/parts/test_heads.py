"""Heads as independent terms: against the model's own modules in float64, and with heads that are made to depend."""

from pathlib import Path

import pytest
import torch

import unembed
from tests.families import build
from tests.models.decoder_classes import tiny_model
from tests.sweeps.recorder import lettered, texts
from unembed.errors import Unsupported
from unembed.reports.elhage2021.measurements import Measurements
from unembed.reports.elhage2021.options import Options
from unembed.reports.elhage2021.parts import heads
from unembed.reports.stages import Work
from unembed.stream.run import run


def measured(family: str, path: Path, dtype: torch.dtype = torch.float64) -> Measurements:
    lm = unembed.load(build(family, dtype), tokenizer=lettered(family).tokenizer)
    return Measurements(lm, unembed.open_corpus(texts(8)), Work(path, {}), Options(None, 2, 200, 3))


@pytest.mark.parametrize("family", ["llama-biases", "gpt2", "qwen3"])
def test_heads_add_up_and_none_depends_on_another(family: str, tmp_path: Path) -> None:
    """The out-projection, one head's columns at a time, against the module's own output for all heads."""
    m = measured(family, tmp_path)
    found = heads.layers_of_heads(m)
    for one in found.layers:
        block = m.lm.structure.blocks[one.layer].attention
        z = run(m.lm, m.example, "z", logits=False).at("z", one.layer)
        zero = torch.zeros_like(z)
        with torch.no_grad():
            constant = block.out_projection(zero.flatten(-2))
            parts = []
            for head in range(one.n_heads):
                alone = zero.clone()
                alone[:, :, head] = z[:, :, head]
                parts.append(block.out_projection(alone.flatten(-2)) - constant)
            whole = block.out_projection(z.flatten(-2))
        torch.testing.assert_close(torch.stack(parts).sum(0) + constant, whole, rtol=1e-10, atol=1e-12)
        assert one.removed == int(torch.stack(parts).flatten(1).norm(dim=1).argmax())
        assert max(one.sum_error, one.removal_error, one.others_change) < 1e-10
        assert one.source_error is not None and one.source_error < 1e-10 and not one.normed
    assert heads.judge_independence(heads.independence(m)).verdict == "agrees"
    assert heads.judge_one_effect(heads.one_effect(m)).verdict == "agrees"


def test_half_precision_is_judged_by_its_own_tolerance(tmp_path: Path) -> None:
    m = measured("llama", tmp_path, torch.bfloat16)
    found = heads.independence(m)
    assert found.limit > 1e-3 and heads.judge_independence(found).verdict == "agrees"
    assert max(one.sum_error for one in found.layers) > 1e-5, "the sum was made in another precision"


def test_heads_before_a_norm_are_not_independent(tmp_path: Path) -> None:
    """Their outputs add up with the norm's scale of the run; without one of them the others add something else."""
    m = measured("gemma2", tmp_path)
    found = heads.layers_of_heads(m)
    assert all(one.normed and one.sum_error < 1e-6 and one.removal_error > 1e-2 for one in found.layers)
    with pytest.raises(Unsupported, match="a norm follows the sum of the heads"):
        heads.independence(m)
    assert heads.judge_independence(found).verdict == "differs"
    assert "A norm follows the heads" in " ".join(heads.section(m).text)


def test_a_gate_of_the_destination_changes_the_effect_of_a_source(tmp_path: Path) -> None:
    lm = unembed.load(tiny_model("qwen3_next"), tokenizer=lettered("gpt2").tokenizer)
    m = Measurements(lm, unembed.open_corpus(texts(8)), Work(tmp_path, {}), Options(None, 2, 200, 3))
    with pytest.raises(Unsupported, match="factors differ between positions"):
        heads.one_effect(m)
    assert heads.judge_independence(heads.independence(m)).verdict == "agrees"


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_source_raises_the_same_tokens_at_every_destination(family: str, tmp_path: Path) -> None:
    """The effect at each destination, from the difference of two runs that differ in one attention weight."""
    m = measured(family, tmp_path)
    name, _, rows = heads.effect_table(m)
    layer, head = (int(n) for n in name[1:].split("H"))
    assert len(rows["position"]) > 2
    final = m.lm.structure.final_norm
    assert final is not None
    full = torch.tensor(rows["at_full_attention"], dtype=torch.float64)
    torch.testing.assert_close(full, full[:1].expand_as(full), rtol=1e-6, atol=0)
    assert all(tokens == rows["raised_tokens"][0] for tokens in rows["raised_tokens"])
    seen = run(m.lm, m.example, ("pattern", "values", "z", "resid_post"))
    pattern = seen.at("pattern", layer)[0, head]
    kv = head // m.lm.structure.blocks[layer].attention.queries_per_kv
    last = m.lm.n_layers - 1
    token = m.lm.single_token(rows["raised_tokens"][0][0])
    source = _source(pattern, rows)
    for at, effect in zip(rows["position"], rows["effect"], strict=True):
        value = seen.at("values", layer)[0, kv, source]
        without = seen.at("z", layer)[0, at, head] - pattern[at, source] * value
        added = (seen.at("z", layer)[0, at, head] - without) @ m.lm.weights.W_O[layer][head]
        added = final.frozen(added[None], final.scale(seen.at("resid_post", last)[0, at])[None])[0]
        logits = added @ m.lm.weights.W_U
        # Value biases are not a source's effect, so compare the difference to that of a zero stream.
        bias = _bias_effect(m, layer, head, kv, pattern[at, source], seen.at("resid_post", last)[0, at])
        assert effect == pytest.approx(float((logits - bias)[token] - (logits - bias).mean()), rel=1e-6, abs=1e-12)


def _source(pattern: torch.Tensor, rows: dict[str, list]) -> int:
    """The source whose attention weights are those in the table."""
    weights = torch.tensor(rows["attention"], dtype=pattern.dtype)
    return int((pattern[rows["position"]] - weights[:, None]).abs().sum(0).argmin())


def _bias_effect(m: Measurements, layer: int, head: int, kv: int, weight: torch.Tensor, last: torch.Tensor):
    """What the biases of the norm and of the values add to each logit through the head at this weight."""
    norm, final = m.lm.structure.blocks[layer].attention.pre_norm, m.lm.structure.final_norm
    value = torch.zeros(m.lm.weights.W_V[layer].shape[-1], dtype=last.dtype)
    if norm is not None and norm.bias is not None:
        value = value + norm.bias @ m.lm.weights.W_V[layer][kv]
    if m.lm.weights.b_V[layer] is not None:
        value = value + m.lm.weights.b_V[layer][kv]
    added = weight * value @ m.lm.weights.W_O[layer][head]
    assert final is not None
    return final.frozen(added[None], final.scale(last)[None])[0] @ m.lm.weights.W_U
