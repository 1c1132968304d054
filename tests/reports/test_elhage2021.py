"""The report on transformer circuits: runs on any model, and its numbers are those of the library."""

from pathlib import Path

import pytest
import torch

import unembed
from tests.models.decoder_classes import tiny_model
from tests.reports.sample import (
    certain_shares,
    check_explanations,
    figures_without_published,
    sample,
    tables_of_two_units,
    with_unlearned,
)
from tests.sweeps.recorder import lettered, texts
from unembed.attention.text.skip_trigrams import count_in_corpus, shuffled_sources
from unembed.attention.weights.one_head import full_circuit_exhibits
from unembed.errors import InvalidInput
from unembed.models.architectures.attention_only import AttentionOnlyConfig, AttentionOnlyForCausalLM
from unembed.models.decoder import Decoder
from unembed.reports import reopen
from unembed.reports.elhage2021 import QUANTITIES, measurements, parts
from unembed.reports.elhage2021.measurements import DRAWS, TRIPLES
from unembed.reports.elhage2021.options import Options
from unembed.reports.elhage2021.parts import induction, one_layer, paths, stream
from unembed.reports.stages import STAGES, Work
from unembed.results import format_percent

TEXTS = ["The first month of the year is the month that comes before the second month of the year . " * 40] * 2
OF_ONE = ("copying", "skip-trigrams", "bugs", "primitive in-context learning")
OF_TWO = ("virtual heads", "second layer", "K-composition", "Q-composition", "V-composition")
"""Quantities that the paper states of models of one or two layers; deeper models have others in their place."""


def losses_by_hand(lm: Decoder) -> dict[str, float]:
    """The losses of the window of 512 tokens in each of the two texts, token by token."""
    of: dict[str, list[list[float]]] = {"early": [], "late": [], "recurring": [], "new": []}
    for ids in (lm.encode(text)[0][:512] for text in TEXTS):
        log_p = lm.hf(ids[None]).logits[0].detach().double().log_softmax(-1)
        nats = [-float(log_p[at, ids[at + 1]]) for at in range(511)]
        recurs = [int(ids[at + 1]) in ids[: at + 1].tolist() for at in range(511)]
        of["early"].append(nats[51 - 10 : 51 + 11])
        of["late"].append(nats[499 - 10 : 499 + 11])
        of["recurring"].append([x for x, again in zip(nats, recurs, strict=True) if again])
        of["new"].append([x for x, again in zip(nats, recurs, strict=True) if not again])
    early, late, recurring, new = (sum(sum(x) / len(x) for x in rows) / len(rows) for rows in of.values())
    return {
        "loss around position 51": early,
        "loss around position 499": late,
        "loss of next tokens that occurred earlier in the window": recurring,
        "loss of new next tokens": new,
    }


