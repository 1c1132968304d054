"""Virtual heads against dense products in float64 and against runs of the model."""

from pathlib import Path

import pytest
import torch

import unembed
from tests.families import build
from tests.models.decoder_classes import tiny_model
from tests.sweeps.recorder import lettered, texts
from unembed.errors import Unsupported
from unembed.models.architectures.attention_only import AttentionOnlyConfig, AttentionOnlyForCausalLM
from unembed.models.decoder import Decoder
from unembed.reports.elhage2021.measurements import Measurements
from unembed.reports.elhage2021.options import Options
from unembed.reports.elhage2021.parts import virtual
from unembed.reports.stages import Work
from unembed.stream.run import run


def measured(lm: Decoder, path: Path) -> Measurements:
    return Measurements(lm, unembed.open_corpus(texts(8)), Work(path, {}), Options(None, 2, 200, 3))


def attention_only(layers: int) -> Decoder:
    torch.manual_seed(0)
    tokenizer, d_vocab = lettered("gpt2").tokenizer, lettered("gpt2").d_vocab
    config = AttentionOnlyConfig(vocab_size=d_vocab, hidden_size=16, num_hidden_layers=layers, num_attention_heads=2)
    return unembed.load(AttentionOnlyForCausalLM(config).double().eval(), tokenizer=tokenizer)


def test_pattern_circuit_and_contribution_are_dense_products(tmp_path: Path) -> None:
    """Without norms a pair adds A_b A_a x W_OV_a W_OV_b W_U, and nothing else is needed."""
    m = measured(attention_only(3), tmp_path)
    n = virtual.virtual_heads(m)
    assert n is not None and n.n_pairs == 12 and len(n.pairs) == 10 and n.error < 1e-9
    weights = m.lm.weights
    seen = run(m.lm, m.example, ("pattern", "resid_pre"))
    x = seen.at("resid_pre", 0)[0]
    sizes = []
    for one in n.pairs:
        (a, h), (b, k) = one.path
        pattern = seen.at("pattern", b)[0, k] @ seen.at("pattern", a)[0, h]
        ov = weights.W_V[a][h] @ weights.W_O[a][h] @ weights.W_V[b][k] @ weights.W_O[b][k]
        torch.testing.assert_close(one.pattern, pattern, rtol=1e-9, atol=1e-12)
        logits = pattern[-1] @ x @ ov @ weights.W_U
        assert one.contribution == pytest.approx(float(logits[m.predicted]), rel=1e-6, abs=1e-10)
        W_E = weights.W_E
        eigenvalues = torch.linalg.eigvals(W_E @ ov @ (weights.W_U - weights.W_U.mean(dim=1, keepdim=True)))
        score = float(eigenvalues.real.sum() / eigenvalues.abs().sum())
        assert one.copying_score == pytest.approx(score, abs=1e-6)
        sizes.append(abs(one.contribution))
    assert sizes == sorted(sizes, reverse=True)
    assert virtual.judge_virtual_heads(n).verdict == "agrees"
    section = virtual.section(m)
    assert section is not None
    table = next(e.table for e in section.exhibits if e.name == "virtual_heads")
    first = next(table.rows())
    assert first["attention"] == pytest.approx(float(n.pairs[0].pattern[-1].max()))


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "deepseek_v3", "mixtral"])
def test_norm_scales_lie_in_the_pattern(family: str, tmp_path: Path) -> None:
    """Gated, rotary, grouped queries, norms on both sides, latents and experts: the pair is one pattern and circuit."""
    if family in ("deepseek_v3", "mixtral"):
        lm = unembed.load(tiny_model(family), tokenizer=lettered("gpt2").tokenizer)
    else:
        lm = unembed.load(build(family, torch.float64), tokenizer=lettered(family).tokenizer)
    n = virtual.virtual_heads(measured(lm, tmp_path))
    assert n is not None and n.error < (1e-6 if lm.dtype == torch.float64 else 1e-5)
    assert n.future == 0 and n.most == pytest.approx(1, abs=1e-5)
    assert virtual.judge_virtual_heads(n).verdict == "agrees"


def test_one_attention_layer_has_no_virtual_heads(tmp_path: Path) -> None:
    assert virtual.virtual_heads(measured(attention_only(1), tmp_path)) is None
    lm = unembed.load(tiny_model("qwen3_next"), tokenizer=lettered("gpt2").tokenizer)
    with pytest.raises(Unsupported, match="no head reads another"):
        virtual.virtual_heads(measured(lm, tmp_path))
