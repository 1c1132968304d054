"""Ablations over a corpus equal edits of each segment by itself; means are those of the tokens; intervals cover."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import unembed
from unembed.causality.ablation import ablate
from unembed.causality.corpus_ablation import _intervals
from unembed.causality.corpus_means import corpus_means
from unembed.corpus import open_corpus
from unembed.errors import InvalidInput, Unsupported

TEXTS = ["The cat sat on the mat.", "It rained all day, and nobody came to the house.", "She sang."]


def segments_of(lm, corpus):
    return {s.number: s.tokens for s in corpus.segments(lm)}


@pytest.mark.parametrize("shipped", ["wren", "attn-2l"])
def test_padded_batches_give_each_segment_the_losses_that_it_has_alone(shipped: str) -> None:
    lm = unembed.load(shipped)
    corpus = open_corpus(TEXTS)
    heads = [(0, 1), (1, 2)]
    memories = {"two memories": [(1, 5), (2, 9)]} if shipped == "wren" else None
    found = ablate(lm, corpus, heads=heads, memories=memories, layers=[1], n_tokens=100)
    edits = [[unembed.scale_head(n, h, 0.0)] for n, h in heads]
    if memories:
        edits.append([unembed.set_coefficient(n, i, 0.0) for n, i in memories["two memories"]])
    edits.append([unembed.scale_attention(1, 0.0), *([unembed.scale_ffn(1, 0.0)] if memories else [])])
    assert len(found.labels) == len(edits) and found.labels[-1] == "layer 1"
    for number, ids in segments_of(lm, corpus).items():
        at = found.segments == number
        assert found.tokens[at].tolist() == ids[1:].tolist()

        def loss(edit: list, ids: torch.Tensor = ids) -> torch.Tensor:
            logits = lm.run(ids[None], edits=edit).logits[0, :-1].double()
            return cross_entropy(logits, ids[1:], reduction="none").cpu()

        plain = loss([])
        for i, edit in enumerate(edits):
            torch.testing.assert_close(found.changes[i, at], loss(edit) - plain, rtol=1e-3, atol=1e-4)


def test_memories_by_name_are_one_group_with_its_size() -> None:
    lm = unembed.load()
    found = ablate(lm, open_corpus(TEXTS), memories={"months": [(4, 1), (4, 2)]}, n_tokens=20)
    assert found.labels == ("months (2 memories)",)
    on_prompt = lm.ablate("The first month of the year is", memories={"months": [(4, 1), (4, 2)]})
    same = lm.ablate("The first month of the year is", memories=[[(4, 1), (4, 2)]])
    assert on_prompt.labels == ("months (2 memories)",) and torch.equal(on_prompt.values, same.values)


def test_a_mean_by_position_ablates_each_position_to_its_own() -> None:
    lm = unembed.load()
    prompt = "The cat sat"
    metric = unembed.kl_divergence()
    found = lm.ablate(prompt, memories=[(5, 3)], to="mean", corpus=TEXTS, by_position=True, metric=metric)
    means = corpus_means(lm, open_corpus(TEXTS), [("coefficients", 5)], 1000, True).numbers["coefficients", 5][:, 3]
    n = lm.encode(prompt).shape[1]
    edits = [unembed.set_coefficient(5, 3, float(means[p]), positions=[p]) for p in range(n)]
    before, after = (lm.run(prompt, edits=e).logits[0, -1].double().log_softmax(-1) for e in ((), edits))
    assert float(found.values[0]) == pytest.approx(float((before.exp() * (before - after)).sum()), abs=1e-6)
    with pytest.raises(InvalidInput, match="positions, the prompt has"):
        lm.ablate("word " * 30, memories=[(5, 3)], to="mean", corpus=TEXTS, by_position=True)


def test_resampling_takes_another_segment() -> None:
    lm = unembed.load()
    twins = ablate(lm, open_corpus([TEXTS[0], TEXTS[0]]), layers="all", to="resample", n_tokens=100)
    assert float(twins.changes.abs().max()) < 1e-4  # the other segment is the same text
    others = ablate(lm, open_corpus(TEXTS), layers=[5], to="resample", n_tokens=100)
    again = ablate(lm, open_corpus(TEXTS), layers=[5], to="resample", n_tokens=100)
    assert float(others.effects[0]) > 0.05 and torch.equal(others.changes, again.changes)
    with pytest.raises(Unsupported, match="one segment"):
        ablate(lm, open_corpus(TEXTS[:1]), to="resample", n_tokens=100)


def test_intervals_are_of_segments_and_hold_the_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    segments = torch.arange(200).repeat_interleave(10)
    shared = torch.randn(200, generator=generator).repeat_interleave(10)
    low, high = _intervals(shared[None] + 1.0, segments, 0)[0].tolist()
    # The standard error of a mean of 200 segments, not that of 2,000 predictions.
    assert low < 1.0 + float(shared.mean()) < high and high - low == pytest.approx(2 * 1.96 / 200**0.5, rel=0.2)
    assert bool(_intervals(shared[None, :10], segments[:10], 0).isnan().all())


def test_the_change_is_listed_by_predicted_token() -> None:
    lm = unembed.load()
    found = ablate(lm, open_corpus(TEXTS * 4), heads=[(0, 1)], n_tokens=200)
    table = found.by_token("L0H1", least=4)
    token = table["token"][0]
    at = torch.tensor([name == token for name in lm.token_strings(found.tokens)])
    assert table["times"][0] == int(at.sum()) >= 4
    assert table["loss_change"][0] == pytest.approx(float(found.changes[0, at].mean()))
    with pytest.raises(InvalidInput, match="was not computed"):
        found.by_token("L9H9")


def test_bad_input_is_refused_in_one_line() -> None:
    lm = unembed.load()
    with pytest.raises(InvalidInput, match="over a corpus it must be"):
        ablate(lm, open_corpus(TEXTS), to="nothing")
    with pytest.raises(InvalidInput, match="empty group of memories"):
        ablate(lm, open_corpus(TEXTS), memories={"none": []})
    with pytest.raises(InvalidInput, match='neither "all" nor a list'):
        ablate(lm, open_corpus(TEXTS), heads="some")
