"""The gallery of tiny models and of wren: every ingredient from outside, and random vectors that must not rank."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import unembed
from tests.conftest import tiny
from tests.sweeps.recorder import lettered
from unembed.corpus import open_corpus
from unembed.errors import IndexFault, InvalidInput
from unembed.gallery import Gallery, rank_memories
from unembed.gallery.evidence import INGREDIENTS
from unembed.gallery.text_evidence import agreements
from unembed.index import Index, IndexSettings
from unembed.stream.interventions import set_coefficient

LINES = 150
PLANTED = 200
LAYERS = (4, 5)


def wikitext(n: int = LINES) -> list[str]:
    lines = [line for line in unembed.steering.default_text().splitlines() if len(line) > 200]
    return lines[:n]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Index, set[tuple[int, int]], Gallery]:
    """A copy of wren with 200 random values in two layers, drawn like those layers' values; its index and gallery."""
    lm = unembed.load()
    rng = torch.Generator().manual_seed(0)
    at = torch.randperm(len(LAYERS) * lm.d_mlp, generator=rng)[:PLANTED].tolist()
    memories = {(LAYERS[i // lm.d_mlp], i % lm.d_mlp) for i in at}
    with torch.no_grad():
        for layer, index in memories:
            W_out = lm.weights.W_out[layer]
            W_out[index] = W_out.mean(0) + W_out.std(0) * torch.randn(lm.d_model, generator=rng)
    lm.name = "wren with random values"
    path = tmp_path_factory.mktemp("planted") / "index"
    corpus = open_corpus(wikitext(), segmentation="windows", window=64)
    index = Index.build(lm, corpus, path, settings=IndexSettings(top=25, layers=LAYERS))
    return index, memories, index.memories(50, layers=LAYERS)


def test_none_of_the_random_values_is_among_the_first_fifty(planted):
    _, random, gallery = planted
    first = [(row.layer, row.index) for row in list(gallery)[:50]]
    assert len(set(first) - random) == 50
    # By chance 200 of 2048 would come five times in 50; what is left of wren still has themes and patterns.
    assert all(row.score > 0.2 for row in list(gallery)[:10])


def test_scores_fall_and_are_the_mean_of_significant_sizes(planted):
    _, _, gallery = planted
    scores = [row.score for row in gallery]
    assert scores == sorted(scores, reverse=True) and len(gallery) == 50
    for row in gallery:
        sizes = {name: e.size for name, e in row.evidence.items() if e is not None and e.p <= 0.01}
        if not sizes.get("agreement"):
            sizes.pop("triggers", None)
        assert row.score == pytest.approx(sum(sizes.values()) / 5)


def test_agreement_and_effect_are_those_of_the_text_and_of_the_models_own_edit(planted):
    index, _, gallery = planted
    lm, row = index.model, gallery[0]
    promoted, _ = lm.values.top(row.layer, row.index, 30)
    triggers = index.triggers(row.layer, row.index, 25)
    following = [token for token in triggers.columns["next_token"] if token is not None]
    hits = np.isin(following, lm.token_strings(promoted)).mean()
    counts = np.bincount(np.asarray(index.passages.token), minlength=lm.d_vocab)
    base = counts[promoted.numpy()].sum() / counts.sum()
    agreement = row.evidence["agreement"]
    assert agreement is not None and agreement.size == pytest.approx(max(0.0, (hits - base) / (1 - base)), abs=0.05)
    drops = []
    for position in index.trigger_lists["positive"][1][index.row(row.layer, row.index)][:10]:
        prompt = torch.from_numpy(np.array(index.passages.read_to(int(position))[-64:], dtype=np.int64))[None]
        edit = set_coefficient(row.layer, row.index, 0.0, positions="last")
        before, after = (
            float(lm.run(prompt, edits=edits).logits[0, -1].double().softmax(-1)[promoted].sum())
            for edits in ((), (edit,))
        )
        drops.append(before - after)
    effect = row.evidence["effect"]
    assert effect is not None and effect.size == pytest.approx(max(0.0, float(np.mean(drops))), abs=1e-6)


def test_unlearned_tokens_are_promoted_only_on_request(planted):
    index, _, gallery = planted
    unlearned = set(index.model.unlearned.nonzero()[:, 0].tolist())
    assert unlearned, "wren has such tokens"
    assert not any(set(row.top_ids) & unlearned for row in gallery)
    assert all(list(row.top_tokens) == index.model.token_strings(list(row.top_ids)) for row in gallery)
    assert gallery.provenance.notes["show_unlearned"] is False


def test_the_gallery_is_json_and_a_table(planted):
    _, _, gallery = planted
    data = json.loads(json.dumps(gallery.to_dict()))
    assert data["schema"] == "unembed.memories/1" and data["memories"][0]["rank"] == 1
    table = gallery.to_table()
    assert len(table) == 50 and {f"{name}_p" for name in INGREDIENTS} <= set(table.columns)


def test_without_an_index_concepts_alone_are_judged():
    lm = unembed.load()
    gallery = rank_memories(lm, None, 5, layers=[5])
    assert all(set(k for k, e in row.evidence.items() if e is not None) == {"concept"} for row in gallery)
    assert all(row.layer == 5 and row.pattern is None and row.concept is not None for row in gallery)
    assert "weights" in gallery.provenance.notes["text"]


def test_random_weights_have_no_concepts_to_show():
    lm = unembed.load()
    torch.manual_seed(0)
    with torch.no_grad():
        for layer in range(lm.n_layers):
            lm.weights.W_out[layer].copy_(torch.randn_like(lm.weights.W_out[layer]))
    real, random = (
        np.mean([row.score > 0 for row in rank_memories(model, None, 10_000, layers=[4, 5])])
        for model in (unembed.load(), lm)
    )
    assert random <= 0.03 and real >= 3 * random


def test_numbers_out_of_range_are_refused():
    with pytest.raises(InvalidInput, match="top"):
        rank_memories(unembed.load(), None, 0)
    with pytest.raises(InvalidInput, match="tokenizer"):
        rank_memories(tiny("gpt2"), None, 5)


def test_a_phrase_that_the_triggers_repeat_is_no_agreement():
    """25 triggers in one phrase of the text are followed by one promoted token; ten different ones are evidence."""
    promoted = np.arange(30)
    repeated, varied = np.full(25, 7), np.concatenate([np.arange(10), np.arange(100, 115)])
    lists, base = np.stack([promoted] * 2), np.full(2, 0.02)
    one, ten = agreements(np.stack([repeated, varied]), lists, base)
    assert one is not None and one.size == pytest.approx(1.0) and one.p == pytest.approx(0.02)
    assert ten is not None and ten.size == pytest.approx((0.4 - 0.02) / 0.98) and ten.p < 1e-8
    assert agreements(np.full((1, 3), -1), promoted[None], base[:1]) == [None]


def test_an_index_of_some_layers_ranks_these_alone(tmp_path):
    lm, text = lettered("llama"), open_corpus(["abcabc " * 20] * 10, segmentation="windows", window=32)
    index = Index.build(lm, text, tmp_path / "one", settings=IndexSettings(layers=(1,)))
    of_one, of_all = index.memories(200), Index.build(lm, text, tmp_path / "all").memories(200, layers=[1])
    assert {row.layer for row in of_one} == {1}
    assert [row.score for row in of_one] == pytest.approx([row.score for row in of_all], abs=1e-6)
    with pytest.raises(IndexFault, match="the index contains only layers 1"):
        index.memories(5, layers=[0])
