"""A model spread over devices by accelerate is swept, indexed and traced like one in memory.

Two devices are the processor twice: accelerate's hooks move what enters and leaves each layer all the same.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import save_model
from tests.index.conftest import TEXTS
from tests.sweeps.test_checkpoint import same
from unembed.errors import Unsupported
from unembed.index import Index
from unembed.language_model import LanguageModel, load
from unembed.sweeps import ActiveFraction, MeanVariance, Reducer, TopTriggers, sweep
from unembed.sweeps.shipping import Named, packed, unpacked

accelerate = pytest.importorskip("accelerate")
PROMPT = "The first month of the year is"


def placed(folder: Path, second: str, offload: Path | None = None) -> LanguageModel:
    """A saved GPT-2 or Llama with its second layer on another device than the rest."""
    whole = load(folder)
    block = {"GPT2LMHeadModel": "transformer.h.1", "LlamaForCausalLM": "model.layers.1"}[type(whole.hf).__name__]
    names = [name for name, module in whole.hf.named_modules() if name and not list(module.children())]
    device_map = {name: second if name.startswith(block) else "cpu" for name in names}
    hf = accelerate.dispatch_model(whole.hf, device_map, force_hooks=True, offload_dir=offload)
    return load(hf, tokenizer=whole.tokenizer)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[LanguageModel]:
    """One model in memory, and spread."""
    folder = save_model(tmp_path_factory.mktemp(request.param) / "model", request.param)
    split = placed(folder, "cpu")
    assert sum("forward" in vars(module) for module in split.hf.modules()) > 10
    return [load(folder), split]


def todo() -> list[Reducer]:
    return [TopTriggers(5), ActiveFraction(), MeanVariance()]


def test_a_sweep_finds_the_same(both: list[LanguageModel], tmp_path: Path) -> None:
    found = [sweep(lm, TEXTS, todo(), tokens_per_batch=100) for lm in both]
    assert all(same(a, b) for a, b in zip(*found, strict=True))
    fast = sweep(both[1], TEXTS, todo(), tokens_per_batch=100, fast="float32")  # accelerate's modules stay as they are
    assert same(fast[1], found[0][1])


def test_a_trace_shows_the_same(both: list[LanguageModel]) -> None:
    whole, split = (lm.trace(PROMPT) for lm in both)
    for point in ("resid_pre", "resid_post"):
        mine, theirs = (trace.readings(point, top=3) for trace in (split, whole))
        assert torch.equal(mine.ids, theirs.ids) and torch.equal(mine.logits, theirs.logits)
    assert whole.account(" January").total == split.account(" January").total


def test_an_index_is_the_same(both: list[LanguageModel], tmp_path: Path) -> None:
    whole, split = (Index.build(lm, TEXTS, tmp_path / str(n), 5) for n, lm in enumerate(both))
    assert {e.path: e.sha256 for e in whole.manifest.files} == {e.path: e.sha256 for e in split.manifest.files}
    assert whole.similar(1, 3).columns == split.similar(1, 3).columns


def test_workers_open_it_by_its_folder(both: list[LanguageModel], monkeypatch: pytest.MonkeyPatch) -> None:
    whole, split = both
    monkeypatch.setattr(split.hf, "hf_device_map", {"": 0, "lm_head": 1})
    sent = packed(split)
    assert isinstance(sent, Named)
    there = unpacked(pickle.loads(pickle.dumps(sent)))
    tokens = torch.tensor([[3, 4, 5]])
    assert torch.equal(there.hf(tokens).logits, whole.hf(tokens).logits)
    monkeypatch.setattr(split.hf, "name_or_path", "")
    with pytest.raises(Unsupported, match=r"Ray\(open_model=\.\.\.\)"):
        packed(split)


def test_layers_left_on_disk_are_refused_in_one_line(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", "gpt2")
    with pytest.raises(Unsupported, match=r"offloaded and not in memory.*a device_map that keeps"):
        placed(folder, "disk", tmp_path / "offload")
