"""The report on transformer circuits: runs on any model, and its numbers are those of the library."""

import pytest
import torch

import unembed
from tests.sweeps.recorder import lettered, texts
from unembed.errors import InvalidInput
from unembed.models.attention_only import AttentionOnlyConfig, AttentionOnlyForCausalLM
from unembed.reports import reopen

TEXTS = ["The first month of the year is the month that comes before the second month of the year . " * 40] * 2


def test_the_report_on_the_two_layer_model(tmp_path) -> None:
    lm = unembed.load("attn-2l")
    said: list[str] = []
    report = unembed.report(
        "elhage2021", lm, TEXTS, tmp_path, progress=lambda what, done, total: said.append(what), sequences=4,
        tokens=300, windows=2,
    )  # fmt: skip
    assert said[0] == "zero layers" and said[-1] == "done"
    assert (tmp_path / "report.html").read_text().count("<svg") >= 8
    circuits = unembed.circuits(lm)
    heads = list(report["heads"].rows())
    copying = circuits.copying_scores()
    assert [r["copying_score"] for r in heads] == pytest.approx(copying.flatten().tolist(), rel=1e-6)
    best = max(report["k_composition"].rows(), key=lambda r: r["ratio"])
    assert best["ratio"] == pytest.approx(float(circuits.composition("k").max()), rel=1e-6)
    losses = list(report["term_importance"].rows())
    assert [r["terms"] for r in losses] == [1, 16, 64]
    published = [f.published for f in report.findings]
    assert len(published) >= 11 and all(f.here for f in report.findings)
    assert any("path" in f.published and f.agrees for f in report.findings), "the expansion is exact"
    again = reopen(tmp_path)
    assert again.findings == report.findings


def test_models_with_norms_and_of_one_layer(tmp_path) -> None:
    lm = lettered("gpt2")
    report = unembed.report("elhage2021", lm, texts(6), tmp_path / "gpt2", sequences=2, tokens=100, windows=1)
    assert report.passport.basis == "folded"
    assert "erasing_memories" in report.exhibits
    with pytest.raises(InvalidInput, match="'colour'"):
        unembed.report("elhage2021", lm, TEXTS, tmp_path / "x", colour=1)
    torch.manual_seed(0)
    config = AttentionOnlyConfig(vocab_size=lm.d_vocab, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = AttentionOnlyForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    one = unembed.load(model, tokenizer=lm.tokenizer)
    report = unembed.report("elhage2021", one, texts(6), tmp_path / "one", sequences=2, tokens=100, windows=1)
    assert "induction" not in report.exhibits and "heads" in report.exhibits
    assert report.passport.basis == "raw"
