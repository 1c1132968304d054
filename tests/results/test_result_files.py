"""A result comes back from its file as it was; what is no data, or no such file, is refused in one line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import unembed
from tests.conftest import tiny
from unembed.errors import InvalidInput, Unsupported

PROMPT = "Once upon a time there was a little"
PAIR = ("The king of France", "The king of England")


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """One result of every kind that a person asks a prompt for."""
    lm = unembed.load()
    trace = lm.trace(PROMPT)
    attribution = trace.attribution(" girl", against=" boy", by="head")
    scores = unembed.circuits(lm).head_scores(n_sequences=2, length=8)
    return {
        "readings": trace.readings(top=3),
        "events": trace.events(),
        "rank changes": trace.rank_changes(position=-1),
        "sub-updates": trace.sub_updates(3, top=4),
        "head updates": trace.head_updates(3),
        "described memories": trace.described_memories(),
        "memory effects": trace.memory_effects(top=3),
        "entropy and KL": trace.entropy_and_kl(),
        "attribution": attribution,
        "effects": attribution.with_effects(3),
        "run": lm.run(PROMPT, ("z", "resid_post"), unembed.scale_head(0, 1, 0.5)),
        "head scores": scores,
        "patching": lm.patch(*PAIR, "coefficients", top=2),
        "patching of pairs": lm.patch_pairs([PAIR[0]], [PAIR[1]]),
        "ablation": lm.ablate(PROMPT, heads=[(0, 1), (1, 2)]),
        "ablation of prompts": lm.ablate_prompts([PROMPT, PAIR[0]], heads=[(0, 1), (1, 2)]),
        "ablation over a corpus": lm.ablate_over_corpus(["The cat sat.", "It rained."], heads=[(0, 1)]),
        "paths": lm.patch_paths(*PAIR, "L0H1", ["L1H0", "logits"]),
        "screen": unembed.screen(lm, PROMPT, top=2),
    }


NAMES = (
    "readings",
    "events",
    "rank changes",
    "sub-updates",
    "head updates",
    "described memories",
    "memory effects",
    "entropy and KL",
    "attribution",
    "effects",
    "run",
    "head scores",
    "patching",
    "patching of pairs",
    "ablation",
    "ablation of prompts",
    "ablation over a corpus",
    "paths",
    "screen",
)


def test_every_kind_of_result_is_tried(results: dict[str, Any]) -> None:
    assert tuple(results) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_result_is_a_table_and_comes_back_from_a_file_and_a_pickle(
    name: str, results: dict[str, Any], tmp_path: Path
) -> None:
    result = results[name]
    table = result.to_table()
    assert len(repr(result)) < 4000 and table.title and table.provenance.model == "wren"
    frame = table.to_pandas()
    assert list(frame.columns) == table.column_names and len(frame) == len(table)
    assert table.to_polars().shape == frame.shape
    result.save(tmp_path / "it.safetensors")
    for again in (unembed.open_result(tmp_path / "it.safetensors"), pickle.loads(pickle.dumps(result))):
        assert type(again) is type(result)
        assert json.dumps(again.to_table().to_dict()) == json.dumps(table.to_dict())


def test_tensors_come_back_bit_for_bit_in_their_own_dtype(tmp_path: Path) -> None:
    run = tiny("llama", torch.bfloat16).run(torch.arange(6), ("resid_pre", "pattern"))
    run.save(tmp_path / "run.safetensors")
    again = unembed.open_result(tmp_path / "run.safetensors")
    for point in ("resid_pre", "pattern"):
        assert again[point].dtype == torch.bfloat16 and torch.equal(again[point], run[point])
    assert torch.equal(again.logits, run.logits) and again.layers == run.layers


def test_a_run_with_a_graph_is_saved_without_it(tmp_path: Path) -> None:
    lm = tiny("llama")
    run = lm.run(torch.arange(6), ("resid_pre",), grad=True)
    for again in (pickle.loads(pickle.dumps(run)),):
        assert torch.equal(again["resid_pre"], run["resid_pre"])
        with pytest.raises(unembed.UnembedError, match="no gradients"):
            again.gradient("resid_pre", of=again.logits.sum())


def test_effects_of_a_saved_attribution_are_refused_because_it_has_no_run(
    results: dict[str, Any], tmp_path: Path
) -> None:
    results["attribution"].save(tmp_path / "it.safetensors")
    with pytest.raises(Unsupported, match=r"no run\. Use trace\.attribution"):
        unembed.open_result(tmp_path / "it.safetensors").with_effects()


@pytest.mark.parametrize("what", ["model", "trace", "circuits", "values"])
def test_what_holds_a_live_model_is_refused_by_name(what: str, tmp_path: Path) -> None:
    lm = unembed.load()
    holder: Any = {
        "model": lambda: lm,
        "trace": lambda: lm.trace(PROMPT),
        "circuits": lambda: unembed.circuits(lm),
        "values": lambda: lm.values,
    }[what]()
    with pytest.raises(Unsupported, match=r"pickling wren: it is a live model.*unembed\.load"):
        pickle.dumps(holder)
    if what == "trace":
        with pytest.raises(Unsupported, match="saving a Trace"):
            holder.save(tmp_path / "it.safetensors")
        assert not list(tmp_path.iterdir())


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read"):
        unembed.open_result(tmp_path / "missing.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    with pytest.raises(InvalidInput, match="cannot read"):
        unembed.open_result(tmp_path / "text.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(InvalidInput, match=r"not written by a result's save"):
        unembed.open_result(tmp_path / "weights.safetensors")


@pytest.mark.parametrize(
    "name", ["os:system", "unembed.lens:read", "unembed.__main__:main", "unembed.causality:Nothing"]
)
def test_a_file_that_names_no_class_of_results_is_refused(name: str, tmp_path: Path) -> None:
    about = {
        "schema": "unembed.result/1",
        "version": "0.0",
        "result": json.dumps({"class": name, "fields": {}}),
    }
    save_file({}, tmp_path / "it.safetensors", about)
    with pytest.raises(InvalidInput, match="has no such result"):
        unembed.open_result(tmp_path / "it.safetensors")
