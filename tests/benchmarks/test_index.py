"""The benchmark's made-up index answers what was made up: sweep and readings are drawn, all else is a real build."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.index.conftest import corpus_of
from unembed.index import Index, IndexSettings
from unembed.index import build as building
from unembed.language_model import LanguageModel
from unembed.sweeps import TopTriggers

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(BENCHMARKS)
        spec = importlib.util.spec_from_file_location("benchmark_of_the_index", BENCHMARKS / "index.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def test_a_made_up_index_of_many_keys(made: Any, tmp_path: Path, lm: LanguageModel) -> None:
    model = made.model(2, 97, width=64, memories=5000, tokenizer=lm.tokenizer)
    corpus = corpus_of()
    n_tokens = sum(len(segment) - segment.skip for segment in corpus.segments(model))
    sweep = made.made_up_sweep(n_tokens)
    with (
        mock.patch.object(building, "sweep", sweep),
        mock.patch.object(building, "value_ends", made.made_up_ends),
    ):
        index = Index.build(model, corpus, tmp_path / "index", 4, settings=IndexSettings(top_tokens=5))
    assert index.n_keys == 10_000
    triggers, _, _ = sweep(model, corpus, [TopTriggers(4)])
    readings = made.made_up_readings(model, 5)
    for layer, key in ((0, 0), (1, 4999), (1, 123)):
        assert index.triggers(layer, key).columns["coefficient"] == triggers.values[layer][key].tolist()
        cosines = torch.nn.functional.cosine_similarity(
            torch.cat([model.weights.W_out[0], model.weights.W_out[1]]), model.weights.W_out[layer][key][None]
        )
        cosines[layer * 5000 + key] = -1
        (nearest,) = index.similar(layer, key, 1).rows()
        assert 5000 * nearest["layer"] + nearest["index"] == int(cosines.argmax())
    found = index.promoting(60, 10_000)
    at = np.argwhere((readings.ids == 60).numpy())
    assert sorted(zip(*(found.columns[name] for name in ("layer", "index", "rank")), strict=True)) == sorted(
        (layer, key, rank + 1) for layer, key, rank in at.tolist()
    )
