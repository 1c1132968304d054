"""Section 6 of Geva et al. 2022: its tables, and what a part that cannot run leaves behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import unembed
from tests.cli.conftest import save_model
from tests.reports.test_geva2022 import OPTIONS, TEXTS
from unembed.control.toxicity.evaluation import with_released_word_filter
from unembed.corpus import open_corpus
from unembed.errors import Unsupported
from unembed.reports.geva2022.applications import Applications, activated, measure_applications
from unembed.reports.geva2022.options import Options
from unembed.reports.stages import Work


def test_early_exit_has_its_tables(tmp_path: Path) -> None:
    lm = unembed.load(save_model(tmp_path / "tiny", "gpt2"))
    found = measure_applications(lm, open_corpus(TEXTS * 3), Work(tmp_path, {}), Options(exit_examples=36))
    assert found.toxicity is None and found.notes == ()
    assert found.saturation is not None and len(found.saturation) == 2
    assert found.early_exit is not None
    assert {r["method"] for r in found.early_exit.rows()} >= {"sub_updates", "both", "margin", "oracle"}


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


def test_an_import_error_inside_a_package_is_not_reported_as_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("import a_module_that_is_nowhere\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    lm = unembed.load(save_model(tmp_path / "tiny", "gpt2"))
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_nowhere"):
        measure_applications(lm, open_corpus(TEXTS * 3), Work(tmp_path, {}), Options(exit_examples=36))


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
    assert "WikiText-103" in found.perplexity_text
    (tmp_path / "greedy").mkdir()
    assert toxic(tmp_path / "greedy", beams=0).toxicity_by_beams is None


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
