"""Clustering against SciPy, which keeps the whole matrix of distances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import cophenet, fcluster, is_valid_linkage
from scipy.cluster.hierarchy import linkage as scipy_linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import adjusted_rand_score

from tests.conftest import tiny
from unembed.errors import InvalidInput, OutOfRange, Unsupported
from unembed.memories.clustering import average_linkage as linkage
from unembed.memories.clustering.average_linkage import average_linkage
from unembed.memories.clustering.complete_linkage import complete_linkage
from unembed.memories.clustering.value_clusters import cluster, cluster_values, coherence, dendrogram

TOLERANCE = 1e-6
"""Heights are dot products of float32 directions; SciPy's are float64."""


def distances(vectors: torch.Tensor) -> np.ndarray:
    """Cosine distances in float64, zero vectors by the stated rule: 1 from all others, 0 among themselves."""
    rows = vectors.double()
    lengths = rows.norm(dim=1, keepdim=True)
    units = torch.where(lengths > 0, rows / lengths.clamp_min(1e-300), 0.0)
    out = (1 - units @ units.T).numpy()
    zero = (lengths == 0).flatten().numpy()
    out[np.ix_(zero, zero)] = 0.0
    np.fill_diagonal(out, 0.0)
    return squareform(out, checks=False).clip(0)


