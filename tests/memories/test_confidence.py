"""Confidence memories: against numpy in float64 and edited runs, with a planted one, and random weights as control."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import unembed
from tests.cli.conftest import save_model
from unembed.errors import InvalidInput, Unsupported
from unembed.language_model import LanguageModel
from unembed.memories import confidence_memories
from unembed.memories.confidence import LENGTH, NULL, confidence_answer, null_space_shares
from unembed.memories.values import written_values
from unembed.results import Table

WORDS = ["The", "first", "month", "of", "the", "year", "is", "January", *"abcdefgh", "."]


@pytest.fixture(scope="module")
def text() -> list[str]:
    p = np.linspace(1, 4, len(WORDS))
    return [" ".join(np.random.default_rng(0).choice(WORDS, 3_000, p=p / p.sum()).tolist())]


@pytest.fixture(scope="module", params=["gpt2", "llama", "gemma2"])
def lm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return unembed.load(save_model(tmp_path_factory.mktemp("m") / "tiny", request.param), dtype="float64")


def cut(lm: LanguageModel, text: list[str], n: int) -> list[torch.Tensor]:
    from unembed.corpus.windows import windows_of

    found = [one.tokens for one in windows_of(text, LENGTH, overlap=0).segments(lm) if len(one.tokens) == LENGTH]
    return found[:n]


def entropy(logits: torch.Tensor) -> np.ndarray:
    p = torch.softmax(logits.double(), -1).numpy()
    return -(p * np.log(p)).sum(-1)


def test_every_number_is_that_of_numpy_and_of_edited_runs(lm: LanguageModel, text: list[str]) -> None:
    found = confidence_memories(lm, 3, corpus=text, windows=2)
    layer, norm = lm.n_layers - 1, lm.structure.final_norm
    assert norm is not None and found.layer == layer
    values = written_values(lm, layer).detach().double().numpy()
    W = norm.gain.detach().double().numpy()[:, None] * lm.weights.W_U.detach().double().numpy()
    vectors = values
    if norm.centred:
        W, vectors = W - W.mean(0), values - values.mean(1, keepdims=True)
    left = np.linalg.svd(W - W.mean(1, keepdims=True))[0]
    left = left[:, :-1] if norm.centred else left  # the direction that the norm removes
    null = left[:, -max(1, round(NULL * left.shape[1])) :]
    share = np.linalg.norm(vectors @ null, axis=1) / np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(found.null_space.numpy(), share, atol=1e-6)
    tokens = torch.cat(cut(lm, text, 10_000))
    counts = np.bincount(tokens.numpy(), minlength=lm.d_vocab)
    seen = counts > 0
    scores = vectors @ W
    expected = [np.corrcoef(row[seen], np.log(counts[seen]))[0, 1] for row in scores]
    np.testing.assert_allclose(found.unigram.numpy(), expected, atol=1e-6)
    windows = torch.stack(cut(lm, text, 2))
    plain = lm.run(windows, ["resid_post", "coefficients"])
    before = entropy(plain.logits[:, 1:])
    streams = plain.at("resid_post", layer)[:, 1:]
    for n, index in enumerate(found.indices.tolist()[:4]):
        m = plain.at("coefficients", layer)[:, 1:, index]
        edited = lm.run(windows, edits=[unembed.set_coefficient(layer, index, float(m.mean()))])
        whole = np.abs(entropy(edited.logits[:, 1:]) - before).mean()
        assert float(found.entropy[n]) == pytest.approx(whole, rel=1e-4, abs=1e-7)
        edit = unembed.set_coefficient(layer, index, float(m.mean()))
        change = lm.run(windows, ["resid_post"], edit).at("resid_post", layer)[:, 1:] - streams
        held = norm.normed(streams) + norm.frozen(change, norm.scale(streams))
        direct = np.abs(
            entropy(lm.structure.capped(lm.structure.head(held.to(streams.dtype))).detach()) - before
        ).mean()
        assert float(found.direct[n]) == pytest.approx(direct, rel=1e-4, abs=1e-7)


def test_a_planted_confidence_memory_is_found_and_acts_through_the_scale_alone(text: list[str], tmp_path: Path) -> None:
    lm = unembed.load(save_model(tmp_path / "tiny", "llama"), dtype="float64")
    layer, norm = lm.n_layers - 1, lm.structure.final_norm
    assert norm is not None
    with torch.no_grad():
        W = norm.gain[:, None] * lm.weights.W_U
        W = W - W.mean(1, keepdim=True)
        least = torch.linalg.svd(W).U[:, -1]
        lm.weights.W_U.sub_(least[:, None] / norm.gain[:, None] * (least @ W))  # nothing reads this direction at all
        lm.weights.values(layer)[5].copy_(20 * least)
    found = confidence_memories(lm, 2, corpus=text, windows=2)
    assert found.indices[0] == 5 and float(found.null_space[5]) == pytest.approx(1.0, abs=1e-6)
    assert float(found.through_scale[0]) == pytest.approx(1.0, abs=1e-3) and float(found.entropy[0]) > 0
    table = found.to_table()
    assert table["memory"][0] == lm.memory_name(layer, 5) and table["drawn_at_random"].count(True) == 2


def test_random_weights_have_no_confidence_memories(lm: LanguageModel, text: list[str]) -> None:
    found = confidence_memories(lm, 2, corpus=text, windows=2)
    shares, chance = null_space_shares(lm, torch.randn(4_000, lm.d_model, generator=torch.Generator().manual_seed(0)))
    assert chance == found.chance and float(shares.square().mean()) == pytest.approx(chance**2, rel=0.1)
    assert float(found.null_space.square().mean()) == pytest.approx(chance**2, rel=0.5)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InvalidInput, match="windows of the text"):
        confidence_memories(unembed.load(), corpus=["A few words."])
    with pytest.raises(Unsupported, match="confidence memories"):
        confidence_memories(unembed.load("attn-2l"))


def test_the_answer_has_a_row_for_each_measured_memory() -> None:
    table = confidence_answer(unembed.load(), top=2, text_windows=2).data
    assert isinstance(table, Table) and len(table) == len(set(table["memory"])) >= 4


def test_the_shown_table_says_for_what_each_memory_is_listed() -> None:
    answer = confidence_answer(unembed.load(), top=3, text_windows=2)
    ((shown,),) = ([one.table for one in section.exhibits] for section in answer.sections)
    found = confidence_memories(unembed.load(), 3, windows=2)
    reasons = dict(zip(shown["memory"], shown["listed_for"], strict=True))
    for name, index, drawn in zip(found.names, found.indices.tolist(), found.random, strict=True):
        higher = int((found.null_space > found.null_space[index]).sum())
        assert reasons[name] == ("random draw" if drawn else "null space" if higher < 3 else "unigram")
    assert list(shown["listed_for"]) == sorted(shown["listed_for"], key=["null space", "unigram", "random draw"].index)
    assert answer.data.to_dict() == found.to_table().to_dict()
