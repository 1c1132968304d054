"""Tokens cleaned, and the shipped WordNet."""

from __future__ import annotations

import numpy as np
import pytest

from unembed.concepts.wordnet import wordnet


@pytest.mark.parametrize(
    ("word", "forms"),
    [
        ("went", {"v": "go"}),
        ("cities", {"n": "city"}),
        ("running", {"n": "running", "v": "run", "a": "running"}),
        ("better", {"n": "better", "v": "better", "a": "good", "r": "well"}),
        ("qwxz", {}),
    ],
)
def test_base_forms_are_morphys(word, forms):
    assert wordnet().base_forms(word) == forms


def test_hypernyms_and_information():
    net = wordnet()
    number = {name: i for i, name in enumerate(net.names)}
    above = net.ancestors(number["dog.n.1"])
    assert {number["canine.n.2"], number["mammal.n.1"], number["animal.n.1"], number["entity.n.1"]} <= above
    information = net.information
    chain = [information[number[n]] for n in ("entity.n.1", "animal.n.1", "mammal.n.1", "canine.n.2", "dog.n.1")]
    assert chain == sorted(chain)
    assert chain[0] == pytest.approx(0.0, abs=0.01)
    # Resnik's measure, counted again by hand: everything under "canine"
    under = [s for s in range(len(net.names)) if number["canine.n.2"] in net.ancestors(s)]
    nouns = np.array([name.rsplit(".", 2)[1] == "n" for name in net.names])
    share = (net.counts[under] + 1).sum() / (net.counts[nouns] + 1).sum()
    assert information[number["canine.n.2"]] == pytest.approx(-np.log2(share), abs=1e-9)


def test_named_things_and_definitions():
    net = wordnet()
    assert net.instance[net.senses("paris")[0]]
    assert not net.instance[net.senses("dog")[0]]
    assert net.definition("January") == "the first month of the year"
    assert net.definition("qwxz") is None
