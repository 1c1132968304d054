"""The handle's methods are the rooms' functions: what they return is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unembed
from tests.conftest import tiny
from tests.sweeps.recorder import lettered, texts
from unembed.attention import Circuits

TOKENS = [5, 7, 11, 13]


def test_attribute_explains_the_prediction_or_the_token_given() -> None:
    lm = tiny("gpt2")
    trace = lm.trace(TOKENS)
    predicted = int(trace.logits().argmax())
    for found, expected in (
        (lm.attribute(TOKENS), trace.attribution(predicted)),
        (lm.attribute(TOKENS, 9, against=4, position=1, by="head"), trace.attribution(9, 1, 4, "head")),
    ):
        assert found.total == pytest.approx(expected.total, rel=1e-6)
        assert [row.label for row in found.rows] == [row.label for row in expected.rows]
    edit = unembed.scale_head(0, 1, 0.0)
    assert lm.attribute(TOKENS, 9, edits=edit).total == pytest.approx(
        lm.trace(TOKENS, edits=edit).attribution(9).total, rel=1e-6
    )


def test_circuits_are_made_once_and_values_answer_for_all_memories() -> None:
    lm = tiny("gpt2")
    assert isinstance(lm.circuits, Circuits) and lm.circuits is lm.circuits
    assert torch.equal(lm.values.readings(4).ids, unembed.value_readings(lm, 4).ids)
    assert lm.values.clusters(20).n_clusters == 20


def test_an_index_is_built_opened_again_and_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    lm, corpus = lettered("gpt2"), texts(6)
    built = lm.index(corpus, tmp_path / "i", top=3)
    assert built is not None and built.path == tmp_path / "i" and built.top == 3
    assert lm.index(build=False) is None
    cached = lm.index(corpus)
    assert cached is not None and cached.path.is_relative_to(tmp_path / "cache")
    found = lm.index(build=False)
    assert found is not None and found.path == cached.path


def test_report_and_steer_take_the_model_from_the_handle(tmp_path: Path) -> None:
    lm = lettered("gpt2")
    with pytest.raises(unembed.UnembedError, match="nothing"):
        lm.report("nothing", texts(4), tmp_path)
    edit = unembed.set_coefficient(0, 1, 3.0)
    steered = lm.steer("a b", [edit], max_new_tokens=2)
    assert steered.edited == unembed.steering.steer(lm, "a b", [edit], max_new_tokens=2).edited


def test_completion_offers_what_is_done_with_a_model_and_no_helper() -> None:
    offered = dir(tiny("gpt2"))
    assert {"trace", "run", "generate", "patch", "ablate", "attribute", "circuits", "values", "index"} < set(offered)
    assert {"report", "steer"} < set(offered)
    assert not {"once", "coarsest_dtype_name", "encode_all", "unlisted", "lock"} & set(offered)
