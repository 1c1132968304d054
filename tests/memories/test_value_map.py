"""The map of values: planted directions become islands, nothing overlaps, and a seed gives one map."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.manifold import trustworthiness
from sklearn.metrics import adjusted_rand_score

import unembed
from tests.families import build
from unembed.errors import InvalidInput, Unsupported
from unembed.memories.clustering.unit_vectors import unit_rows
from unembed.memories.value_map import _joint, _tsne, value_map
from unembed.memories.values import values_of


@pytest.fixture(scope="module")
def wren():
    return unembed.load()


def tiny(name: str):
    """A tiny model that may be changed."""
    return unembed.load(build(name))


def planted(lm, n_groups: int, noise: float) -> np.ndarray:
    """Give a model's values a few directions with noise around them; returns the group of each, layer by layer."""
    g = torch.Generator().manual_seed(3)
    directions = torch.linalg.qr(torch.randn(lm.d_model, lm.d_model, generator=g))[0][:n_groups]
    groups = []
    for layer in range(lm.n_layers):
        group = torch.randint(n_groups, (lm.d_mlp,), generator=g)
        scatter = torch.randn(lm.d_mlp, lm.d_model, generator=g) * noise / lm.d_model**0.5
        length = 0.1 + 5 * torch.rand(lm.d_mlp, 1, generator=g)
        with torch.no_grad():
            lm.weights.W_out[layer].copy_((directions[group] + scatter) * length)
        groups.append(group)
    return torch.cat(groups).numpy()


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_values_of_one_direction_share_an_island_whatever_their_length(family):
    lm = tiny(family)
    group = planted(lm, 6, 0.05)
    found = value_map(lm)
    shown = found.memory[:, 0] * lm.d_mlp + found.memory[:, 1]
    assert shown.tolist() == list(range(lm.n_layers * lm.d_mlp))
    for number in range(len(found.centre)):
        members = group[found.cluster == number]
        # A branch norm's gain turns directions, but the same for all, so groups stay groups.
        assert (members == np.bincount(members).argmax()).all()
    if len(found.centre) == 6:
        assert adjusted_rand_score(group, found.cluster) == 1


def test_cosines_are_those_with_the_mean_direction(wren):
    found = value_map(wren, 500)
    units = unit_rows(values_of(wren, found.memory).float()).double()
    for number in range(len(found.centre)):
        rows = np.flatnonzero(found.cluster == number)
        mean = units[rows].sum(dim=0)
        np.testing.assert_allclose(found.cosine[rows], (units[rows] @ (mean / mean.norm())).numpy(), atol=2e-2)
    means = torch.stack([units[found.cluster == n].sum(dim=0) for n in range(len(found.centre))])
    best = (units @ unit_rows(means).double().T).max(dim=1).values.numpy()
    assert (best - found.cosine < 0.02).mean() > 0.97, "each is on the island of the direction that it is most like"


def test_no_two_points_and_no_two_islands_overlap_and_all_lie_on_the_map(wren):
    found = value_map(wren)
    assert len(found.position) == found.n_values == wren.n_memories
    assert found.position.min() >= 0 and found.position.max() <= 1
    away = np.sqrt(((found.centre[:, None] - found.centre) ** 2).sum(-1)) + 9 * np.eye(len(found.centre))
    assert (away >= found.radius[:, None] + found.radius).all()
    own = np.sqrt(((found.position - found.centre[found.cluster]) ** 2).sum(-1))
    assert (own <= found.radius[found.cluster]).all()
    spacing = np.median(
        [
            np.sort(np.sqrt(((found.position[i] - found.position) ** 2).sum(-1)))[1]
            for i in range(0, len(found.position), 97)
        ]
    )
    close = np.unique(np.round(found.position / (0.3 * spacing)).astype(int), axis=0)
    assert len(close) == len(found.position)


def test_values_nearer_the_centre_of_an_island_are_more_like_its_mean(wren):
    found = value_map(wren)
    for number in np.argsort(-np.bincount(found.cluster))[:10]:
        rows = np.flatnonzero(found.cluster == number)
        out = np.sqrt(((found.position[rows] - found.centre[number]) ** 2).sum(-1))
        assert np.corrcoef(out, found.cosine[rows])[0, 1] < -0.8


