"""Weights that accelerate keeps on disk or in main memory are read like those in their modules, by every family."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from tools.fine_tune import fine_tune
from torch import Tensor

from tests.conftest import tiny
from tests.families import EXPERTS, FAMILIES, build
from tests.models.architectures.test_wikilm import wikilm
from unembed.attention.weights.rotation import rotate_stream
from unembed.errors import InvalidInput, ModelUnavailable, UnembedError, Unsupported
from unembed.language_model import LanguageModel, load
from unembed.models.fingerprint import sampled_fingerprint, weights_fingerprint
from unembed.models.norms import Norm
from unembed.models.offload import is_offloaded, parameter, parameter_names
from unembed.stream.run import run

ON_DISK = {"": "disk"}


def offloaded(name: str, where: str, folder: Path) -> LanguageModel:
    """A family's tiny model with nothing in its modules: read from its folder, or kept in main memory."""
    if where == "memory":
        return load(accelerate.cpu_offload(build(name), torch.device("cpu")))
    build(name).save_pretrained(folder / "model")
    return load(folder / "model", device_map=ON_DISK, offload_folder=folder / "offload")


def read(lm: LanguageModel) -> dict[str, Any]:
    """All that `weights` says, errors included."""
    found: dict[str, Any] = {name: getattr(lm.weights, name) for name in ("W_E", "W_pos", "W_U", "b_U")}
    for name, per_layer in vars(lm.weights).items():
        if not name.startswith("_"):
            try:
                found[name] = list(per_layer)
            except UnembedError as error:
                found[name] = str(error)
    return found


def norms(lm: LanguageModel) -> list[Norm]:
    sites = [site for b in lm.structure.blocks for site in (b.attention, b.feed_forward) if site is not None]
    found = [lm.structure.final_norm, *(n for site in sites for n in (site.pre_norm, site.branch_norm))]
    return [norm for norm in found if norm is not None]


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b


@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_every_family_gives_the_same_numbers(name: str, where: str, tokens: Tensor, tmp_path: Path) -> None:
    whole, lm = tiny(name), offloaded(name, where, tmp_path)
    parts = list(lm.hf.parameters())
    assert all(p.is_meta for p in parts) and lm.device.type == "cpu"
    for a, b in zip(norms(whole), norms(lm), strict=True):
        assert torch.equal(a.gain, b.gain) and equal(a.bias, b.bias) and a.centred == b.centred
    mine, theirs = read(lm), read(whole)
    assert mine.keys() == theirs.keys() and [n for n in mine if not equal(mine[n], theirs[n])] == []
    points = ["resid_post", "attn_out", "z"]
    found, expected = run(lm, tokens, points), run(whole, tokens, points)
    assert all(torch.equal(found[point], expected[point]) for point in points)
    assert torch.equal(found.logits, expected.logits)
    assert weights_fingerprint(lm) == weights_fingerprint(whole)
    assert sampled_fingerprint(lm) == sampled_fingerprint(whole)
    assert all(p.is_meta for p in lm.hf.parameters())  # nothing was left behind


@pytest.mark.parametrize("tied", [True, False])
def test_wikilm_reads_its_bands_from_an_embedding_that_is_elsewhere(tied: bool, tmp_path: Path) -> None:
    whole = load(wikilm(tie_adaptive_proj=tied))
    whole.hf.save_pretrained(tmp_path)
    lm = load(tmp_path, device_map=ON_DISK)
    assert all(p.is_meta for p in lm.hf.parameters())
    ids = torch.randint(4, 97, (2, 9), generator=torch.Generator().manual_seed(1))
    assert torch.equal(run(lm, ids).logits, run(whole, ids).logits)
    assert torch.equal(lm.weights.W_E, whole.weights.W_E) and torch.equal(lm.weights.W_U, whole.weights.W_U)


def test_fetched_weights_live_as_long_as_their_reference(tmp_path: Path) -> None:
    lm = offloaded("llama", "disk", tmp_path)
    head = lm.hf.get_output_embeddings()
    assert head is not None
    fetched = parameter(head)
    assert fetched is not None and not fetched.is_meta
    gone = weakref.ref(fetched)
    del fetched
    assert gone() is None and all(p.is_meta for p in head.parameters())


