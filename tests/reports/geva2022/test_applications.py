"""Section 6 of Geva et al. 2022: its tables, and what a part that cannot run leaves behind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import unembed
from tests.cli.conftest import save_model
from tests.reports.sample import part_of, tables_of_two_units
from tests.reports.test_geva2022 import OPTIONS, TEXTS
from tests.stream.test_massive_activations import with_massive_token
from tests.sweeps.recorder import lettered
from unembed.corpus import open_corpus
from unembed.early_exit import published_table
from unembed.early_exit.example_prefixes import examples
from unembed.early_exit.published_table import table_6
from unembed.errors import Unsupported
from unembed.language_model import LanguageModel
from unembed.memories.clustering.value_clusters import cluster_values
from unembed.reports import Report
from unembed.reports.geva2022 import applications
from unembed.reports.geva2022.applications import (
    Applications,
    activated,
    arms_of,
    edits_of,
    measure_applications,
    without_massive,
)
from unembed.reports.geva2022.measurements import Measurements
from unembed.reports.geva2022.options import Options
from unembed.reports.geva2022.parts.applications import rule, toxicity_section
from unembed.reports.stages import Work
from unembed.steering.text_cost import perplexity, windows
from unembed.toxicity.evaluation import plain, with_released_word_filter, with_self_debiasing
from unembed.toxicity.scorers import ATTRIBUTES, Linear
from unembed.toxicity.selection import PAPER_VALUES, manual


def test_early_exit_has_its_tables(tmp_path: Path) -> None:
    lm = unembed.load(save_model(tmp_path / "tiny", "gpt2"))
    found = measure_applications(lm, open_corpus(TEXTS * 3), Work(tmp_path, {}), Options(exit_examples=36))
    assert found.toxicity is None and found.notes == ()
    assert found.saturation is not None and len(found.saturation) == 2
    assert found.early_exit is not None
    assert {r["method"] for r in found.early_exit.rows()} >= {"sub_updates", "both", "margin", "oracle"}


def test_exit_rules_use_given_clusters_and_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the clusters of an ungated model the table is that of the rule's own; a second run reads it from disk."""
    lm, options = unembed.load(save_model(tmp_path / "tiny", "gpt2")), Options(exit_examples=36, exit_protocol="quick")
    made = measure_applications(lm, open_corpus(TEXTS * 3), Work(tmp_path, {"run": 1}), options)
    monkeypatch.setattr(published_table, "value_clusters", None)  # not called with clusters, nor in the second run
    for _ in range(2):
        clusters, work = cluster_values(lm, 9), Work(tmp_path, {"run": 2})
        again = measure_applications(lm, open_corpus(TEXTS * 3), work, options, clusters=clusters)
        assert again.early_exit.to_dict() == made.early_exit.to_dict()
        assert again.saturation.to_dict() == made.saturation.to_dict()
        monkeypatch.setattr(applications, "table_6", None)


def test_examples_at_massive_positions_are_left_out_of_early_exit(tmp_path: Path) -> None:
    lm, texts = with_massive_token("llama", "e"), TEXTS * 3
    own = examples(lm, open_corpus(texts), 36, basis="final")
    streams = [own.before, own.before + own.update]
    long = [s.norm(dim=-1) > 10 * torch.from_numpy(np.median(s.norm(dim=-1).numpy(), axis=0)) for s in streams]
    wanted = ~(long[0] | long[1]).any(dim=1)
    assert 3 <= int((~wanted).sum()) < 20
    kept, left_out = without_massive(own)
    assert left_out == int((~wanted).sum()) and torch.equal(kept.before, own.before[wanted])
    assert without_massive(examples(lettered("llama"), open_corpus(texts), 36, basis="final"))[1] == 0, "the control"
    made = measure_applications(lm, open_corpus(texts), Work(tmp_path, {}), Options(exit_examples=36))
    assert any(note.startswith(f"{left_out} of 36 examples of early exit end at") for note in made.notes)


def test_without_scikit_learn_the_report_ends_in_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = unembed.load(save_model(tmp_path / "tiny", "gpt2"))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for name in [name for name in sys.modules if name.startswith("sklearn.")]:
        monkeypatch.setitem(sys.modules, name, None)
    report = unembed.report("geva2022", lm, TEXTS * 3, tmp_path / "r", **OPTIONS, exit_examples=36)
    assert {r["method"] for r in report["early_exit"].rows()} >= {"sub-updates", "margin", "oracle"}
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "The classifiers of Table 6 were not measured: scikit-learn is not installed" in page
    assert "tab4" in report.exhibits, "what was measured before stays"
    assert "The sample is small: each split tests on 3 examples" in page and "36 examples (the paper: 10,000)" in page


