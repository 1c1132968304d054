"""Triggers as the paper's released code finds them, against a loop over every sentence."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reports.geva2021.tiny_study import tiny_study
from tests.sweeps.recorder import Everything, lettered, texts
from unembed.corpus import open_corpus
from unembed.reports.geva2021.triggers import KeyTriggers, reducer
from unembed.sweeps import sweep


def test_triggers_of_the_released_code_come_from_each_sentence_once_and_never_its_end() -> None:
    lm, corpus, text, triggers = tiny_study("gpt2", "sentences", 5)
    coefficients, facts = sweep(lm, corpus, [Everything()])[0]
    segment = text.segment(facts["position"].numpy())
    for layer in range(lm.n_layers):
        for index in range(0, coefficients[layer].shape[1], 17):
            best: dict[int, tuple[float, int]] = {}
            rows = zip(
                coefficients[layer][:, index].tolist(),
                facts["position"].tolist(),
                segment.tolist(),
                facts["next"].tolist(),
                strict=True,
            )
            for value, place, sentence, follows in rows:
                if follows >= 0 and value > 0 and value > best.get(sentence, (0.0, 0))[0]:
                    best[sentence] = (value, place)
            expected = sorted(best.values(), key=lambda pair: (-pair[0], pair[1]))[:5]
            row = triggers.row(layer, index)
            got = [p for p in triggers.positions[row].tolist() if p >= 0]
            # Equal beginnings of sentences have equal coefficients, so values are compared and places checked by them.
            np.testing.assert_allclose(triggers.coefficients[row][: len(got)], [v for v, _ in expected], rtol=1e-6)
            assert len(got) == len(expected) == len(set(text.segment(np.array(got, dtype=np.int64)).tolist()))
            for place, (value, _) in zip(got, expected, strict=True):
                at = facts["position"].tolist().index(place)
                assert float(coefficients[layer][at, index]) == pytest.approx(value, rel=1e-9)
                assert int(facts["next"][at]) >= 0


def test_a_memory_without_a_gate_is_one_key() -> None:
    lm = lettered("opt")
    (lists,) = sweep(lm, open_corpus(texts(4)), [reducer("prefixes", 3)], tokens_per_batch=300)
    triggers = KeyTriggers.of_sweep(lists)
    assert not triggers.signed.any() and (triggers.sign == 1).all()
    assert triggers.bounds.tolist() == [lm.d_mlp * n for n in range(lm.n_layers + 1)]
    assert triggers.memory(1, 5) == (5, "positive") and triggers.key(1, 5) == 5
