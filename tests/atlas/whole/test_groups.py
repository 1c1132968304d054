"""Groups of memories made in four ways, and tested as an atlas tests single memories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from unembed.atlas.groups import WAYS, group_scores, grouped
from unembed.errors import InvalidInput
from unembed.language_model import LanguageModel, load
from unembed.memories.clustering.value_clusters import cluster
from unembed.memories.values import written_values

LAYER, GROUPS = 7, 60


@pytest.fixture(scope="module")
def wren() -> LanguageModel:
    return load("wren")


def test_groups_are_factors_clusters_and_their_controls(wren: LanguageModel) -> None:
    coefficients = torch.randn(300, wren.d_mlp, generator=torch.Generator().manual_seed(0))
    fitted = torch.arange(300) < 150
    found = dict(zip(WAYS, grouped(wren, LAYER, coefficients, fitted, GROUPS, 0), strict=True))
    for weights, activations in found.values():
        assert weights.shape == (GROUPS, wren.d_mlp) and activations.shape == (300, GROUPS)
        assert (activations >= 0).all()
    labels = cluster(written_values(wren, LAYER), GROUPS)
    weights, activations = found["clusters"]
    assert torch.equal(weights.argmax(dim=0), labels) and torch.equal(weights.sum(dim=0), torch.ones(wren.d_mlp))
    torch.testing.assert_close(activations[:, 3], coefficients[:, labels == 3].sum(dim=1).clamp_min(0))
    sizes = found["random clusters"][0].sum(dim=1)
    assert torch.equal(sizes, weights.sum(dim=1)) and not torch.equal(found["random clusters"][0], weights)
    errors = {
        way: (coefficients - found[way][1] @ found[way][0]).square().sum() for way in ("factors", "shuffled factors")
    }
    assert errors["factors"] < errors["shuffled factors"]


def test_a_row_for_each_layer_and_way(wren: LanguageModel) -> None:
    found = group_scores(wren, [LAYER], n_groups=(k := 24), tokens=8_000, passages=4)
    rows = list(found.shares.rows())
    assert [(row["layer"], row["way"], row["groups"]) for row in rows] == [(LAYER, way, k) for way in WAYS]
    shares = np.array([[row["input_passes"], row["output_passes"], row["both_pass"]] for row in rows])
    assert ((shares >= 0) & (shares <= 1)).all() and (shares[:, 2] <= shares[:, :2].min(axis=1)).all()
    assert shares[:, 1].max() > 0.5  # at the end of the model nearly every vector raises the same words everywhere
    listed = list(found.groups.rows())
    assert [(row["way"], row["group"]) for row in listed] == [(way, n) for way in WAYS for n in range(k)]
    for row in rows:
        own = [one for one in listed if one["way"] == row["way"]]
        both = [one["input_passes"] and one["output_passes"] for one in own]
        assert row["both_pass"] == pytest.approx(np.mean(both))
        assert all(one["fires"] for one in own if one["input_passes"])
        sizes = [np.abs(one["weights"]) for one in own]
        assert all((np.diff(size) <= 0).all() and (size > 0).all() for size in sizes)


def test_texts_that_are_too_short_or_too_few_are_refused(wren: LanguageModel, tmp_path: Path) -> None:
    for name, text, why in (
        ("short", "A few words.", "no document has 256 tokens"),
        ("one", "A few words. " * 400, "1 documents"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(InvalidInput, match=why):
            group_scores(wren, [LAYER], tmp_path / name, n_groups=4)