def test_the_report_on_the_two_layer_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    lm = unembed.load("attn-2l")
    stages: list[str] = []
    report = unembed.report(
        "elhage2021", lm, TEXTS, tmp_path / "out", progress=lambda what, done, total: stages.append(what), sequences=4,
        tokens=300, windows=2,
    )  # fmt: skip
    assert stages[-1] == "done" and "zero layers" in stages and "random weights" in stages
    assert (tmp_path / "out" / "report.html").read_text().count("<svg") >= 8
    circuits = unembed.circuits(lm)
    rows = list(report["heads_by_weights"].rows())
    copying = circuits.copying_scores()
    assert len(rows) == copying.numel()
    for row in rows:
        assert row["copying_score"] == pytest.approx(float(copying[row["layer"], row["head"]]), rel=1e-6)
    best = max(report["k_composition"].rows(), key=lambda r: r["ratio"])
    assert best["ratio"] == pytest.approx(float(circuits.composition("k").max()), rel=1e-6)
    losses = list(report["term_importance"].rows())
    assert [r["terms"] for r in losses] == [1, 16, 64]
    found = {f.claim: f for f in report.findings}
    left_out = {"bigram table", *OF_ONE, *(f"{name} in deeper models" for name in ("path expansion", *OF_TWO))}
    of_two_layers = [c.claim for c in QUANTITIES if c.name not in left_out]
    assert list(found) == of_two_layers, "every claim has its row, in the order of the sections"
    assert {f.claim for f in found.values() if f.extension} == {
        c.claim for c in QUANTITIES if c.name.removesuffix(" in deeper models") in OF_ONE and c.name not in OF_ONE
    }
    assert all(f.here and f.test and f.control for f in found.values())
    expansion = next(f for f in found.values() if "sum over paths" in f.claim)
    assert expansion.verdict == "agrees" and not expansion.informative, "an identity, which random weights pass"
    induction = next(f for f in found.values() if f.claim.startswith("Two-layer models have induction heads"))
    assert induction.verdict == "agrees" and induction.informative
    assert sum("(agrees)" in f.control for f in report.findings if f.informative) == 0
    assert reopen(tmp_path / "out").findings == report.findings
    assert all(bool(f.explanation) == (f.verdict == "differs") for f in report.findings)
    assert figures_without_published(report) == [] == tables_of_two_units(report) + certain_shares(report)
    figures = {figure.name: figure for section in report.sections for figure in section.figures}
    scores = unembed.circuits(unembed.load("attn-2l")).head_scores(seed=0)
    best = "eigenvalues_{}_{}".format(*divmod(int(scores.induction.argmax()), 8))
    assert {"heads_positive", "copying_histogram", "scores_by_offset", best} <= set(figures)
    assert {figures[f"{mode}_composition"].y_range for mode in "qkv"} == {figures["q_composition"].y_range}
    assert figures["source_effects_attention"].kind == "text" and figures[best].equal
    (strongest,) = report["induction_measured"].rows()
    assert strongest["here"] == pytest.approx(float(circuits.head_scores(n_sequences=4).induction[1].max()), abs=1e-6)
    nats = {row["quantity_text"]: row["here"] for row in report["losses_measured_nats"].rows()}
    assert nats == pytest.approx(losses_by_hand(lm), abs=1e-4)
    by_weights = next(report["previous_token_by_weights"].rows())
    assert by_weights["head"] == f"L0H{int(scores.previous_token[0].argmax())}" and by_weights["previous_token"] > 0.9
    assert losses[0]["reduction"] > 0 and "given_the_other_layers" in report["layer_importance"].column_names
    assert {"repeated_tokens", "copied", "published_values"} <= set(report.exhibits)
    assert all(row["origin_text"] for row in report["published_values"].rows())
    assert report.facts["intervals"].startswith("95 %, bootstrap over windows")


def test_a_stopped_study_resumes_with_the_part_it_was_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = unembed.load("attn-2l")

    def study(where: str) -> str:
        unembed.report("elhage2021", lm, TEXTS, tmp_path / where, sequences=2, tokens=200, windows=1, control=False)
        return (tmp_path / where / "report.html").read_text()

    class Stopped(Exception):
        pass

    def stop(*_, **__) -> None:
        raise Stopped

    whole = study("whole")
    # Before, between and after the parts that share head scores and evidence, each run goes one part further.
    late = (
        (parts, "heads_section"), (paths, "expansion_section"), (paths, "composition_section"),
        (induction, "source_effects"), (induction, "in_context"), (stream, "stream_section"),
    )  # fmt: skip
    for module, name in late:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, stop)
            with pytest.raises(Stopped):
                study("stopped")
        monkeypatch.setattr(measurements, "direct_path_against", stop)  # what was made before is not needed again
    for module, name in (
        (paths, "importance_section"),
        (paths, "composition_section"),
        (induction, "induction_section"),
    ):
        monkeypatch.setattr(module, name, stop)
    assert study("stopped") == whole
    assert not (tmp_path / "stopped" / STAGES).exists()
    with pytest.raises(Stopped):
        study("stopped")  # finished: nothing is left to go on from


def test_what_differs_is_explained_by_what_was_measured(tmp_path: Path) -> None:
    work = Work(tmp_path, {"seed": 0})
    m = measurements.Measurements(
        unembed.load("attn-2l"), unembed.open_corpus(TEXTS), work, Options(sequences=2, tokens=100, windows=1)
    )
    check_explanations(QUANTITIES, m)
    text = next(claim for claim in QUANTITIES if claim.name == "Q-composition").explain(m)
    composition = m.circuits.composition("q", baseline=True)[0, :, 1]
    early, late = divmod(int(composition.argmax()), 8)
    product = m.circuits.ov(0, early).double().dense() @ m.circuits.qk(1, late).double().dense()
    sizes = torch.linalg.svdvals(product) ** 2
    assert text is not None and f"holds {format_percent(float(sizes[0] / sizes.sum()), 0)}" in text
    assert f"L1H{late} reads of L0H{early}" in text


