"""Concepts of a model's values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import unembed
from tests.cli.conftest import save_model
from tests.reports.sample import part_of
from unembed.concepts.detection import Concept
from unembed.concepts.value_concepts import VectorConcepts, sample_memories, value_concepts, vector_concepts
from unembed.errors import InvalidInput, OutOfRange


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory):
    return unembed.load(save_model(tmp_path_factory.mktemp("concepts") / "tiny"))


def test_a_sample_is_seeded_and_takes_so_many_from_each_layer(lm):
    chosen = sample_memories(lm, 3, seed=4)
    assert chosen == sample_memories(lm, 3, seed=4)
    assert chosen != sample_memories(lm, 3, seed=5)
    assert [n for n, _ in chosen] == [n for n in range(lm.n_layers) for _ in range(3)]
    assert len(set(chosen)) == len(chosen)


def test_the_lists_are_the_values_top_tokens_and_members_are_in_them(lm):
    found = value_concepts(lm, [(0, 1), (1, 5)], top=20)
    assert found.labels == ("L0M1", "L1M5")
    for row, (layer, index), concepts in zip(found.ids, [(0, 1), (1, 5)], found.concepts, strict=True):
        assert row.tolist() == lm.values.top(layer, index, 20)[0].tolist()
        assert all(set(c.members) <= set(row.tolist()) for c in concepts)


def test_a_direction_of_one_class_names_it(lm):
    # The readout's columns of all letters, added: its top tokens are single capital and small letters.
    letters = [i for i, t in enumerate(lm.token_strings(range(lm.d_vocab))) if len(t) == 1 and t.isalpha()]
    direction = torch.linalg.lstsq(
        lm.weights.W_U.T.float(), torch.zeros(lm.d_vocab).index_fill_(0, torch.tensor(letters[:15]), 1.0)
    ).solution
    found = vector_concepts(lm, direction[None], ["planted"], embedding=False, max_expected=10.0)
    assert found.labels == ("planted",)
    table = list(found.to_table().rows())
    assert all(row["vector"] == "planted" and row["layer"] is None for row in table)


def test_tables_agree_with_the_concepts(lm):
    found = value_concepts(lm, per_layer=4, seed=1, embedding=True)
    layers = list(found.by_layer().rows())
    assert [row["layer"] for row in layers] == list(range(lm.n_layers))
    for row in layers:
        here = [i for i, n in enumerate(found.layers) if n == row["layer"]]
        assert row["in_a_concept"] == pytest.approx(float(found.coverage()[here].mean()))
        assert row["vectors"] == len(here) == 4
    assert len(found.to_table()) == sum(map(len, found.concepts))


def test_bad_input_is_one_clear_line(lm, tmp_path: Path):
    with pytest.raises(OutOfRange, match="layer 7"):
        value_concepts(lm, [(7, 0)])
    with pytest.raises(InvalidInput, match="at least 1"):
        value_concepts(lm, per_layer=0)
    from tests.conftest import tiny

    with pytest.raises(InvalidInput, match="tokenizer"):
        value_concepts(tiny("gpt2"))


def test_coverage_counts_each_token_once_and_stop_words_separately():
    def concept(kind: str, members: tuple[int, ...]) -> Concept:
        return Concept("x", kind, members, 1.0, "", 4)

    row = concept("semantic", (1, 2, 3, 4)), concept("names", (3, 4, 5, 6)), concept("stopwords", (7, 8, 9, 10))
    found = part_of(VectorConcepts, ids=np.zeros((1, 30), dtype=np.int64), concepts=(row,))
    assert found.coverage() == pytest.approx([6 / 30])
    assert found.coverage(("stopwords",)) == pytest.approx([4 / 30])
