"""Values that lost their concept for nothing get it back; those that now promote what follows their triggers do not."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tools.restore_values import followers, main, restorable
from tools.training.windows import EncodedCorpus
from transformers import GPT2LMHeadModel

import unembed
from tools import restore_values
from tools.training import encoding
from unembed.concepts.value_concepts import vector_concepts
from unembed.models.shipped_models import shipped_folder

LAYER, N = 5, 40  # of wren, whose first N values are replaced by random ones
NAME = f"transformer.h.{LAYER}.mlp.c_proj.weight"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """What training leaves behind: a model, its text, its tokenizer, and which values may change."""
    out = tmp_path_factory.mktemp("models")
    later = shutil.copytree(shipped_folder("wren"), out / "wren" / "model")
    weights = load_file(later / "model.safetensors")
    weights[NAME][:N] = torch.randn(N, 256, generator=torch.Generator().manual_seed(0)).half()
    save_file(weights, later / "model.safetensors", metadata={"format": "pt"})
    shutil.copytree(shipped_folder("wren"), out / "tokenizer")
    tokens = np.random.default_rng(0).integers(300, 2_000, size=3_000).astype(np.uint16)
    (out / "text").mkdir()
    corpus = EncodedCorpus(tokens, np.array([3_000]), np.array(["text"]), np.array([9_000]))
    encoding.save(corpus, out / "text" / "train.npz")
    marks = np.zeros((4, 1024), dtype=bool)
    marks[1, : N - 10] = True
    np.save(out / "wren" / "changing.npy", marks)
    return out


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(restore_values, "WINDOWS", 6)
    monkeypatch.setattr(restore_values, "WIDTH", 32)
    monkeypatch.setattr(restore_values, "BATCH", 4)


def test_followers_are_those_of_every_position_sorted():
    model = GPT2LMHeadModel.from_pretrained(shipped_folder("wren"), dtype=torch.float32)
    tokens = np.random.default_rng(0).integers(300, 2_000, size=3_000)
    found = followers(model, tokens)
    lm = unembed.load("wren")
    starts = np.linspace(0, 3_000 - 33, 6).astype(int)
    texts = torch.from_numpy(tokens[starts[:, None] + np.arange(32)])
    by_position = lm.run(texts, ["coefficients"], layers=[6]).at("coefficients", 6).flatten(0, 1)  # (pos, d_mlp)
    after = np.concatenate([tokens[at + 1 : at + 33] for at in starts])
    for memory in range(0, 1024, 16):
        active = int((by_position[:, memory] > 0).sum())
        best = by_position[:, memory].argsort(descending=True)[: min(active, 10)]
        assert found[2, :, memory].tolist() == after[best.numpy()].tolist() + [-1] * (10 - len(best))


def test_what_lost_its_concept_is_restored_unless_it_agrees(out):
    later = unembed.load(out / "wren" / "model", tokenizer=str(out / "tokenizer"), dtype="float32")
    earlier = unembed.load("wren")
    nothing = torch.full((4, 10, 1024), -1)
    chosen = restorable(later, earlier, nothing)
    assert chosen[[0, 2, 3]].sum() == chosen[1, N:].sum() == 0
    had = vector_concepts(earlier, earlier.weights.W_out[LAYER][:N]).number() > 0
    has = vector_concepts(later, later.weights.W_out[LAYER][:N]).number() > 0
    assert chosen[1, :N].tolist() == (had & ~has).tolist()
    assert chosen.sum() > N / 4
    first = int(chosen[1].argmax())
    logits = (later.weights.W_out[LAYER][first] @ later.weights.W_U).masked_fill(later.unlisted, -torch.inf)
    nothing[1, 7, first] = logits.argmax()
    chosen[1, first] = False
    assert np.array_equal(restorable(later, earlier, nothing), chosen)


def test_the_folder_has_the_earlier_values_and_the_marks_of_the_others(out, tmp_path, capsys):
    earlier, to = shipped_folder("wren"), tmp_path / "restored"
    assert main(["wren", str(earlier), "--out", str(out), "--to", str(to)]) == 0
    before, changed, restored = (
        load_file(folder / "model.safetensors") for folder in (earlier, out / "wren" / "model", to)
    )
    marks, left = np.load(out / "wren" / "changing.npy"), np.load(to / "changing.npy")
    back = marks & ~left
    assert capsys.readouterr().out == f"{back.sum()} of {N - 10} values are as they were\n"
    assert back.sum() > N / 5
    assert torch.equal(restored[NAME][back[1]], before[NAME][back[1]])
    assert torch.equal(restored[NAME][~back[1]], changed[NAME][~back[1]])
    assert main(["wren", str(tmp_path / "nothing"), "--out", str(out), "--to", str(tmp_path / "other")]) == 1
    assert "no model folder" in capsys.readouterr().err
    for name in before:
        assert name == NAME or torch.equal(restored[name], before[name])
