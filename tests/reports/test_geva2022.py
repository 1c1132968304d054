"""The study of sub-updates on tiny models: every table beside the rooms it asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unembed
from tests.cli.conftest import save_model
from unembed.errors import InvalidInput
from unembed.memories.event_sample import event_sample
from unembed.memories.event_scores import event_scores
from unembed.reports.geva2022 import layers_section, published
from unembed.reports.rendering import reopen

TEXTS = [f"The first month of the year is {w} a b c. {w} is the first month of the year" for w in "abcdefghijkl"]
OPTIONS: dict[str, Any] = {"examples": 20, "per_layer": 3, "clusters": 9, "norm_values": 8}


@pytest.fixture(scope="module", params=["gpt2", "gemma2"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp(request.param)
    lm = unembed.load(save_model(folder / "tiny", request.param))
    return lm, unembed.report("geva2022", lm, TEXTS, folder / "report", seed=3, **OPTIONS), folder / "report"


def test_every_table_and_figure_of_the_paper_is_there_and_opens_again(made):
    _, report, folder = made
    wanted = {"tab2", "fig2", "tab4", "event_counts", "saturation_by_layer", "events", "fig3", "extreme_groups",
              "extreme_clusters", "fig4", "fig6"}  # fmt: skip
    assert wanted <= set(report.exhibits)
    assert all(f.source for f in report.findings)
    again = reopen(folder)
    assert again.exhibits.keys() == report.exhibits.keys()
    assert again["tab4"].to_dict()["rows"] == report["tab4"].to_dict()["rows"]
    page = (folder / "report.html").read_text()
    assert "Tab. 4" in page
    assert "36.7" in page


def test_the_numbers_are_the_rooms(made):
    lm, report, _ = made
    sample = event_sample(lm, TEXTS, 20, seed=3)
    rows = {(r["event"], r["sub_updates"]): r for r in report["tab4"].rows()}
    for kind in ("saturation", "elimination"):
        for random in (False, True):
            scores = event_scores(sample, kind, random=random)
            row = rows[kind, "random" if random else "dominant"]
            assert row["n"] == len(scores)
            if len(scores):
                assert row["max"] == pytest.approx(scores.max(1).mean(), rel=1e-5)
                assert row["max_low"] <= row["max"] <= row["max_high"]
    assert [r["dominant"] for r in report["fig6"].rows()] == pytest.approx(sample.contribution.mean(1).tolist())
    shares = [r["share"] for r in report["saturation_by_layer"].rows()]
    assert shares == pytest.approx((np.bincount(sample.saturation, minlength=lm.n_layers) / len(sample)).tolist())
    assert report.passport.seed == 3
    for row in list(report["events"].rows())[:4]:
        assert lm.encode(row["prefix_text"]).shape[1] == row["position"] + 1


def test_a_second_run_gives_the_same_report(made, tmp_path: Path):
    lm, report, _ = made
    again = unembed.report("geva2022", lm, TEXTS, tmp_path / "again", seed=3, **OPTIONS)
    for name in report.exhibits:
        assert again[name].to_json() == report[name].to_json()


def test_rare_and_common_tokens_are_told_by_their_counts():
    counts = np.array([100, 90, 80, 3, 2, 1])
    assert layers_section.is_rare(counts, np.array([[0, 1], [0, 5], [4, 5]])).tolist() == [False, True, True]


def test_published_rows_are_whole():
    assert [len(published.SATURATION[m]) for m in ("wikilm", "gpt2")] == [16, 24]
    assert sum(published.SATURATION["wikilm"]) == pytest.approx(100.0, abs=1e-9)
    assert published.for_model(24) == "gpt2"
    assert published.for_model(6) is None


def test_bad_options_are_one_clear_line(made, tmp_path: Path):
    lm, *_ = made
    with pytest.raises(InvalidInput, match="'colour'"):
        unembed.report("geva2022", lm, TEXTS, tmp_path / "x", colour=1)
    with pytest.raises(InvalidInput, match="basis"):
        unembed.report("geva2022", lm, TEXTS, tmp_path / "x", basis="final")