def test_stored_sections_equal_the_sections(tmp_path: Path) -> None:
    sections = sample().sections
    work = Work(tmp_path, {"seed": 0})
    for again in (work.stage("all of it", lambda: sections), work.stage("all of it", lambda: pytest.fail("again"))):
        for saved, made in zip(again, sections, strict=True):
            assert saved.to_dict() == made.to_dict()
            for a, b in zip(saved.exhibits, made.exhibits, strict=True):
                assert list(a.table.rows()) == list(b.table.rows()) and a.table.provenance == b.table.provenance


def test_models_with_norms_and_of_one_layer(tmp_path) -> None:
    lm = lettered("gpt2")
    report = unembed.report(
        "elhage2021", lm, texts(6), tmp_path / "gpt2", sequences=2, tokens=100, windows=1, control=False
    )
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
    report = unembed.report(
        "elhage2021", one, texts(6), tmp_path / "one", sequences=2, tokens=100, windows=1, control=False
    )
    assert "induction" not in report.exhibits and "heads" in report.exhibits
    assert report.provenance.basis == "raw"


def test_largest_entries_are_those_between_tokens_that_the_model_learned() -> None:
    lm = with_unlearned(lettered("gpt2"), range(40, 70))
    circuits = unembed.circuits(lm)
    exhibits = {e.name: e.table for e in full_circuit_exhibits(circuits, 1, 2, 12, "raw", lm.provenance())}
    for name, first, second, full in (
        ("ov_entries", "source", "output", circuits.ov_full(1, 2)),
        ("qk_entries", "destination", "source", circuits.qk_full(1, 2)),
    ):
        dense = full.dense().clone()
        dense[40:70], dense[:, 40:70] = -torch.inf, -torch.inf
        best = dense.flatten().topk(12)
        rows = list(exhibits[name].rows())
        assert [row["entry"] for row in rows] == pytest.approx(best.values.tolist(), rel=1e-5)
        assert [row[f"{first}_token"] for row in rows] == lm.token_strings(best.indices // lm.d_vocab)
        assert [row[f"{second}_token"] for row in rows] == lm.token_strings(best.indices % lm.d_vocab)


def test_tokens_that_were_never_learned_are_left_out_unless_included(tmp_path: Path) -> None:
    corpus = unembed.open_corpus(texts(6))

    def measured(lm: Decoder, include: bool) -> measurements.Measurements:
        options = Options(sequences=2, tokens=100, windows=1, include_unlearned=include)
        return measurements.Measurements(lm, corpus, Work(tmp_path, {}), options)

    m = measured(lettered("gpt2"), True)
    triples = [t for head in m.skip_trigrams for t in head.triples]
    ids = {m.predicted, triples[0].output, int(m.direct_path.tokens[0])}
    some = with_unlearned(lettered("gpt2"), sorted(ids))
    for include in (False, True):
        m = measured(some, include)
        in_triples = {i for head in m.skip_trigrams for t in head.triples for i in (t.source, t.destination, t.output)}
        found = [{m.predicted}, in_triples, {*m.direct_path.tokens.tolist()}]
        assert [bool(tokens & ids) for tokens in found] == [include] * 3
        assert m.provenance.notes["unlearned tokens left out"] == (0 if include else len(ids))


def test_heads_of_a_mixture_of_experts_have_the_report(tmp_path: Path) -> None:
    report = unembed.report(
        "elhage2021", lettered("mixtral"), texts(6), tmp_path, sequences=2, tokens=100, windows=1, control=False
    )
    assert {"heads", "k_composition", "induction", "erasing_heads"} <= set(report.exhibits)
    assert report.provenance.notes["unlearned tokens left out"] == 0


def test_the_skip_trigrams_of_every_head_are_counted_in_the_corpus(tmp_path: Path) -> None:
    lm = unembed.load("attn-1l")
    m = measurements.Measurements(lm, unembed.open_corpus(TEXTS), Work(tmp_path, {}), Options(basis="raw"))
    found, known = m.skip_trigrams, {"among": m.frequent, "reading": m.token_reading}
    assert [(r.layer, r.head) for r in found] == [(0, h) for h in range(lm.n_heads)]
    for r in found:
        assert list(r.triples) == m.circuits.skip_trigrams(0, r.head, TRIPLES, basis="raw", **known)
        own = [(t.source, t.destination, t.output) for t in r.triples]
        counts = count_in_corpus(lm, own, TEXTS)
        assert list(r.counts) == counts
        assert r.likelier <= r.occurring == sum(c.output_with_source > 0 for c in counts)
        shuffled = shuffled_sources(own, DRAWS, r.head)
        assert list(r.shuffled) == count_in_corpus(lm, shuffled, TEXTS)
        assert [t[1:] for t in shuffled] == [t[1:] for t in own] * DRAWS
        assert sorted(t[0] for t in shuffled) == sorted([t[0] for t in own] * DRAWS)
    assert sum(r.occurring for r in found) > 0


def test_copying_is_judged_on_the_heads_that_have_an_ov_circuit(tmp_path: Path) -> None:
    lm = unembed.load(tiny_model("granitemoehybrid"))
    m = measurements.Measurements(lm, unembed.open_corpus(TEXTS), Work(tmp_path, {"seed": 0}), Options())
    numbers = one_layer.copying(m)
    scores = torch.tensor(numbers.scores)
    assert len(scores) == lm.n_heads * len(lm.attention_layers) < lm.n_heads * lm.n_layers
    torch.testing.assert_close(scores, torch.cat([m.copying.score[n] for n in lm.attention_layers]).to(scores.dtype))


@pytest.mark.parametrize(
    ("model_type", "unavailable"),
    [
        ("qwen3_next", {"Copying": "a gate of each position"}),
        ("deepseek_v3", {"Skip-trigrams": "the content part of a key"}),
        ("gemma4_text", {"Path expansion": "it uses the keys and values of another layer"}),
        ("jamba", {}),
        ("nemotron_h", {}),
    ],
)
def test_the_report_is_whole_where_the_architecture_lacks_a_part(
    model_type: str, unavailable: dict[str, str], tmp_path: Path
) -> None:
    lm = unembed.load(tiny_model(model_type), tokenizer=lettered("gpt2").tokenizer)
    text = ["the cat sat on the mat and the cat sat on the mat again. " * 8] * 2
    report = unembed.report("elhage2021", lm, text, tmp_path / "out", sequences=2, tokens=200, windows=2)
    sections = {section.title: section for section in report.sections}
    refused = {title for title, section in sections.items() if section.text[:1][0:1] and not section.exhibits}
    assert unavailable.keys() <= refused and ("Composition" in refused) <= (model_type == "qwen3_next")
    for title, why in unavailable.items():
        assert sections[title].text[0].startswith("Not available: ") and why in sections[title].text[0]
    if model_type in ("qwen3_next", "nemotron_h"):
        mixer = {"qwen3_next": "gated DeltaNet", "nemotron_h": "Mamba-2"}[model_type]
        assert f"norm scales, mixer ({mixer}) outputs and FFN outputs fixed" in sections["Path expansion"].text[0]
    other = {*OF_ONE, "bigram table", "path expansion", *(() if lm.n_layers == 2 else OF_TWO)}
    other |= {"bugs in deeper models", *(f"{name} in deeper models" for name in OF_TWO if lm.n_layers == 2)}
    claims = [c.claim for c in QUANTITIES if c.name not in other]
    made = {f.claim: f for f in report.findings}
    assert set(claims) <= made.keys(), "every claim has its row, or says why there is none"
    assert all(f.verdict == "not applicable" for f in report.findings if f.here.startswith("Not available"))
    available = [f for f in report.findings if not f.here.startswith("Not available")]
    assert all(f.control for f in available), "random weights are measured beside each"
    assert not [f.claim for f in available if f.informative and "(agrees)" in f.control]
    assert "NaN" not in (tmp_path / "out" / "report.json").read_text()
    if model_type != "gemma4_text":
        expansion = next(f for f in report.findings if "sum over paths" in f.claim)
        assert "relative error" in expansion.here
