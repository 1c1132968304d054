"""Scores taken apart give the model's own pattern: rotary, QK-norm, grouped keys, ALiBi, learned positions, caps."""

import pytest
import torch

import unembed
from tests.conftest import tiny
from tests.families import FAMILIES
from unembed.errors import Unsupported
from unembed.models.qk_norm import QKNorm

PROMPT = torch.tensor([[5, 9, 31, 5, 77, 12, 44]])


@pytest.mark.parametrize("name", list(FAMILIES))
def test_the_terms_give_the_pattern_of_every_family(name: str) -> None:
    lm = tiny(name)
    circuits = unembed.circuits(lm)
    try:
        found = circuits.score_terms(PROMPT, 1, 3)
    except Unsupported as refusal:
        assert name in ("falcon-rw", "olmo") or not lm.structure.blocks[1].attention.scores.understood, refusal
        return
    assert found.error < 1e-5
    assert torch.equal(found.pattern, lm.run(PROMPT, "pattern", layers=[1]).at("pattern", 1)[0, 3])
    seen = lm.trace(PROMPT).layer_heads(1)
    assert torch.equal(circuits.score_terms(PROMPT, 1, 3, seen=seen).scores, found.scores)
    positions = {"learned", "qk_learned"} & {lm.structure.positions}
    assert ("content x position" in found.terms) == bool(positions)
    assert ("alibi" in found.terms) == (lm.structure.positions == "alibi")


@pytest.mark.parametrize(("name", "basis"), [("llama", "folded"), ("gemma", "folded"), ("phi3", "folded")])
def test_the_rotary_circuit_gives_the_content_term_at_every_offset(name: str, basis: str) -> None:
    """On the model's own activations: x_dst W_QK(dst - src) x_src', each over its norm's scale."""
    lm = tiny(name, torch.float64)
    circuits = unembed.circuits(lm)
    found = circuits.score_terms(PROMPT, 1, 2)
    x = lm.run(PROMPT, "resid_pre").at("resid_pre", 1)[0]
    norm = lm.structure.blocks[1].attention.pre_norm
    assert norm is not None
    x = x / norm.scale(x)
    for dst in range(7):
        for src in range(dst + 1):
            circuit = circuits.qk(1, 2, offset=dst - src, basis=basis)
            score = circuits.scales[1] * x[dst] @ circuit.dense() @ x[src]
            torch.testing.assert_close(score, found.terms["content x content"][dst, src], rtol=1e-5, atol=1e-6)
    wrong = circuits.scales[1] * x[6] @ circuits.qk(1, 2, 0, basis).dense() @ x[0]
    assert not torch.isclose(wrong, found.terms["content x content"][6, 0], rtol=1e-3), "the offset matters"


def test_the_mean_over_offsets_is_the_mean_circuit() -> None:
    circuits = unembed.circuits(tiny("llama", torch.float64))
    mean = circuits.qk(0, 1, offset=range(1, 6))
    expected = torch.stack([circuits.qk(0, 1, offset=o).dense() for o in range(1, 6)]).mean(0)
    torch.testing.assert_close(mean.dense(), expected, rtol=1e-10, atol=1e-10)
    assert "mean of 1 to 5" in repr(mean)


def test_learned_positions_and_content_are_separate_terms() -> None:
    lm = tiny("attention-only", torch.float64)
    circuits = unembed.circuits(lm)
    found = circuits.score_terms(PROMPT, 0, 1)
    qk, scale = circuits.qk(0, 1).dense(), circuits.scales[0]
    x, p = lm.weights.W_E[PROMPT[0]], lm.weights.W_pos
    assert p is not None
    torch.testing.assert_close(found.terms["content x content"], scale * x @ qk @ x.T)
    torch.testing.assert_close(found.terms["content x position"], scale * x @ qk @ p[:7].T)
    torch.testing.assert_close(found.terms["position x position"], scale * p[:7] @ qk @ p[:7].T)


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "olmo2", "phi-qk-norm", "stablelm-parallel", "cohere-qk-norm"])
def test_qk_norm_is_its_gain_over_a_size(name: str) -> None:
    lm = tiny(name, torch.float64)
    site = lm.structure.blocks[1].attention
    assert site.scores.q_norm is not None
    norm = QKNorm.of(site.scores.q_norm, 4, 12, lm.weights.W_Q[1])
    x = torch.randn(4, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rebuilt = norm.linear(x) / norm.sizes(x) + norm.bias[:, None]
    out = site.scores.q_norm(x.transpose(0, 1).reshape(5, *norm.shape[1:])).view(5, 4, 12).transpose(0, 1)
    torch.testing.assert_close(rebuilt, out, rtol=1e-5, atol=1e-6)
    assert any("QK-norm" in note for note in unembed.circuits(lm).qk(1, 0).notes)


def test_the_table_has_the_terms_of_every_pair_of_positions() -> None:
    found = unembed.circuits(tiny("gpt2")).score_terms(PROMPT, 1, 3)
    rows = list(found.to_table().rows())
    assert len(rows) == 7 * 8 // 2
    for row in rows:
        assert sum(row[name] for name in found.terms) == pytest.approx(row["score"], abs=1e-6)
        assert row["attention"] == float(found.pattern[row["destination"], row["source"]])