def test_an_import_error_inside_a_package_stops_one_part_and_is_not_reported_as_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("import a_module_that_is_nowhere\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    lm = unembed.load(save_model(tmp_path / "tiny", "gpt2"))
    found = measure_applications(lm, open_corpus(TEXTS * 3), Work(tmp_path, {}), Options(exit_examples=36))
    assert found.notes == ("The classifiers of Table 6 were not measured: No module named 'a_module_that_is_nowhere'",)
    assert found.saturation is not None and found.early_exit is not None


def toxic(folder: Path, **options: object) -> Applications:
    tiny = save_model(folder / "tiny", "gpt2")
    config = AutoConfig.from_pretrained(tiny)
    config.n_positions = 256  # self-debiasing puts its prefixes in front
    AutoModelForCausalLM.from_config(config).save_pretrained(tiny)
    lm = unembed.load(tiny)
    (folder / "prompts.txt").write_text("The first month\nThe year is\n", encoding="utf-8")
    (folder / "words.txt").write_text("January\nw66\n", encoding="utf-8")
    given = Options(exit_examples=0, prompts=str(folder / "prompts.txt"), words=str(folder / "words.txt"), **options)  # type: ignore[arg-type]
    return measure_applications(lm, open_corpus(TEXTS), Work(folder, {}), given)


def test_table_5_is_made_greedily_and_by_beams_with_both_word_filters(tmp_path: Path) -> None:
    found = toxic(tmp_path)
    arms = ["plain", "values picked by a scorer", "self-debiasing", "word filter, as released", "word filter"]
    assert found.toxicity is not None and found.toxicity.columns["arm"] == arms
    assert found.toxicity_by_beams is not None and found.toxicity_by_beams.columns["arm"] == arms
    assert found.toxicity_by_beams.provenance.notes["num_beams"] == 3
    shown = toxicity_section(part_of(Measurements, applications=found, applications_by_lens=None, options=Options()))
    assert shown is not None
    made = Report("r", "r", "", "", found.toxicity.provenance, (shown,))
    assert tables_of_two_units(made) == []
    assert any("WikiText-103" in text and "the paper" in text for text in shown.text)
    assert [exhibit.name for exhibit in shown.exhibits] == ["toxicity", "toxicity_by_beams", "toxicity_published"]
    (tmp_path / "greedy").mkdir()
    assert toxic(tmp_path / "greedy", beams=0).toxicity_by_beams is None


def test_any_scorer_and_all_its_attributes_values_picked_by_hand_and_another_text(tmp_path: Path) -> None:
    class Six:
        name = "six"

        def score(self, texts: Sequence[str]) -> dict[str, list[float]]:
            return {name: [0.9 * (i % 2) for i in range(len(texts))] for name in ATTRIBUTES}

    (tmp_path / "text.txt").write_text("a b c January " * 300, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[arms_of.__module__], "open_scorer", lambda name: {"six": Six()}[name])
        found = toxic(tmp_path, beams=0, scorer="six", values="L0M5,-L1M7", perplexity_text=str(tmp_path / "text.txt"))
    assert found.notes == () and found.toxicity is not None
    assert found.toxicity.columns["arm"][:3] == ["plain", "values picked by hand", "values picked by a scorer"]
    assert all(found.toxicity.columns[name] == [50.0] * len(found.toxicity.columns["arm"]) for name in ATTRIBUTES)
    shown = toxicity_section(part_of(Measurements, applications=found, applications_by_lens=None, options=Options()))
    assert shown is not None and "scored by six" in shown.text[0] and "text.txt, whole" in shown.text[1]
    assert set(ATTRIBUTES) <= set(shown.exhibits[0].percent)
    lm = unembed.load(tmp_path / "tiny")
    rows = windows(lm, "a b c January " * 300, window=found_window(lm))
    assert found.toxicity.columns["perplexity"][0] == pytest.approx(perplexity(lm, rows), rel=1e-5)
    picked = arms_of(lm, Work(tmp_path, {}), Options(values="L0M5,-L1M7"), Linear())[1].edits
    assert [(edit.layer, edit.index, edit.value) for edit in picked] == [(0, 5, 3.0), (1, 7, -3.0)]


def found_window(lm: LanguageModel) -> int:
    """The context less the longest text that an arm puts in front."""
    return (lm.n_ctx or 0) - with_self_debiasing(lm).lead


def test_the_rule_of_the_text_is_judged_and_the_ordered_match_is_stated(tmp_path: Path) -> None:
    lm = unembed.load(save_model(tmp_path / "tiny", "gpt2"))
    corpus = open_corpus(TEXTS * 3)
    paper, quick = (
        measure_applications(lm, corpus, Work(tmp_path, {"protocol": name}), options).early_exit
        for name in ("paper", "quick")
        for options in (Options(exit_examples=36, exit_protocol=name),)
    )
    assert paper is not None and quick is not None
    found = examples(lm, corpus, 36)
    own = table_6(lm, found, clusters=192, sweep=(0.001, 0.01, 0.1), penalties=("l2",), folds=3)
    assert quick.columns["accuracy"] == own.columns["accuracy"]
    assert paper.provenance.notes["folds"] == 8 and paper.provenance.notes["penalties"] == ["l1", "l2"]
    rows = {row["method"]: row for row in paper.rows()}
    assert list(rows)[:2] == ["sub_updates, set", "sub_updates"] and rows["sub_updates"]["published_accuracy"] is None
    m = part_of(Measurements, applications=Applications(early_exit=paper), lm=lm)
    numbers = rule(m)
    assert numbers is not None
    assert numbers.rule_accuracy == rows["sub_updates, set"]["accuracy"]
    assert numbers.ordered_saved_layers == rows["sub_updates"]["saved_layers"]


def test_the_released_filter_bans_words_with_a_space_before_them_alone(tmp_path: Path) -> None:
    lm = unembed.load(save_model(tmp_path / "tiny", "gpt2"))
    arm = with_released_word_filter(lm, ["January", "w66"])
    ids = [lm.tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in ("January", "w66")]
    assert all(len(row) == 1 for row in ids)
    assert arm.processor is not None
    scores = arm.processor()(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, lm.d_vocab))
    assert scores[0].isinf().nonzero()[:, 0].tolist() == sorted(row[0] for row in ids)