def test_sizes_are_known_without_fetching_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = offloaded("gpt2", "disk", tmp_path)
    monkeypatch.setattr("unembed.models.weights.parameter", lambda *_: pytest.fail("a weight was fetched"))
    assert list(lm.weights.n_memories) == [192, 192] and lm.d_mlp == 192 and lm.memory(1, -1) == (1, 191)
    with pytest.raises(pytest.fail.Exception):
        lm.weights.W_out[0]


def test_shared_parameters_count_once_only_where_they_are_one(tmp_path: Path) -> None:
    tied = offloaded("gpt2", "disk", tmp_path / "tied")
    assert "lm_head.weight" not in parameter_names(tied.hf)
    model = build("llama")
    with torch.no_grad():
        model.get_parameter("lm_head.weight").copy_(model.get_parameter("model.embed_tokens.weight"))
    names = parameter_names(accelerate.cpu_offload(model, torch.device("cpu")))
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(names)  # equal, and never declared to be one
    parted = accelerate.cpu_offload(build("gpt2"), torch.device("cpu"))
    dataset = parted.lm_head._hf_hook.weights_map.dataset
    dataset["lm_head.weight"] = dataset["lm_head.weight"] + 1
    assert "lm_head.weight" in parameter_names(parted)  # declared to be one, and not equal


def test_hooks_that_accelerate_has_chained_are_searched(tokens: Tensor) -> None:
    model = accelerate.cpu_offload(build("llama"), torch.device("cpu"))
    for part in list(model.modules()):
        if hasattr(part, "_hf_hook"):
            for _ in range(2):
                accelerate.hooks.add_hook_to_module(part, accelerate.hooks.ModelHook(), append=True)
    lm = load(model)
    assert is_offloaded(lm.hf) and equal(read(lm), read(tiny("llama")))
    assert torch.equal(run(lm, tokens).logits, run(tiny("llama"), tokens).logits)


def test_parameters_that_nothing_can_fetch_are_refused_in_one_line() -> None:
    with torch.device("meta"):
        nowhere = torch.nn.Linear(3, 3)
    with pytest.raises(Unsupported, match=r"the weights of Linear.*meta device.*Open the model with device_map"):
        parameter(nowhere)
    assert parameter(nowhere, "scale") is None
    model = build("llama")
    blocks = accelerate.hooks.attach_align_device_hook
    state = {name: value.clone() for name, value in model.state_dict().items()}
    blocks(model, torch.device("cpu"), True, state, preload_module_classes=["LlamaMLP"])
    lm = load(model)  # the parts of an FFN come in with the whole of it, and no part can be read alone
    with pytest.raises(Unsupported, match=r"the weights of Linear.*without preload_module_classes"):
        lm.weights.W_out[0]


def test_what_would_change_weights_in_place_is_refused(tmp_path: Path) -> None:
    lm = offloaded("gpt2", "disk", tmp_path)
    with pytest.raises(InvalidInput, match=r"cannot be rotated in place.*layers are offloaded"):
        rotate_stream(lm)
    with pytest.raises(Unsupported, match=r"training .*layers are offloaded"):
        fine_tune(lm, torch.ones(2, 4, dtype=torch.long), tokens=8)


def test_weights_that_have_to_be_written_anew_need_a_folder(tmp_path: Path) -> None:
    build(EXPERTS[0]).save_pretrained(tmp_path)
    with pytest.raises(ModelUnavailable, match=r"another form.*Pass offload_folder="):
        load(tmp_path, device_map=ON_DISK)
    with pytest.raises(InvalidInput, match="device_map already places the model"):
        load(tmp_path, device_map=ON_DISK, device="cpu")
    with pytest.raises(InvalidInput, match="offload_folder: the model is already in memory"):
        load(build("gpt2"), offload_folder=tmp_path)


def test_an_embedded_model_takes_a_device_map() -> None:
    lm = load("attn-1l", device_map=ON_DISK)
    assert is_offloaded(lm.hf)
    assert torch.equal(lm.run("The year").logits, load("attn-1l").run("The year").logits)
