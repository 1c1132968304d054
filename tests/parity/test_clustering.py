"""Clusters of a trained model's values are scikit-learn's and SciPy's; of made-up vectors: tests/memories."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from scipy.cluster.hierarchy import fcluster
from scipy.cluster.hierarchy import linkage as scipy_linkage
from scipy.spatial.distance import pdist
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score

import unembed
from unembed.language_model import LanguageModel
from unembed.memories.clustering.value_clusters import dendrogram


@pytest.fixture(scope="module")
def wren() -> LanguageModel:
    return unembed.load()


def raw_values(lm: LanguageModel, layers: range) -> np.ndarray:
    """The value vectors in float64, read off the checkpoint's own tensors."""
    state = lm.hf.state_dict()
    return torch.cat([state[f"transformer.h.{n}.mlp.c_proj.weight"] for n in layers]).double().numpy()


@pytest.mark.parametrize(("linkage", "layers"), [("average", range(2, 6)), ("complete", range(4, 6))])
def test_the_labels_are_those_of_scikit_learn(wren: LanguageModel, linkage: str, layers: range) -> None:
    found = unembed.cluster_values(wren, 200, layers=layers, linkage=linkage)
    peer = AgglomerativeClustering(n_clusters=200, metric="cosine", linkage=linkage).fit(raw_values(wren, layers))
    assert len(found.labels) == len(layers) * wren.d_mlp
    assert adjusted_rand_score(found.labels, peer.labels_) == 1.0
    finer = AgglomerativeClustering(n_clusters=201, metric="cosine", linkage=linkage)
    assert adjusted_rand_score(found.labels, finer.fit_predict(raw_values(wren, layers))) < 1.0


@pytest.mark.parametrize("linkage", ["average", "complete"])
def test_the_heights_and_every_cut_are_those_of_scipy_in_float64(wren: LanguageModel, linkage: str) -> None:
    vectors = raw_values(wren, range(5, 6))
    ours = dendrogram(torch.from_numpy(vectors), linkage)
    theirs = scipy_linkage(pdist(vectors, "cosine"), linkage)
    np.testing.assert_allclose(ours.heights, theirs[:, 2], atol=1e-6)
    for k in (2, 10, 100, 500, 1000):
        assert adjusted_rand_score(ours.cut(k), fcluster(theirs, k, "maxclust")) == 1.0
