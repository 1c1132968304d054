"""A scorer that can be checked by hand, and a tiny model to score."""

from __future__ import annotations

import pytest

import unembed
from tests.cli.conftest import save_model


class Vowels:
    """The share of vowels."""

    name = "vowels"

    def score(self, texts):
        return {
            "toxicity": [sum(c in "aeiou" for c in t) / max(len(t), 1) for t in texts],
            "threat": [0.6] * len(texts),
        }


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    folder = save_model(tmp_path_factory.mktemp("toxicity") / "tiny")
    found = unembed.load(str(folder))
    found.name = "tiny"
    return found
