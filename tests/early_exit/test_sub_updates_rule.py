"""The paper's rule, against its definition written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import unembed
from tests.models.decoder_classes import tiny_model
from unembed.early_exit import thresholds as threshold_choice
from unembed.early_exit.example_prefixes import Examples
from unembed.early_exit.sub_updates_rule import SubUpdates, value_clusters
from unembed.memories.value_signs import signs_by_weights


def exits_by_definition(train, saturation, test, labels, similarity) -> list[int]:
    """The paper's rule, written out."""
    found = []
    n_layers = train.shape[1]
    for example in test:
        for layer in range(n_layers):
            if layer == n_layers - 1:
                break
            own = labels[layer][example[layer]].tolist()

            def alike(other, own=own):
                if similarity == "ordered":
                    return sum(a == b for a, b in zip(own, other, strict=True))
                return len(set(own) & set(other))

            def sims(x, layer=layer, alike=alike):
                return [
                    alike(labels[layer][t[layer]].tolist()) for t, s in zip(train, saturation, strict=True) if s == x
                ]

            mine = sims(layer)
            others = [sims(x) for x in range(layer + 1, n_layers)]
            if mine and all(max(mine) > max(o) and np.mean(mine) > np.mean(o) for o in others if o):
                break
        found.append(layer)
    return found


@pytest.mark.parametrize("similarity", ["ordered", "set"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_rule_is_the_definition(similarity, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 6, size=(4, 20))
    labels[0, 0] = 5
    train = np.stack([[generator.permutation(20)[:5] for _ in range(4)] for _ in range(30)])
    saturation = generator.integers(0, 4, size=30)
    test = np.stack([[generator.permutation(20)[:5] for _ in range(4)] for _ in range(60)])
    rule = SubUpdates(labels, train, saturation, similarity)
    blank = torch.zeros(60, 4, 1)
    wrapped = Examples(torch.from_numpy(test), blank[..., 0].long(), blank[..., 0], blank[..., 0], blank, blank)
    exits = threshold_choice.exit_layers(rule.scores(wrapped), np.zeros(3))
    expected = exits_by_definition(train, saturation, test, labels, similarity)
    assert exits.tolist() == expected
    assert len(set(expected)) > 1

    # Of a single token, the rule decides as its score does.
    for n, layer in enumerate(rule._layers):
        for keys in rule._keys(n, test[:, n]):
            assert all(layer.is_above(t, keys) == (layer.score(keys) > t) for t in (-1.0, 0.0, 0.25, 1.0))


def test_no_token_exits_at_a_layer_where_no_example_saturates():
    labels, train = np.zeros((3, 4), dtype=int), np.zeros((5, 3, 2), dtype=int)
    rule = SubUpdates(labels, train, np.array([1, 1, 2, 2, 2]))
    assert rule._layers[0].score(np.array([0, 1])) == -np.inf
    # Where no example settles later, every token may exit.
    assert SubUpdates(labels, train, np.full(5, 1))._layers[1].score(np.array([0, 1])) == np.inf


def test_clusters_of_layers_of_unequal_size_end_in_minus_one():
    lm = unembed.load(tiny_model("glm4_moe"))
    labels = value_clusters(lm, 9)
    clusters = unembed.cluster_values(lm, 9, signs=[signs_by_weights(lm, n) for n in range(lm.n_layers)])
    assert (labels[0, 80:] == -1).all() and (labels[1:] >= 0).all() and labels.shape == (4, 160)
    assert all(labels[n, i] == clusters.of(n, i) for n, i in ((0, 79), (1, 0), (3, 159)))


def test_value_clusters_follow_layer_and_index(deep):
    labels = value_clusters(deep, 12)
    clusters = unembed.cluster_values(deep, 12)
    assert labels.shape == (5, deep.d_mlp)
    assert all(labels[n, i] == clusters.of(n, i) for n, i in ((0, 3), (2, 17), (4, 127)))
