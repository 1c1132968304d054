"""Drawn prefixes are beginnings of the corpus's segments."""

from __future__ import annotations

import pytest

import unembed
from tests.cli.conftest import save_model
from unembed.memories.prefix_sampling import draw_examples

TEXTS = [f"The first month of the year is {w} a b c" for w in ("January", "w66", "w70", "w71", "w80")]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory):
    return unembed.load(save_model(tmp_path_factory.mktemp("events") / "tiny"))


def test_examples_are_seeded_prefixes_with_the_token_that_follows(lm):
    drawn = draw_examples(lm, TEXTS, 3, seed=1)
    assert [s.number for s in drawn] == sorted(s.number for s in drawn)
    assert drawn[0].tokens.tolist() == draw_examples(lm, TEXTS, 3, seed=1)[0].tokens.tolist()
    whole = {s.number: s for s in unembed.open_corpus(TEXTS).segments(lm)}
    for s in drawn:
        full = whole[s.number].tokens.tolist()
        assert full[: len(s)] == s.tokens.tolist()
        assert full[len(s)] == s.next_token
    assert len(draw_examples(lm, TEXTS, 100)) == len(whole)
    lengths = {len(draw_examples(lm, TEXTS, 1, seed=i)[0]) for i in range(60)}
    assert min(lengths) == 1
    assert max(lengths) == max(map(len, whole.values())) - 1