def test_a_pre_activation_of_three_is_the_activation_s_value_there(tmp_path: Path) -> None:
    lm = unembed.load(save_model(tmp_path / "tiny", "gpt2"))
    with torch.no_grad():
        expected = float(lm.hf.transformer.h[0].mlp.act(torch.tensor(3.0)))
    assert activated(lm, 0, 3.0) == pytest.approx(expected) and expected != 3.0
    with pytest.raises(Unsupported, match="two factors"):
        activated(unembed.load(save_model(tmp_path / "gated", "llama")), 0, 3.0)
    assert toxic(tmp_path, pre_activation=True, beams=0).notes == ()
    picked = manual(lm, [(0, 5)], to=3.0)
    assert [edit.value for edit in edits_of(lm, picked.edits, Options())] == [3.0]
    (before,) = edits_of(lm, picked.edits, Options(pre_activation=True))
    assert (before.layer, before.value) == (0, pytest.approx(expected))


def layers_alike(config: GPT2Config) -> GPT2LMHeadModel:
    """A model whose layers share one layer's memory: its size is that of a few matrices."""
    torch.manual_seed(0)
    with torch.device("meta"):
        hf = GPT2LMHeadModel(config).eval()
    shared: dict[torch.Size, torch.Tensor] = {}
    for module in hf.modules():
        for name, tensor in module._parameters.items():
            if tensor is not None:
                if tensor.shape not in shared:
                    shared[tensor.shape] = 0.05 * torch.randn(tensor.shape)
                module._parameters[name] = torch.nn.Parameter(shared[tensor.shape])
        for name, tensor in module._buffers.items():
            if tensor is not None:
                module._buffers[name] = torch.ones(tensor.shape, dtype=tensor.dtype).tril()
    return hf


def test_a_model_of_gpt2_mediums_shape_has_a_row_with_the_papers_ten_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = unembed.load(save_model(tmp_path / "tiny", "gpt2"))
    applications = sys.modules[arms_of.__module__]  # the package's own name is that of the section
    monkeypatch.setattr(applications, "by_scorer", lambda lm, *_, **__: manual(tiny, [(0, 0)]))
    monkeypatch.setattr(applications, "with_self_debiasing", lambda lm: plain())
    lm = unembed.load(
        layers_alike(GPT2Config(n_layer=24, n_embd=1024, n_head=16, vocab_size=tiny.d_vocab, n_positions=32))
    )
    arms = arms_of(lm, Work(tmp_path, {}), Options(), Linear())
    assert [arm.name for arm in arms[:3]] == ["plain", "values picked by hand", "values picked by a scorer"]
    edits = {(edit.layer, edit.index, edit.value) for edit in arms[1].edits}
    assert edits == {(layer, index, 3.0) for layer, index in PAPER_VALUES} and len(edits) == 10
    assert [arm.name for arm in arms_of(tiny, Work(tmp_path, {}), Options(), Linear())][
        1
    ] == "values picked by a scorer"
