"""Triggers, shortened triggers, values and patterns against brute force in float64, SciPy, and cases made by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from tests.sweeps.recorder import Everything, lettered, texts
from unembed.concepts.token_classes import Classes
from unembed.corpus import open_corpus
from unembed.corpus.token_stream import TokenStream
from unembed.errors import InvalidInput
from unembed.reports.geva2021 import patterns, perturbation, values, word_similarity
from unembed.reports.geva2021.examples import draw_positions
from unembed.reports.geva2021.triggers import KeyTriggers, reducer
from unembed.sweeps import sweep


def made(family: str = "opt", how: str = "prefixes", top: int = 4, bos: bool = False, n: int = 8):
    """A tiny model, its text and triggers."""
    lm = lettered(family, torch.float64, bos)
    corpus = open_corpus(texts(n))
    (lists,) = sweep(lm, corpus, [reducer(how, top)], tokens_per_batch=300)
    return lm, corpus, TokenStream.of(corpus.segments(lm)), KeyTriggers.of_lists(lists.values, lists.positions)


def test_random_examples_are_of_the_kind_asked_and_a_small_corpus_says_its_size() -> None:
    _, _, text, _ = made(bos=True)
    everything = set(text.prefix_positions().tolist())
    drawn = draw_positions(text, 20, "prefixes", 0, "letters")
    assert len(set(drawn.tolist())) == 20 and set(drawn.tolist()) <= everything
    assert drawn.tolist() == draw_positions(text, 20, "prefixes", 0, "letters").tolist()
    assert drawn.tolist() != draw_positions(text, 20, "prefixes", 1, "letters").tolist()
    one_each = draw_positions(text, 10, "sentences", 0, "letters")
    assert len(set(text.segment(one_each).tolist())) == 10 and set(one_each.tolist()) <= everything
    with pytest.raises(InvalidInput, match=rf"it has {len(everything):,} prefixes .*examples={len(everything)}"):
        draw_positions(text, 10**6, "prefixes", 0, "letters")
    with pytest.raises(InvalidInput, match="sentences of text"):
        draw_positions(text, 10**6, "sentences", 0, "letters")


def test_triggers_of_the_released_code_come_from_each_sentence_once_and_never_its_end() -> None:
    lm, corpus, text, triggers = made("gpt2", "sentences", 5)
    coefficients, facts = sweep(lm, corpus, [Everything()])[0]
    segment = text.segment(facts["position"].numpy())
    for layer in range(lm.n_layers):
        for index in range(0, coefficients[layer].shape[1], 17):
            best: dict[int, tuple[float, int]] = {}
            rows = zip(
                coefficients[layer][:, index].tolist(),
                facts["position"].tolist(),
                segment.tolist(),
                facts["next"].tolist(),
                strict=True,
            )
            for value, place, sentence, follows in rows:
                if follows >= 0 and value > 0 and value > best.get(sentence, (0.0, 0))[0]:
                    best[sentence] = (value, place)
            expected = sorted(best.values(), key=lambda pair: (-pair[0], pair[1]))[:5]
            row = triggers.row(layer, index)
            got = [p for p in triggers.positions[row].tolist() if p >= 0]
            # Equal beginnings of sentences have equal coefficients, so values are compared and places checked by them.
            np.testing.assert_allclose(triggers.coefficients[row][: len(got)], [v for v, _ in expected], rtol=1e-6)
            assert len(got) == len(expected) == len(set(text.segment(np.array(got, dtype=np.int64)).tolist()))
            for place, (value, _) in zip(got, expected, strict=True):
                at = facts["position"].tolist().index(place)
                assert float(coefficients[layer][at, index]) == pytest.approx(value, rel=1e-9)
                assert int(facts["next"][at]) >= 0


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_shortened_triggers_change_as_the_model_says(family: str) -> None:
    lm, _, text, triggers = made(family, top=3, bos=family == "llama", n=4)
    keys = triggers.sampled(2, 1, 0, "perturbation")
    assert len(keys) == 2 * lm.n_layers and keys == triggers.sampled(2, 1, 0, "perturbation")
    found = perturbation.changes(lm, text, triggers, keys, seed=5, tokens_per_batch=90)
    checked = 0
    for k, (layer, index) in enumerate(keys):
        for t, place in enumerate(triggers.positions[triggers.row(layer, index)].tolist()):
            if place < 0:
                assert np.isnan(found[k, t]).all()
                continue
            prefix, lead = text.prefix(place).tolist(), text.n_special
            if len(prefix) < 2:
                assert np.isnan(found[k, t]).all()
                continue

            def coefficient(ids: list[int], layer: int = layer, index: int = index) -> float:
                return float(lm.run(torch.tensor([ids]), "coefficients")["coefficients"][layer, 0, -1, index])

            whole = coefficient(prefix)
            each = [(coefficient(prefix[:i] + prefix[i + 1 :]) - whole) / whole for i in range(lead, len(prefix))]
            np.testing.assert_allclose(found[k, t, :2], [each[0], each[-1]], rtol=1e-4, atol=1e-5)
            assert np.isclose(each, found[k, t, 2], rtol=1e-4, atol=1e-5).any()
            checked += 1
    assert checked > 5
    if family == "opt":
        assert np.nanmin(found) >= -1


@pytest.mark.parametrize("basis", ["raw", "final"])
@pytest.mark.parametrize("target", ["next", "last"])
def test_values_agree_where_a_loop_over_all_of_them_says_so(basis: str, target: str) -> None:
    lm, _, text, triggers = made("gpt2")
    found = values.agreement(lm, text, triggers, basis=basis, target=target)
    norm, head = lm.structure.final_norm, lm.hf.get_output_embeddings()
    assert norm is not None and head is not None
    for layer in range(lm.n_layers):
        for index in range(0, lm.d_mlp, 13):
            row = triggers.row(layer, index)
            v = lm.weights.W_out[layer][index]
            with torch.no_grad():
                p = (v @ lm.weights.W_U if basis == "raw" else head(norm.module(v))).softmax(-1)
            places = [x for x in triggers.positions[row].tolist() if x >= 0]
            paired = [
                int(text.next_tokens(np.array([x]))[0]) if target == "next" else int(text.prefix(x)[-1]) for x in places
            ]
            paired = [x for x in paired if x >= 0]
            assert found.top[row] == int(p.argmax())
            np.testing.assert_allclose(found.probability[row], float(p.max()), rtol=1e-5)
            assert found.followed[row] == len(paired) and found.hits[row] == paired.count(int(p.argmax()))
            if paired:
                assert found.target[row] == paired[0]
                assert found.rank[row] == int((p > p[paired[0]]).sum())
            else:
                assert found.target[row] == found.rank[row] == -1
        rows = found.layer(layer)
        pairs = [(a, b) for a in found.top[rows] for b in found.target[rows] if b >= 0]
        known = found.target[rows] >= 0
        if known.all():
            expected = sum(a == b for a, b in pairs) / len(pairs)
            assert found.by_chance(layer) == pytest.approx(expected, abs=1e-12)


def test_tails_are_those_of_the_binomial_distribution() -> None:
    for n, p, k in ((25, 0.04, 3), (25, 0.5, 20), (10, 0.001, 1), (4, 0.3, 0)):
        assert patterns.tail(n, p, k) == pytest.approx(float(stats.binom.sf(k - 1, n, p)), rel=1e-10)


def random_prefixes(n: int, seed: int = 0, length: int = 12) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(100, 1000, (n, length)))


def test_shared_ends_and_phrases_are_found_with_the_prefixes_that_have_them() -> None:
    finder = patterns.Finder.of(random_prefixes(500), None, ())
    prefixes = random_prefixes(25, 1)
    for i in (2, 5, 7, 11):
        prefixes[i][-2:] = (7, 8)
    for i, at in ((0, 1), (1, 4), (9, 6)):
        prefixes[i][at : at + 3] = (11, 12, 13)
    found = finder.patterns(prefixes)
    assert {(p.what, p.tokens, p.members) for p in found} == {
        ("ends with", (7, 8), frozenset({2, 5, 7, 11})),
        ("contains", (11, 12, 13), frozenset({0, 1, 9})),
    }
    shares = dict(patterns.shares(found, 25))
    assert shares == {"shallow": 7 / 25, "both": 0.0, "semantic": 0.0, "none": 18 / 25}


def test_what_random_prefixes_share_as_often_is_no_pattern() -> None:
    common = random_prefixes(500)
    for prefix in common[::3]:
        prefix[-1] = 5
    finder = patterns.Finder.of(common, None, ())
    prefixes = random_prefixes(25, 1)
    for i in range(8):
        prefixes[i][-1] = 5
    assert finder.patterns(prefixes) == []
    for i in range(25):
        prefixes[i][-1] = 5
    assert [p.tokens for p in finder.patterns(prefixes)] == [(5,)]
    assert patterns.Finder.of(random_prefixes(500), None, ()).patterns(prefixes[:2]) == []


WORDS = ["dog", "cat", "horse", "lion", "tiger", "wolf", "table", "quickly", "seven", "of", "the", "run", "green"]


def test_a_meaning_needs_several_words_that_share_it() -> None:
    vocabulary = [f" {word}" for word in WORDS] + [f" zzq{i}" for i in range(1000)]
    classes = Classes.build(vocabulary)
    finder = patterns.Finder.of(random_prefixes(500), classes, ("semantic",))
    animals = [vocabulary.index(f" {word}") for word in ("dog", "cat", "horse", "lion", "tiger", "wolf")]
    prefixes = random_prefixes(25, 1)
    for i, animal in enumerate(animals):
        prefixes[3 * i][5] = animal
    (pattern,) = finder.patterns(prefixes)
    assert pattern.kind == "semantic" and pattern.members == frozenset(range(0, 18, 3))
    assert "WordNet" in patterns.described(pattern, classes, lambda ids: [vocabulary[i] for i in ids])
    same = random_prefixes(25, 1)
    for i in range(6):
        same[3 * i][-1] = animals[0]
    assert [p.kind for p in finder.patterns(same)] == ["shallow"]


def test_similar_words_are_closer_than_others() -> None:
    assert word_similarity.lin("dog", "dogs") == 1.0 == word_similarity.lin("people", "people")
    near, far = word_similarity.lin("dog", "cat"), word_similarity.lin("dog", "idea")
    assert near is not None and far is not None and near > word_similarity.RELATED > far
    assert word_similarity.lin("dog", "qqqqq") is None
    lm = lettered("gpt2", torch.float64)
    w = lm.weights.W_E
    ids = np.array([3, 4]), np.array([10, 11])
    expected = [float(torch.cosine_similarity(w[a], w[b], dim=0)) for a, b in zip(*ids, strict=True)]
    np.testing.assert_allclose(word_similarity.cosines(lm, *ids), expected, rtol=0, atol=1e-6)
    counts = np.arange(lm.d_vocab)
    cosine = np.array([-1.1, 1.1])
    assert word_similarity.share_of_closer(lm, *ids, cosine, counts, 0).tolist() == [0.0, 1.0]
    share = word_similarity.share_of_closer(lm, *ids, np.array(expected), counts, 0)
    assert ((share >= 0) & (share <= 1)).all()


@pytest.mark.parametrize("family", ["llama", "gemma2", "olmo2"])
def test_the_negative_pole_pairs_the_lowest_coefficients_with_negated_values(family: str) -> None:
    lm = lettered(family, torch.float64)
    corpus = open_corpus(texts(8))
    # Rows one at a time: the softmax of gemma2 in transformers gives NaN at padding in float64.
    lists, (every, facts) = sweep(lm, corpus, [reducer("prefixes", 4), Everything()], tokens_per_batch=1)
    text = TokenStream.of(corpus.segments(lm))
    positive, negative = KeyTriggers.of_sweep(lists)
    assert negative is not None
    found = values.agreement(lm, text, negative, negated=True)
    whole = facts["length"] >= 1  # an empty prefix is no trigger
    places = facts["position"][whole]
    for layer in range(lm.n_layers):
        m = every[layer][whole].double()
        norm = lm.feed_forward(layer).branch_norm
        for index in range(0, lm.d_mlp, 7):
            row = negative.row(layer, index)
            order = m[:, index].argsort(stable=True)[:4]
            order = order[m[order, index] < 0]
            n = len(order)
            assert negative.positions[row][:n].tolist() == places[order].tolist()
            assert (negative.positions[row][n:] == -1).all() and np.isposinf(negative.coefficients[row][n:]).all()
            np.testing.assert_allclose(negative.coefficients[row][:n], m[order, index].numpy(), rtol=1e-5)
            assert (positive.coefficients[row][positive.positions[row] >= 0] > 0).all()
            v = lm.weights.W_out[layer][index]
            if norm is not None:  # what reaches the stream is scaled by the gain of the norm behind the FFN
                v = v * (norm.module.weight.detach() + (1 if family == "gemma2" else 0))
            p = (-v @ lm.weights.W_U).softmax(-1)
            assert found.top[row] == int(p.argmax()) == int((v @ lm.weights.W_U).argmin())
            np.testing.assert_allclose(found.probability[row], float(p.max()), rtol=1e-5)
            following = [t for t in text.next_tokens(places[order].numpy()).tolist() if t >= 0]
            assert found.hits[row] == following.count(found.top[row]) and found.followed[row] == len(following)
            if following:
                assert found.target[row] == following[0] and found.rank[row] == int((p > p[following[0]]).sum())


def test_a_model_without_gates_has_no_negative_pole() -> None:
    lm = lettered("opt")
    (lists,) = sweep(lm, open_corpus(texts(4)), [reducer("prefixes", 3)], tokens_per_batch=300)
    assert KeyTriggers.of_sweep(lists)[1] is None
