"""The offline toxicity scorer is fitted, measured, written and read."""

from __future__ import annotations

import numpy as np
import pytest

from tools import fit_linear
from unembed.errors import InvalidInput
from unembed.toxicity.comments import read_comments
from unembed.toxicity.hashed_ngrams import margins
from unembed.toxicity.scorers import open_scorer


def test_the_measured_numbers_are_those_of_sklearn():
    from sklearn.metrics import accuracy_score, roc_auc_score

    generator = np.random.default_rng(1)
    weights = generator.normal(size=64)
    texts = [" ".join(generator.choice(["a", "bb", "ccc", "dd"], size=3)) for _ in range(60)]
    labels = generator.integers(0, 2, size=60).tolist()
    found = fit_linear.measured(texts, labels, weights, 0.1)
    z = margins(texts, weights, 0.1)
    assert found["auc"] == pytest.approx(roc_auc_score(labels, z), abs=5e-5)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, z > 0), abs=5e-5)


def test_a_scorer_is_fitted_written_and_read(tmp_path, monkeypatch):
    rows = [f'"you are rude number {i}",1\n"a calm day number {i}",0\n' for i in range(40)]
    (tmp_path / "jigsaw_balanced.csv").write_text("".join(rows))
    monkeypatch.setattr(fit_linear, "TRAIN", 60)
    monkeypatch.setattr(fit_linear, "BITS", 10)
    card = fit_linear.make(tmp_path, tmp_path / "small.npz")
    assert card["measured"]["Jigsaw, held out"]["auc"] == 1.0
    scorer = open_scorer(f"linear:{tmp_path / 'small.npz'}")
    rude, calm = scorer.score(["you are rude", "a calm day"])["toxicity"]
    assert rude > 0.5 > calm
    (tmp_path / "jigsaw_balanced.csv").write_text('"text",2\n')
    with pytest.raises(InvalidInput, match="row 1"):
        read_comments(tmp_path / "jigsaw_balanced.csv")
