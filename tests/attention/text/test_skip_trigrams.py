"""Skip-trigrams equal the dense computation over all triples, and their bugs are those of the definition."""

import math
from itertools import pairwise

import pytest
import torch

import unembed
from tests.conftest import tiny
from unembed.attention.text.skip_trigrams import count_in_corpus, frequent_tokens
from unembed.errors import InvalidInput


def dense(name: str, layer: int, head: int, offset: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """QK (destination, source) and OV (source, output) above the means that softmax and LayerNorm do not see."""
    lm = tiny(name, torch.float64)
    circuits = unembed.circuits(lm)
    W_E, W_U = lm.weights.W_E, lm.weights.W_U
    if name == "gpt2":
        W_E = W_E - W_E.mean(1, keepdim=True)
    qk = W_E @ circuits.qk(layer, head, offset).dense() @ W_E.T * circuits.scales[layer]
    ov = W_E @ circuits.ov(layer, head).dense() @ W_U
    return qk - qk.mean(1, keepdim=True), ov - ov.mean(1, keepdim=True)


@pytest.mark.parametrize(("name", "offset"), [("attention-only", 1), ("gpt2", 1), ("llama", 3)])
def test_the_best_triples_of_all(name: str, offset: int) -> None:
    qk, ov = dense(name, 1, 2, offset)
    score = qk.T.clamp_min(0)[:, :, None] * ov.clamp_min(0)[:, None, :]  # (source, destination, output)
    circuits = unembed.circuits(tiny(name, torch.float64))
    found = circuits.skip_trigrams(1, 2, top=30, offset=offset, hide_unlearned=False)
    expected = score.flatten().topk(30)
    torch.testing.assert_close(torch.tensor([t.score for t in found]).double(), expected.values, rtol=1e-6, atol=1e-6)
    for triple in found:
        assert triple.score == pytest.approx(score[triple.source, triple.destination, triple.output].item())
        assert triple.attention == pytest.approx(qk[triple.destination, triple.source].item())
        assert triple.effect == pytest.approx(ov[triple.source, triple.output].item())
    one = circuits.skip_trigrams(1, 2, top=5, source=17, offset=offset, hide_unlearned=False)
    torch.testing.assert_close(
        torch.tensor([t.score for t in one]).double(), score[17].flatten().topk(5).values, rtol=1e-6, atol=1e-6
    )


def test_bytes_of_longer_characters_are_left_out() -> None:
    lm = unembed.load("attn-2l")
    assert (lm.unlisted & ~lm.unlearned).any()  # some bytes occur often enough to have been learned
    circuits = unembed.circuits(lm)
    for layer, head in ((0, 3), (1, 5)):
        found = circuits.skip_trigrams(layer, head, top=200)
        ids = torch.tensor([(t.source, t.destination, t.output) for t in found])
        assert not lm.unlisted[ids].any()


def test_the_corpus_gives_how_often_a_triple_holds() -> None:
    lm = unembed.load("attn-2l")
    keep, near, mind, bay = (lm.single_token(t) for t in (" keep", " in", " mind", " water"))
    texts = ["I keep it in mind", "I keep them in water", "he was in water", "they keep that in mind and in water"]
    (seen,) = count_in_corpus(lm, [(keep, near, mind)], texts)
    assert (seen.with_source, seen.output_with_source) == (4, 2)
    assert (seen.without_source, seen.output_without_source) == (1, 0)
    assert seen.rate_with == 0.5 and seen.rate_without == 0.0
    (never,) = count_in_corpus(lm, [(bay, keep, mind)], texts)
    assert math.isnan(never.rate_with)
    assert count_in_corpus(lm, [], texts) == []


def test_only_among_some_tokens() -> None:
    lm = tiny("gpt2", torch.float64)
    ids = torch.tensor([3, 8, 20, 41, 77])
    raw_qk = lm.weights.W_E[ids] @ unembed.circuits(lm).qk(0, 1).dense() @ lm.weights.W_E[ids].T
    raw_ov = lm.weights.W_E[ids] @ unembed.circuits(lm).ov(0, 1).dense() @ lm.weights.W_U[:, ids]
    qk = (raw_qk - raw_qk.mean(1, keepdim=True)) * unembed.circuits(lm).scales[0]
    ov = raw_ov - raw_ov.mean(1, keepdim=True)
    score = qk.T.clamp_min(0)[:, :, None] * ov.clamp_min(0)[:, None, :]
    found = unembed.circuits(lm).skip_trigrams(0, 1, top=4, among=ids)
    torch.testing.assert_close(
        torch.tensor([t.score for t in found]).double(), score.flatten().topk(4).values, rtol=1e-6, atol=1e-6
    )
    assert {t.source for t in found} <= set(ids.tolist())
    with pytest.raises(InvalidInput, match="left out"):
        unembed.circuits(lm).skip_trigrams(0, 1, source=9, among=ids)
    counted = unembed.load("attn-2l")
    the = counted.single_token(" the")
    assert frequent_tokens(counted, ["I saw the cat and the dog"], 2).tolist() == [the]


def test_bugs_are_raised_pairs_that_never_occur_though_both_halves_do() -> None:
    lm = unembed.load("attn-2l")
    circuits = unembed.circuits(lm)
    source = circuits.skip_trigrams(0, 0, top=1)[0].source
    texts = ["the first of the last of the first the last , of , the . the"] * 2
    found = circuits.skip_trigram_bugs(0, 0, source, texts, top=6)
    follows = set()
    for text in texts:
        ids = lm.encode(text)[0].tolist()
        follows |= set(pairwise(ids))
    d, o = found.destinations.tolist(), found.outputs.tolist()
    for i in range(6):
        for j in range(6):
            pair = (d[i], o[j]) in follows
            assert (found.counts[i, j] > 0) == pair
            halves = any((d[i], x) in follows for x in o) and any((x, o[j]) in follows for x in d)
            assert bool(found.crossed[i, j]) == (not pair and halves and bool(found.score[i, j] > 0))
    assert len(found.pairs) == int(found.crossed.sum())
