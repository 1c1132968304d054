"""Means over a corpus against those of its tokens."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import tiny
from tests.stream.test_massive_activations import with_massive_token

import unembed
from unembed.causality.corpus_means import MeanActivation, corpus_means
from unembed.corpus import open_corpus
from unembed.corpus.segments import Batch, Segment

TEXTS = ["The cat sat on the mat.", "It rained all day, and nobody came to the house.", "She sang."]


def segments_of(lm, corpus):
    return {s.number: s.tokens for s in corpus.segments(lm)}


@pytest.mark.parametrize("by_position", [False, True])
def test_means_are_those_of_the_tokens(by_position: bool) -> None:
    lm = unembed.load()
    corpus = open_corpus(TEXTS)
    needs = [("z", 1), ("coefficients", 3), ("mlp_out", 2)]
    means = corpus_means(lm, corpus, needs, 1000, by_position).numbers
    for point, layer in needs:
        rows = [lm.run(ids[None], point, logits=False).at(point, layer)[0] for ids in segments_of(lm, corpus).values()]
        if by_position:
            longest = max(map(len, rows))
            expected = torch.stack([torch.stack([r[p] for r in rows if len(r) > p]).mean(0) for p in range(longest)])
        else:
            expected = torch.cat(rows).mean(0)
        torch.testing.assert_close(means[point, layer], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_massive_positions_are_left_out_of_a_mean_over_all_positions(family: str, dtype: torch.dtype) -> None:
    lm, texts = with_massive_token(family, "q", dtype), ["q a b c d", "a b c q d e", "f g h", "i j k l m n"]
    corpus, need = open_corpus(texts), ("resid_post", 1)
    found, massive = corpus_means(lm, corpus, [need], 1000), lm.single_token("q")
    rows, is_massive = [], []
    for ids in segments_of(lm, corpus).values():
        rows.append(lm.run(ids[None], "resid_post", logits=False).at(*need)[0].double())
        is_massive.append(ids == massive)
    expected, every = torch.cat(rows)[~torch.cat(is_massive)].mean(0), torch.cat(rows).mean(0)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    size = float(expected.norm())
    assert float((found.numbers[need].double() - expected).norm()) < tolerance * size
    assert float((every - expected).norm()) > 5 * tolerance * size, "the control: they would matter"
    assert found.massive == 2 and found.in_words("x") == "the mean over x (2 massive positions left out)"
    by_position = corpus_means(lm, corpus, [need], 1000, by_position=True)
    first = torch.stack([one[0] for one in rows]).mean(0)
    assert float((by_position.numbers[need][0].double() - first).norm()) < tolerance * float(first.norm())
    assert by_position.massive == 0 and by_position.in_words("x") == "the mean over x by position"


def test_the_reducer_of_means_merges_and_resumes() -> None:
    def batch(number: int, length: int) -> Batch:
        return Batch.of(number, [Segment(number, 0, 0, 0, 0, 0, torch.arange(length))])

    def fed(*seen: tuple[int, torch.Tensor]) -> MeanActivation:
        reducer = MeanActivation([("z", 0)], by_position=True)
        reducer.start(tiny("gpt2-relu"))
        for number, t in seen:
            reducer.see("z", 0, t, batch(number, t.shape[1]))
            reducer.update(batch(number, t.shape[1]))
        return reducer

    a, b = torch.randn(1, 3, 2, 4), torch.randn(1, 5, 2, 4)
    whole, first, second = fed((0, a), (1, b)), fed((0, a)), fed((1, b))
    resumed = fed()
    resumed.load_state(first.state())
    resumed.merge(second)
    first.merge(second)
    for other in (first, resumed):
        torch.testing.assert_close(other.result()["z", 0], whole.result()["z", 0])
    assert len(whole.result()["z", 0]) == 5
    torch.testing.assert_close(whole.result()["z", 0][1], ((a + b[:, :3]) / 2)[0, 1].double())
