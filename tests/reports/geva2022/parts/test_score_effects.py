"""Eq. 2 in the report: shares of equal signs and rank correlations, against loops over the pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

from tests.reports.test_geva2022 import OPTIONS, TEXTS
from tests.sweeps.recorder import lettered
from unembed.corpus import open_corpus
from unembed.reports.geva2022.measurements import measure
from unembed.reports.geva2022.options import Options
from unembed.reports.geva2022.parts.score_effects import agreeing, by_chance, rank_correlations, scaling, section
from unembed.reports.stages import Work


def test_signs_of_shuffled_pairs_agree_by_chance_alone() -> None:
    random = np.random.default_rng(0)
    score = random.standard_normal((1, 500, 10, 2)) + 0.5
    score[0, 0, 0] = 0
    change = score + 0.1 * random.standard_normal(score.shape)
    assert np.nanmean(agreeing(score, change)) > 0.95 and np.isnan(agreeing(score, change)).sum() == 2
    shuffled = random.permutation(change.ravel()).reshape(change.shape)
    assert np.nanmean(agreeing(score, shuffled)) == pytest.approx(by_chance(score, change), abs=0.02)
    assert rank_correlations(score, change) == pytest.approx(1, abs=0.02)
    assert rank_correlations(score, shuffled) == pytest.approx(0, abs=0.05)
    assert np.isnan(rank_correlations(np.zeros_like(score), change)).all()


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_the_reports_numbers_are_those_of_loops(family: str, tmp_path: Path) -> None:
    lm = lettered(family)
    m = measure(lm, open_corpus(TEXTS), Work(tmp_path, {}, 3), Options(**{**OPTIONS, "changes": 7}))
    found, made = m.changes, section(m)
    assert found is not None and made is not None and found.score.shape[1] == 7
    rows = list(made.exhibits[0].table.rows())
    numbers = scaling(m)
    assert numbers is not None
    same, every = 0, 0
    for n, row in enumerate(rows):
        for t, name in enumerate(("prediction", "candidate")):
            pairs = [
                (float(s), float(c))
                for s, c in zip(found.score[n, ..., t].ravel(), found.log_probability[n, ..., t].ravel(), strict=True)
            ]
            equal = [np.sign(s) == np.sign(c) for s, c in pairs if s != 0]
            same, every = same + sum(equal), every + len(equal)
            if len(equal) == 70:  # ReLU leaves some memories out, and each example then has its own number
                assert row[f"{name}_signs"] == pytest.approx(np.mean(equal))
            ranks = [rankdata(column) for column in zip(*pairs, strict=True)]
            assert row[f"{name}_rank_correlation"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert numbers.signs.value == pytest.approx(same / every)


def test_nothing_is_shown_where_it_was_left_out(tmp_path: Path) -> None:
    m = measure(lettered("opt"), open_corpus(TEXTS), Work(tmp_path, {}, 3), Options(**{**OPTIONS, "changes": 0}))
    assert m.changes is None and section(m) is None and scaling(m) is None
