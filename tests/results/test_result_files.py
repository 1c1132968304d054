"""A result comes back from its file as it was; what is no data, or no such file, is refused in one line."""

from __future__ import annotations

import importlib
import json
import pickle
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import unembed
from tests.conftest import tiny
from unembed.attention import Circuits, virtual_weights
from unembed.attention.behaviour.in_context import scores_on_text
from unembed.errors import InvalidInput, Unsupported
from unembed.gallery import Gallery
from unembed.jacobian import fit_lens
from unembed.memories.confidence import confidence_memories
from unembed.memories.value_map import value_map
from unembed.results import Displayed
from unembed.toxicity.prompts import Prompt

PROMPT = "Once upon a time there was a little"
PAIR = ("The king of France", "The king of England")


TEXTS = [
    "The cat sat on the mat and the dog sat on the cat. " * 8,
    "It rained in London in May and in Paris in June. " * 8,
]


@dataclass(frozen=True)
class Given:
    """What results are computed from: the shipped models, a trace, and the circuits of a model of attention alone."""

    lm: unembed.LanguageModel
    small: unembed.LanguageModel

    @cached_property
    def trace(self) -> unembed.Trace:
        return self.lm.trace(PROMPT)

    @cached_property
    def circuits(self) -> Circuits:
        return unembed.circuits(self.small)

    @cached_property
    def attribution(self) -> unembed.Attribution:
        return self.trace.attribution(" girl", against=" boy", by="head")

    @cached_property
    def exit_rule(self) -> Any:
        return unembed.early_exit.fit(self.lm, TEXTS, "margin", n=24)

    @cached_property
    def source(self) -> str:
        return self.circuits.skip_trigrams(0, 1, 1).to_table()["source_token"][0]


RESULTS: dict[str, Callable[[Given], Any]] = {
    "readings": lambda x: x.trace.readings(top=3),
    "events": lambda x: x.trace.events(),
    "rank changes": lambda x: x.trace.rank_changes(position=-1),
    "sub-updates": lambda x: x.trace.sub_updates(3, top=4),
    "head updates": lambda x: x.trace.head_updates(3),
    "described memories": lambda x: x.trace.described_memories(),
    "memory effects": lambda x: x.trace.memory_effects(top=3),
    "entropy and KL": lambda x: x.trace.entropy_and_kl(),
    "attribution": lambda x: x.attribution,
    "effects": lambda x: x.attribution.with_effects(3),
    "run": lambda x: x.lm.run(PROMPT, ("z", "resid_post"), unembed.scale_head(0, 1, 0.5)),
    "value readings": lambda x: unembed.value_readings(x.lm, 3, layers=[2]),
    "event sample": lambda x: unembed.event_sample(x.lm, TEXTS, 5),
    "map of values": lambda x: value_map(x.lm, 200),
    "gallery": lambda x: unembed.rank_memories(x.lm, top=3, layers=[2]),
    "head scores": lambda x: x.circuits.head_scores(n_sequences=2, length=8),
    "copying": lambda x: x.circuits.copying(),
    "copying of a head": lambda x: x.circuits.head(1, 1).copying(),
    "matching": lambda x: x.circuits.matching(),
    "own token": lambda x: x.circuits.own_token(0, 1, n_tokens=8),
    "partners": lambda x: x.circuits.partners(1, 1),
    "readers": lambda x: x.circuits.readers_of("L0H1", 3),
    "skip-trigrams": lambda x: x.circuits.skip_trigrams(0, 1, 4),
    "skip-trigram bugs": lambda x: x.circuits.skip_trigram_bugs(0, 1, x.source, TEXTS, 4),
    "induction": lambda x: x.circuits.induction(n_sequences=2, length=8),
    "score terms": lambda x: x.circuits.score_terms(PROMPT, 1, 1),
    "source effects": lambda x: x.circuits.source_effects(PROMPT, 1, 1, -1, " girl"),
    "relations": lambda x: x.circuits.relations([("France", "Paris"), ("Italy", "Rome")]),
    "circuit": lambda x: x.lm.circuit(PAIR[0], " of", against=" and", max_nodes=5),
    "confidence memories": lambda x: confidence_memories(x.lm, 2, windows=2),
    "truth of readings": lambda x: x.lm.reading_truth(["L2M3", "L2M4"], contexts=4),
    "term importance": lambda x: x.circuits.term_importance(TEXTS, max_tokens=64, window=16),
    "direct path": lambda x: x.circuits.direct_path(TEXTS, n_tokens=5),
    "loss in context": lambda x: x.circuits.in_context(TEXTS, window=32, max_windows=2),
    "scores on text": lambda x: scores_on_text(x.small, TEXTS, window=32, max_windows=2),
    "memory management": lambda x: unembed.circuits(x.lm).memory_management(top=3),
    "virtual weights": lambda x: virtual_weights(x.small),
    "lens": lambda x: fit_lens(x.small, TEXTS, contexts=4, length=8),
    "patching": lambda x: x.lm.patch(*PAIR, "coefficients", top=2),
    "patching of pairs": lambda x: x.lm.patch([PAIR[0]], [PAIR[1]], "z"),
    "ablation": lambda x: x.lm.ablate(PROMPT, heads=[(0, 1), (1, 2)]),
    "ablation of prompts": lambda x: x.lm.ablate([PROMPT, PAIR[0]], heads=[(0, 1), (1, 2)]),
    "ablation over a corpus": lambda x: x.lm.ablate(unembed.open_corpus(TEXTS[:2]), heads=[(0, 1)]),
    "paths": lambda x: x.lm.patch(*PAIR, "L0H1", through=["L1H0", "logits"]),
    "attribution patching": lambda x: unembed.attribution_patching(x.lm, PROMPT, top=2),
    "steering": lambda x: unembed.steering.steer(x.lm, PROMPT, [unembed.scale_head(0, 1, 0.5)], max_new_tokens=2),
    "selected values": lambda x: unembed.toxicity.manual(x.lm, [(2, 5)]),
    "toxicity": lambda x: unembed.toxicity.evaluate(
        x.lm, [Prompt(PROMPT, 1)], [unembed.toxicity.plain()], unembed.toxicity.open_scorer("linear"), new_tokens=2
    ),
    "generated with early exit": lambda x: x.exit_rule.generate(PROMPT, max_new_tokens=3),
}
LIVE: dict[str, Callable[[Given], Any]] = {
    "trace": lambda x: x.trace,
    "effects of sub-updates": lambda x: unembed.sub_update_effects(x.lm, PROMPT, 3, " girl", top=3),
    "expansion": lambda x: unembed.circuits(x.lm).expand(PROMPT, 1),
    "concepts": lambda x: unembed.value_concepts(x.lm, [(3, 17)], embedding=False),
    "clusters": lambda x: unembed.cluster_values(x.lm, 20, layers=[2]),
}
"""Results that use the model when they are read, so only their tables are saved."""


