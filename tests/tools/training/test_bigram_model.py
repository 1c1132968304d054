"""A model of no layers from bigram counts: the same loss as over the text, and the table it approximates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.train_models import train_model
from tools.training.bigram_model import bigram_counts, fit_bigrams
from tools.training.networks import Shape
from tools.training.recipes import RECIPES, Phase
from tools.training.windows import EncodedCorpus

import unembed
from unembed.errors import InvalidInput

N = 12


def corpus(n: int = 4000) -> EncodedCorpus:
    """Tokens of a random chain: each is followed by few others."""
    random = np.random.default_rng(0)
    chain = random.dirichlet(np.full(N, 0.2), size=N)
    tokens = [0]
    for _ in range(n - 1):
        tokens.append(int(random.choice(N, p=chain[tokens[-1]])))
    return EncodedCorpus(np.array(tokens), np.array([n]), np.array(["books"]), np.array([n]))


def recipe(d_model: int):
    shape = Shape(n_layers=0, d_model=d_model, n_heads=1, d_head=2, d_mlp=0, d_vocab=N, context=8)
    return replace(RECIPES["attn-0l"], shape=shape, phases=(Phase(400, context=1, windows=N, lr=(1.0, 0.0)),))


def test_counts_are_of_every_adjacent_pair() -> None:
    text = EncodedCorpus(np.array([1, 2, 1, 2, 2]), np.array([5]), np.array(["x"]), np.array([5]))
    codes, counts = bigram_counts(text, 4)
    assert dict(zip(codes.tolist(), counts.tolist(), strict=True)) == {1 * 4 + 2: 2, 2 * 4 + 1: 1, 2 * 4 + 2: 1}


def test_at_full_rank_it_is_the_bigram_table_and_its_loss_is_that_of_the_text() -> None:
    text = corpus()
    codes, counts = bigram_counts(text, N)
    network, curve = fit_bigrams(codes, counts, recipe(N + 2))
    table = np.zeros((N, N))
    table[codes // N, codes % N] = counts
    table /= table.sum(axis=1, keepdims=True)
    with torch.no_grad():
        found = network(torch.arange(N)[:, None])[:, 0].softmax(-1).double().numpy()
        ids = torch.from_numpy(text.tokens)[None]
        loss = torch.nn.functional.cross_entropy(network(ids[:, :-1])[0], ids[0, 1:])
    assert np.abs(found - table).max() < 0.01
    entropy = -(counts * np.log(table[codes // N, codes % N])).sum() / counts.sum()
    assert float(loss) == pytest.approx(entropy, abs=2e-3)
    assert curve[-1] == {"step": 400, "tokens": len(text.tokens) - 1, "loss": curve[-1]["loss"]}


def test_a_narrower_one_is_nearer_than_token_frequencies() -> None:
    text = corpus()
    network, _ = fit_bigrams(*bigram_counts(text, N), recipe(6))
    ids = torch.from_numpy(text.tokens)[None]
    frequencies = np.bincount(text.tokens, minlength=N) / len(text.tokens)
    with torch.no_grad():
        loss = float(torch.nn.functional.cross_entropy(network(ids[:, :-1])[0], ids[0, 1:]))
    assert loss < 0.8 * float(-(frequencies * np.log(frequencies)).sum())


def test_it_is_made_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.train_models.encoded_text", lambda *_: (corpus(300), None))
    (tmp_path / "token_counts.json").write_text(json.dumps([300] * N))
    with pytest.raises(InvalidInput, match="without checkpoints"):
        train_model("attn-0l", corpus=tmp_path, out=tmp_path, until=3, recipe=recipe(4))
    folder = train_model("attn-0l", corpus=tmp_path, out=tmp_path, recipe=recipe(4))
    lm = unembed.load(folder)
    assert lm.n_layers == 0 and lm.d_model == 4 and (tmp_path / "attn-0l" / "recipe.json").exists()