def grouped(n: int, d: int, seed: int) -> torch.Tensor:
    """Vectors in two levels of groups, some alone: what values look like."""
    g = torch.Generator().manual_seed(seed)
    top = torch.randn(max(2, n // 100), d, generator=g)
    centres = top[torch.randint(len(top), (max(2, n // 12),), generator=g)] + torch.randn(
        max(2, n // 12), d, generator=g
    )
    out = centres[torch.randint(len(centres), (n,), generator=g)] + 0.7 * torch.randn(n, d, generator=g)
    alone = torch.rand(n, generator=g) < 0.15
    out[alone] = 1.7 * torch.randn(int(alone.sum()), d, generator=g)
    return out


def scattered(n: int, d: int, seed: int) -> torch.Tensor:
    """Vectors without any structure, the hard case for candidate lists."""
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("make", [grouped, scattered])
@pytest.mark.parametrize(("n", "d"), [(2, 3), (3, 1), (40, 4), (700, 48)])
@pytest.mark.parametrize("sizes", [{}, {"group": 8, "tile": 32}, {"group": 16, "tile": 256}])
def test_average_linkage_is_scipys(make, n, d, sizes):
    vectors = make(n, d, seed=n)
    ours, theirs = average_linkage(vectors, **sizes), scipy_linkage(distances(vectors), "average")
    np.testing.assert_allclose(ours.heights, theirs[:, 2], atol=TOLERANCE)
    if d > 1:  # in one dimension all distances are 0 or 2, and any tree is right
        np.testing.assert_allclose(cophenet(ours.linkage()), cophenet(theirs), atol=TOLERANCE)
        for k in {1, 2, max(2, n // 10), n // 2 + 1, n}:
            assert adjusted_rand_score(ours.cut(k), fcluster(theirs, k, "maxclust")) == 1.0


@pytest.mark.parametrize("make", [grouped, scattered])
def test_complete_linkage_is_scipys(make):
    vectors = make(400, 24, seed=2)
    ours, theirs = complete_linkage(vectors), scipy_linkage(distances(vectors), "complete")
    np.testing.assert_allclose(cophenet(ours.linkage()), cophenet(theirs), atol=TOLERANCE)
    assert adjusted_rand_score(ours.cut(50), fcluster(theirs, 50, "maxclust")) == 1.0


def test_the_two_linkages_differ():
    vectors = grouped(200, 12, seed=3)
    other = scipy_linkage(distances(vectors), "complete")
    assert np.abs(average_linkage(vectors).heights - other[:, 2]).max() > 0.05


@settings(max_examples=40)
@given(st.data())
def test_any_vectors_give_a_tree_that_scipy_accepts(data):
    # Few distinct numbers, so that ties, repeated, opposite and zero vectors are common.
    n, d = data.draw(st.integers(2, 24)), data.draw(st.integers(1, 3))
    numbers = data.draw(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 3.0]), min_size=n * d, max_size=n * d))
    vectors = torch.tensor(numbers).view(n, d)
    for tree in (average_linkage(vectors), average_linkage(vectors, group=2, tile=4), complete_linkage(vectors)):
        assert is_valid_linkage(tree.linkage())
        assert (np.diff(tree.heights) >= 0).all()
        for k in range(1, n + 1):
            labels = tree.cut(k)
            assert set(labels) == set(range(k))
            assert labels[0] == 0


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(5, 60))
def test_duplicates_and_zero_vectors_merge_first(seed, n):
    vectors = scattered(n, 6, seed)
    vectors[n // 2 :] = vectors[: n - n // 2] * 2.0  # exact multiples: a power of two changes no direction
    vectors[0], vectors[-1] = 0.0, 0.0
    ours, theirs = average_linkage(vectors), scipy_linkage(distances(vectors), "average")
    # From distance 1 on, zero vectors tie with everything, and any choice is right.
    below = theirs[:, 2] < 1 - TOLERANCE
    np.testing.assert_allclose(ours.heights[below], theirs[below, 2], atol=TOLERANCE)
    assert (ours.heights[~below] >= 1 - TOLERANCE).all()
    labels = ours.cut(len(vectors) - int((ours.heights <= 1e-6).sum()))
    assert labels[0] == labels[-1]
    assert (labels[1 : n - n // 2 - 1] == labels[n // 2 + 1 : n - 1]).all()


def test_without_its_bound_a_short_list_misses_neighbours(monkeypatch):
    vectors = scattered(600, 24, seed=5)
    right = scipy_linkage(distances(vectors), "average")[:, 2]
    monkeypatch.setattr(linkage, "LISTED", 2)
    np.testing.assert_allclose(average_linkage(vectors, group=8, tile=64).heights, right, atol=TOLERANCE)

    def trusting(self, rows):
        self.bound[rows] = linkage._NOTHING_ELSE
        before(self, rows)

    before = linkage._Clusters._find_nearest
    monkeypatch.setattr(linkage._Clusters, "_find_nearest", trusting)
    assert np.abs(average_linkage(vectors, group=8, tile=64).heights - right).max() > 1e-3


def test_half_precision_arrays_and_order_of_rows_do_not_matter():
    vectors = grouped(150, 16, seed=6)
    labels = cluster(vectors, 20)
    assert (cluster(vectors.numpy().astype(np.float64), 20) == labels).all()
    shuffled = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    assert adjusted_rand_score(cluster(vectors[shuffled], 20), labels[shuffled]) == 1.0
    halves = vectors.bfloat16()
    assert adjusted_rand_score(cluster(halves, 20), cluster(halves.float(), 20)) == 1.0


@pytest.mark.parametrize(
    ("call", "error", "help_text"),
    [
        (lambda: cluster(torch.ones(4, 3), 5), OutOfRange, "1 to 4"),
        (lambda: cluster(torch.ones(4, 3), 0), OutOfRange, "1 to 4"),
        (lambda: cluster(torch.ones(4, 3), 2, linkage="ward"), InvalidInput, "average, complete"),
        (lambda: cluster(torch.ones(4, 3), 2, metric="euclidean"), InvalidInput, "'cosine'"),
        (lambda: cluster(torch.tensor([[1.0, 2.0], [float("nan"), 1.0]]), 1), InvalidInput, "vector 1"),
        (lambda: cluster(torch.ones(4, 3).long(), 2), InvalidInput, "float tensor"),
        (lambda: complete_linkage(torch.ones(20_001, 1)), Unsupported, "linkage='average'"),
    ],
)
def test_bad_input_is_one_clear_line(call, error, help_text):
    with pytest.raises(error, match=help_text):
        call()


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_values_of_a_model_in_clusters(family):
    lm = tiny(family)
    found = cluster_values(lm, 12)
    assert len(found.labels) == lm.n_layers * lm.d_mlp
    assert found.n_clusters == 12
    layer, index = found.members(3)[0]
    assert found.of(layer, index) == 3
    again = found.cut(5)
    assert again.n_clusters == 5
    cards = list(found.cards(top=12).rows())
    assert sum(card["size"] for card in cards) == len(found.labels)
    assert [card["size"] for card in cards] == sorted((card["size"] for card in cards), reverse=True)
    assert all(sum(card["by_layer"]) == card["size"] for card in cards)
    with pytest.raises(OutOfRange, match="counted 0 to 11"):
        found.members(12)
    with pytest.raises(OutOfRange, match="value vectors in these layers"):
        cluster_values(lm, 10_000)


def test_coherence_is_the_mean_similarity_of_two_members():
    units = torch.nn.functional.normalize(scattered(7, 5, seed=8), dim=1)
    every = units @ units.T
    expected = (every.sum() - every.diag().sum()) / 42
    assert coherence(units) == pytest.approx(float(expected), abs=1e-6)
    assert coherence(units[:1]) is None


def test_dendrogram_cuts_nest():
    tree = dendrogram(grouped(120, 10, seed=9))
    coarse, fine = tree.cut(10), tree.cut(40)
    assert all(len(set(coarse[fine == c])) == 1 for c in range(40))