def test_neighbours_on_the_map_are_alike_and_those_of_a_shuffled_map_are_not(wren):
    found = value_map(wren, 1500)
    units = unit_rows(values_of(wren, found.memory).float()).numpy()
    trust = trustworthiness(units, found.position, n_neighbors=10, metric="cosine")
    shuffled = np.random.default_rng(0).permutation(found.position)
    assert trust > trustworthiness(units, shuffled, n_neighbors=10, metric="cosine") + 0.1


def test_the_same_seed_gives_the_same_map_and_a_sample_is_even_over_the_layers(wren):
    first, again = value_map(wren, 600, seed=4), value_map(wren, 600, seed=4)
    assert (first.position == again.position).all() and (first.cluster == again.cluster).all()
    assert first.n_values == wren.n_memories and len(first.memory) == 600
    assert np.bincount(first.memory[:, 0]).tolist() == [600 // wren.n_layers] * wren.n_layers
    assert first.provenance.notes["shown"] == 600
    assert first.to_table().column_names == ["layer", "index", "x", "y", "cluster", "cosine"]


def test_a_sample_holds_the_memories_that_are_named(wren):
    named = [(0, 1), (3, 5), (5, 1023), (3, 5)]
    even, found = value_map(wren, 100), value_map(wren, 100, also=named)
    assert {tuple(pair) for pair in found.memory.tolist()} == {tuple(pair) for pair in even.memory.tolist()} | {*named}


@pytest.mark.parametrize("points", [1, 2, 3, 7])
def test_few_points_are_a_map_too(wren, points):
    found = value_map(wren, points)
    assert len(found.position) == points and np.isfinite(found.position).all()


def test_equal_values_lie_side_by_side():
    lm = tiny("gpt2")
    with torch.no_grad():
        for layer in range(lm.n_layers):
            lm.weights.W_out[layer].fill_(0.5)
    found = value_map(lm)
    assert len(found.centre) == 1
    assert len(np.unique(found.position, axis=0)) == len(found.position)


def test_the_map_of_half_precision_is_close_to_that_of_single(wren):
    half = unembed.load(dtype="bfloat16")
    a, b = value_map(wren, 800), value_map(half, 800)
    assert a.cosine.mean() == pytest.approx(b.cosine.mean(), abs=5e-3)


def test_broken_values_and_models_without_memories_are_refused():
    lm = tiny("gpt2")
    with torch.no_grad():
        lm.weights.W_out[0][0, 0] = float("nan")
    with pytest.raises(InvalidInput, match="no direction"):
        value_map(lm)
    with pytest.raises(Unsupported, match="no value vectors to map"):
        value_map(unembed.load("attn-2l"))


def test_what_stops_the_progress_stops_the_work(wren):
    class Stop(Exception):
        pass

    seen = []

    def progress(done: int, of: int) -> None:
        seen.append((done, of))
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        value_map(wren, 700, progress=progress)
    assert seen == [(0, 17), (1, 17), (2, 17)]


def test_every_row_of_neighbours_has_the_requested_perplexity():
    g = np.random.default_rng(0)
    points = g.normal(size=(40, 5))
    squared = ((points[:, None] - points) ** 2).sum(-1)
    joint = _joint(squared, 7.0)
    np.testing.assert_allclose(joint.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(joint, joint.T)
    # Equation 1: the row's own probabilities, whose symmetric mean `joint` is, have entropy log(perplexity).
    from sklearn.manifold._utils import _binary_search_perplexity

    expected = _binary_search_perplexity(squared.astype(np.float32), 7.0, 0)
    np.testing.assert_allclose(joint, (expected + expected.T) / 80, atol=1e-5)


def test_planted_groups_are_apart_in_the_plane():
    g = np.random.default_rng(1)
    group = np.repeat(np.arange(4), 12)
    points = g.normal(size=(4, 20))[group] * 3 + g.normal(size=(48, 20)) * 0.3
    place = _tsne(((points[:, None] - points) ** 2).sum(-1))
    away = np.sqrt(((place[:, None] - place) ** 2).sum(-1)) + 1e9 * np.eye(48)
    assert (group[away.argmin(axis=1)] == group).all()
