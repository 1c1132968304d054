"""Baseline scores: classifiers as in scikit-learn, confidence by hand."""

from __future__ import annotations

import numpy as np
import torch

from unembed.early_exit.baselines import Classifier, Confidence
from unembed.early_exit.example_prefixes import Examples


def test_classifiers_are_sklearns_on_scaled_features(found):
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    ours = Classifier.fit(found, "both", sweep=(0.1,))
    p = ours.scores(found)
    x, y = (found.before + found.update)[:, 1].double().numpy(), (found.saturation == 1).numpy()
    if y.sum() >= 3:
        scaled = StandardScaler().fit_transform(x)
        model = LogisticRegression(C=0.1, class_weight="balanced", max_iter=500).fit(scaled, y)
        assert np.allclose(p[:, 1], model.predict_proba(scaled)[:, 1], atol=1e-3)
    assert not np.allclose(Classifier.fit(found, "representation", sweep=(0.1,)).scores(found), p)


def test_agreement_counts_layers_in_a_row():
    top = torch.tensor([[5, 5, 5, 2, 2], [1, 2, 2, 2, 2]])
    blank = torch.zeros(2, 5, 1)
    wrapped = Examples(blank.long(), top, blank[..., 0], blank[..., 0], blank, blank)
    assert Confidence("agreement").scores(wrapped).tolist() == [[0, 1, 2, 0], [0, 0, 1, 2]]
