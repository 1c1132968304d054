"""Section 6 of Geva et al. 2022: its tables, and what a part that cannot run leaves behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import unembed
from tests.cli.conftest import save_model
from tests.reports.test_geva2022 import OPTIONS, TEXTS
from unembed.corpus import open_corpus
from unembed.reports.geva2022.applications import measure_applications
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
    assert {r["method"] for r in report["early_exit"].rows()} >= {"sub_updates", "margin", "oracle"}
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "The classifiers of Table 6 were not measured: scikit-learn is not installed" in page
    assert "tab4" in report.exhibits, "what was measured before stays"


def test_a_fault_inside_a_package_is_not_its_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("import a_module_that_is_nowhere\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    lm = unembed.load(save_model(tmp_path / "tiny", "gpt2"))
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_nowhere"):
        measure_applications(lm, open_corpus(TEXTS * 3), Work(tmp_path, {}), Options(exit_examples=36))