@pytest.fixture(scope="module")
def given() -> Given:
    return Given(unembed.load(), unembed.load("attn-2l"))


@pytest.fixture(scope="module")
def results(given: Given) -> dict[str, Any]:
    """One result of every kind."""
    return {name: make(given) for name, make in {**RESULTS, **LIVE}.items()}


def test_every_class_of_results_is_tried(results: dict[str, Any]) -> None:
    for module in pkgutil.walk_packages(unembed.__path__, "unembed."):
        if not module.name.startswith(("unembed.cli", "unembed.notebook", "unembed.server", "unembed.__main__")):
            importlib.import_module(module.name)
    classes = {kind for kind in Displayed.__subclasses__() if kind.__module__.startswith("unembed.")}
    assert classes == {type(result) for result in results.values()}


@pytest.mark.parametrize("name", [*RESULTS, *LIVE])
def test_a_result_is_a_table_in_pandas_polars_and_notebooks(name: str, results: dict[str, Any]) -> None:
    result = results[name]
    table = result.to_table()
    assert len(repr(result)) < 8000 and table.title and table.provenance.model in ("wren", "attn-2l")
    assert result._repr_html_()
    frame = table.to_pandas()
    assert list(frame.columns) == table.column_names and len(frame) == len(table)
    assert table.to_polars().shape == frame.shape


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_comes_back_from_a_file_and_a_pickle(name: str, results: dict[str, Any], tmp_path: Path) -> None:
    result = results[name]
    result.save(tmp_path / "it.safetensors")
    opened = {"gallery": Gallery.load}.get(name, unembed.open_result)(tmp_path / "it.safetensors")
    for again in (opened, pickle.loads(pickle.dumps(result))):
        assert type(again) is type(result)
        assert json.dumps(again.to_table().to_dict()) == json.dumps(result.to_table().to_dict())


@pytest.mark.parametrize("name", LIVE)
def test_a_result_with_a_live_model_is_neither_saved_nor_pickled(
    name: str, results: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match=r"saving a .*it contains a .*to_table\(\)\.to_parquet"):
        results[name].save(tmp_path / "it.safetensors")
    assert not list(tmp_path.iterdir())
    with pytest.raises(Unsupported, match=r"pickling wren: a live model cannot be pickled"):
        pickle.dumps(results[name])


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
    with pytest.raises(Unsupported, match=r"run the prompt again is not stored with it\. Use trace\.attribution"):
        unembed.open_result(tmp_path / "it.safetensors").with_effects()


def test_what_holds_a_live_model_is_refused_by_name(given: Given) -> None:
    for holder in (given.lm, unembed.circuits(given.lm), given.lm.values):
        with pytest.raises(Unsupported, match=r"pickling wren: a live model cannot be pickled.*unembed\.load"):
            pickle.dumps(holder)


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
    with pytest.raises(InvalidInput, match="does not have this kind of result"):
        unembed.open_result(tmp_path / "it.safetensors")
