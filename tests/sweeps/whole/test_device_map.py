"""A model spread over devices, main memory and disk by accelerate is swept, indexed and traced like one in memory.

Two devices are the processor twice: accelerate's hooks move what enters and leaves each layer all the same. Main memory
beside a GPU is main memory beside the processor: modules are empty until they are called, all the same.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.integrations import accelerate as placing
from typer.testing import CliRunner

from tests.cli.conftest import save_model
from tests.index.conftest import TEXTS
from tests.sweeps.test_checkpoint import same
from unembed import early_exit
from unembed.attention.circuits import circuits
from unembed.cli.commands import app
from unembed.errors import Unsupported
from unembed.index import Index
from unembed.language_model import LanguageModel, load
from unembed.memories.values import value_readings
from unembed.models.offload import is_offloaded
from unembed.stream.interventions import Edit, add_to_coefficient, scale_head
from unembed.sweeps import ActiveFraction, MeanVariance, Reducer, TopTriggers, sweep
from unembed.sweeps.ray.model_transfer import ModelReference, deserialize_model, serialize_model

PROMPT = "The first month of the year is"
CASES = {
    "gpt2-devices": 0,
    "llama-devices": 0,
    "gpt2-disk": 12,
    "llama-disk": 9,
    "gpt2-memory": 12,
    "gemma-memory": 9,
    "gpt2-all": 28,
    "llama-all": 21,
    "gemma-all": 20,
}
"""Family and place of its second layer, or of all of it, and how many tensors are then not in their modules; GPT-2 and
Gemma read tokens by the matrix that embeds them, Llama and Gemma are gated."""


def at_round_addresses(folder: Path) -> LanguageModel:
    """A saved model whose matrices begin where accelerate puts those of its own files: a last bit may depend on it."""
    lm = load(folder)
    for parameter in lm.hf.parameters():
        parameter.data = parameter.data.clone()
    return lm


def placed(folder: Path, place: str, offload: Path) -> LanguageModel:
    """A saved model with its second layer, or all of it, elsewhere than the rest."""
    if place == "all":
        return load(folder, device_map={"": "disk"})
    whole = at_round_addresses(folder)
    block = "transformer.h.1" if whole.structure.family == "gpt2" else "model.layers.1"
    if place == "memory":
        accelerate.cpu_offload(whole.hf.get_submodule(block), torch.device("cpu"))
        return load(whole.hf, tokenizer=whole.tokenizer)
    names = [name for name, module in whole.hf.named_modules() if name and not list(module.children())]
    device_map = {name: "disk" if place == "disk" and name.startswith(block) else "cpu" for name in names}
    hf = accelerate.dispatch_model(whole.hf, device_map, force_hooks=True, offload_dir=offload)
    return load(hf, tokenizer=whole.tokenizer)


@pytest.fixture(scope="module", params=list(CASES))
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[LanguageModel]:
    """One model in memory, and spread."""
    family, place = request.param.split("-")
    base = tmp_path_factory.mktemp(request.param)
    folder = save_model(base / "model", family)
    split = placed(folder, place, base / "offload")
    assert sum("forward" in vars(module) for module in split.hf.modules()) > 5
    assert sum(parameter.is_meta for parameter in split.hf.parameters()) >= CASES[request.param]
    assert is_offloaded(split.hf) == (place != "devices")
    return [load(folder) if place == "all" else at_round_addresses(folder), split]


def todo() -> list[Reducer]:
    return [TopTriggers(5), ActiveFraction(), MeanVariance()]


def test_a_sweep_finds_the_same(both: list[LanguageModel], tmp_path: Path) -> None:
    found = [sweep(lm, TEXTS, todo(), tokens_per_batch=100) for lm in both]
    assert all(same(a, b) for a, b in zip(*found, strict=True))
    fast = sweep(both[1], TEXTS, todo(), tokens_per_batch=100, fast="float32")  # accelerate's modules stay as they are
    assert same(fast[1], found[0][1])


def test_a_sweep_resumes_where_the_other_stopped(both: list[LanguageModel], tmp_path: Path) -> None:
    whole, split = both
    expected = sweep(whole, TEXTS, todo(), tokens_per_batch=100, checkpoint=tmp_path / "sweep.pt")
    found = sweep(split, TEXTS, todo(), tokens_per_batch=100, checkpoint=tmp_path / "sweep.pt")
    assert all(same(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("edits", [(), (add_to_coefficient(1, 3, 2.0),)])
def test_a_trace_shows_the_same(both: list[LanguageModel], edits: tuple[Edit, ...]) -> None:
    whole, split = (lm.trace(PROMPT, edits=edits) for lm in both)
    for point in ("resid_pre", "resid_mid", "resid_post"):
        for basis in ("raw", "final", "frozen"):
            mine, theirs = (trace.readings(point, top=3, basis=basis) for trace in (split, whole))
            assert torch.equal(mine.ids, theirs.ids) and torch.equal(mine.logits, theirs.logits)
    for layer in range(2):
        mine, theirs = (trace.sub_updates(layer, top=5, token=" January") for trace in (split, whole))
        assert mine == theirs
    for by in ("component", "head", "source", "memory"):
        mine, theirs = (trace.attribution(" January", by=by) for trace in (split, whole))
        assert mine.rows == theirs.rows and mine.total == theirs.total and mine.error == theirs.error


def test_an_index_is_the_same(both: list[LanguageModel], tmp_path: Path) -> None:
    whole, split = (Index.build(lm, TEXTS, tmp_path / str(n), 5) for n, lm in enumerate(both))
    assert {e.path: e.sha256 for e in whole.manifest.files} == {e.path: e.sha256 for e in split.manifest.files}
    assert whole.similar(1, 3).columns == split.similar(1, 3).columns
    assert whole.similar(1, 3, among="keys").columns == split.similar(1, 3, among="keys").columns


def test_values_and_circuits_are_the_same(both: list[LanguageModel]) -> None:
    mine, theirs = (value_readings(lm, 5) for lm in both)
    assert torch.equal(mine.ids, theirs.ids) and torch.equal(mine.scores, theirs.scores)
    assert both[0].values.top_tokens(1, 3, basis="final") == both[1].values.top_tokens(1, 3, basis="final")
    mine, theirs = (circuits(lm) for lm in both)
    assert torch.equal(mine.ov(1, 2).left, theirs.ov(1, 2).left)
    assert torch.equal(mine.qk(1, 2, offset=1).right, theirs.qk(1, 2, offset=1).right)
    assert torch.equal(mine.copying_scores(), theirs.copying_scores())
    assert torch.equal(mine.composition("k"), theirs.composition("k"))
    assert mine.skip_trigrams(1, 1, 5) == theirs.skip_trigrams(1, 1, 5)
    assert same(mine.head_scores(n_sequences=2), theirs.head_scores(n_sequences=2))


def test_a_continuation_is_the_same(both: list[LanguageModel]) -> None:
    edits = (add_to_coefficient(1, 3, 2.0), scale_head(0, 1, 0.0))
    whole, split = ([lm.generate(PROMPT, edits, seed=seed) for seed in (None, 3)] for lm in both)
    assert whole == split
    whole, split = (early_exit.untrained(lm).generate(PROMPT, max_new_tokens=4) for lm in both)
    assert whole.text == split.text and whole.layers == split.layers


def test_workers_open_it_by_its_folder(both: list[LanguageModel], monkeypatch: pytest.MonkeyPatch) -> None:
    whole, split = both
    if not is_offloaded(split.hf):
        monkeypatch.setattr(split.hf, "hf_device_map", {"": 0, "lm_head": 1})
    sent = serialize_model(split)
    assert isinstance(sent, ModelReference)
    there = deserialize_model(pickle.loads(pickle.dumps(sent)))
    tokens = torch.tensor([[3, 4, 5]])
    assert torch.equal(there.hf(tokens).logits, whole.hf(tokens).logits)
    monkeypatch.setattr(split.hf, "name_or_path", "")
    with pytest.raises(Unsupported, match=r"Ray\(open_model=\.\.\.\)"):
        serialize_model(split)


def test_the_command_line_lets_accelerate_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_model(tmp_path / "model")
    command = ["trace", PROMPT, "--model", str(folder), "--json"]
    expected = CliRunner().invoke(app, command)
    opened: list[PreTrainedModel] = []

    def opening(*given: Any, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
        model, info = real(*given, **options)
        opened.append(model)
        return model, info

    real = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", opening)
    monkeypatch.setattr(placing, "get_max_memory", lambda *_: {"cpu": 150_000})  # bytes: not half of the model
    found = CliRunner().invoke(app, [*command, "--device", "auto"])
    assert is_offloaded(opened[0]) and found.stderr == expected.stderr
    assert found.exit_code == expected.exit_code == 0 and found.stdout == expected.stdout
