"""The report on transformer circuits: runs on any model, and its numbers are those of the library."""

from pathlib import Path

import pytest
import torch

import unembed
from tests.reports.sample import sample
from tests.sweeps.recorder import lettered, texts
from unembed.attention.in_context import InContext
from unembed.attention.skip_trigrams import count_in_corpus
from unembed.errors import InvalidInput
from unembed.models.architectures.attention_only import AttentionOnlyConfig, AttentionOnlyForCausalLM
from unembed.reports import elhage2021, reopen
from unembed.reports.elhage2021.findings import in_context_findings
from unembed.reports.elhage2021.sections.skip_trigrams import skip_trigrams_by_head
from unembed.reports.section_cache import kept_sections
from unembed.reports.stages import STAGES, Work

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
    assert any("path" in f.claim and f.verdict == "agrees" for f in report.findings), "the expansion is exact"
    again = reopen(tmp_path)
    assert again.findings == report.findings


def test_a_stopped_study_goes_on_with_the_part_it_was_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = unembed.load("attn-2l")

    def study(where: str) -> str:
        unembed.report("elhage2021", lm, TEXTS, tmp_path / where, sequences=2, tokens=200, windows=1)
        return (tmp_path / where / "report.html").read_text()

    class Stopped(Exception):
        pass

    def stop(*_, **__) -> None:
        raise Stopped

    whole = study("whole")
    # Before, between and after the parts that share head scores and evidence, each run goes one part further.
    for late in (
        "heads_section",
        "expansion_section",
        "composition_section",
        "source_effects",
        "in_context",
        "stream_section",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(elhage2021, late, stop)
            with pytest.raises(Stopped):
                study("stopped")
        monkeypatch.setattr(elhage2021, "direct_path", stop)  # what was made before is not needed again
    for early in ("importance_section", "composition_section", "induction_section"):
        monkeypatch.setattr(elhage2021, early, stop)
    assert study("stopped") == whole
    assert not (tmp_path / "stopped" / STAGES).exists()
    with pytest.raises(Stopped):
        study("stopped")  # finished: nothing is left to go on from


def test_kept_sections_are_the_sections(tmp_path: Path) -> None:
    sections = sample().sections
    work = Work(tmp_path, {"seed": 0})
    for again in (kept_sections(work, "all of it", lambda: sections), kept_sections(work, "all of it", lambda: 1 / 0)):
        for kept, made in zip(again, sections, strict=True):
            assert kept.to_dict() == made.to_dict()
            for a, b in zip(kept.exhibits, made.exhibits, strict=True):
                assert list(a.table.rows()) == list(b.table.rows()) and a.table.provenance == b.table.provenance


def test_models_with_norms_and_of_one_layer(tmp_path) -> None:
    lm = lettered("gpt2")
    report = unembed.report("elhage2021", lm, texts(6), tmp_path / "gpt2", sequences=2, tokens=100, windows=1)
    assert report.provenance.basis == "folded"
    assert "erasing_memories" in report.exhibits
    with pytest.raises(InvalidInput, match="'colour'"):
        unembed.report("elhage2021", lm, TEXTS, tmp_path / "x", colour=1)
    with pytest.raises(InvalidInput, match="windows=0"):
        unembed.report("elhage2021", lm, TEXTS, tmp_path / "x", windows=0)
    torch.manual_seed(0)
    config = AttentionOnlyConfig(vocab_size=lm.d_vocab, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = AttentionOnlyForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    one = unembed.load(model, tokenizer=lm.tokenizer)
    report = unembed.report("elhage2021", one, texts(6), tmp_path / "one", sequences=2, tokens=100, windows=1)
    assert "induction" not in report.exhibits and "heads" in report.exhibits
    assert report.provenance.basis == "raw"


def _in_context(late: list[float]) -> InContext:
    """Windows whose loss is 5 early and so much late."""
    by_window = torch.full((len(late), 60), 5.0, dtype=torch.float64)
    by_window[:, 35:] = torch.tensor(late, dtype=torch.float64)[:, None]
    return InContext(by_window, 10, 48, ((1, 2),))


def test_context_is_said_to_help_only_beyond_the_interval() -> None:
    def verdicts(*late: list[float]) -> list[str]:
        whole, *others = (_in_context(values) for values in late)
        without, control = (*others, None, None)[:2]
        return [f.verdict for f in in_context_findings(whole, without, control)]

    assert verdicts([4.0, 4.1, 3.9, 4.0]) == ["agrees"]
    assert verdicts([6.0, 6.1, 5.9, 6.0]) == ["differs"]
    assert verdicts([4.0, 6.1, 3.9, 6.0]) == ["cannot be told"]
    assert verdicts([4.0]) == ["cannot be told"], "one window tells nothing"
    helped, lost = [4.0, 4.1, 3.9, 4.0], [4.9, 5.0, 5.1, 4.9]
    assert verdicts(helped, lost, helped) == ["agrees", "agrees"]
    assert verdicts(helped, lost, lost) == ["agrees", "cannot be told"], "other heads matter as much"
    assert verdicts(helped, [3.0, 3.1, 2.9, 3.0], helped) == ["agrees", "differs"]


def test_the_skip_trigrams_of_every_head_stand_in_the_corpus_as_counted() -> None:
    lm = unembed.load("attn-1l")
    circuits = unembed.circuits(lm)
    among = torch.tensor(sorted(set(lm.encode(TEXTS[0])[0].tolist())))
    found = skip_trigrams_by_head(circuits, 0, 6, "raw", TEXTS, among)
    assert [r.head for r in found] == list(range(lm.n_heads))
    for r in found:
        assert list(r.triples) == circuits.skip_trigrams(0, r.head, 6, among=among)
        seen = count_in_corpus(lm, [(t.source, t.destination, t.output) for t in r.triples], TEXTS)
        assert list(r.seen) == seen
        assert r.likelier <= r.occurring == sum(s.output_with_source > 0 for s in seen)
    assert sum(r.occurring for r in found) > 0
