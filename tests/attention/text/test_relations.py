"""A planted relation is found and its shuffled pairs are not; every share equals the dense computation."""

import json
import random
from functools import cache
from pathlib import Path

import pytest
import torch

import unembed
from unembed.attention import head_view
from unembed.attention.text.head_card import head_answer
from unembed.attention.text.relations import (
    MAPPED,
    ROLE,
    head_relations,
    head_role,
    relations_answer,
    relations_of_heads,
)
from unembed.attention.text.word_relations import Relation, open_relation, token_pairs
from unembed.language_model import LanguageModel
from unembed.names import HeadAddress

PAIRS = [
    ("France", "Paris"), ("Italy", "Rome"), ("Germany", "Berlin"), ("England", "London"), ("Spain", "Madrid"),
    ("Russia", "Moscow"), ("China", "Beijing"), ("Egypt", "Cairo"),
]  # fmt: skip


def planted(pairs: list[tuple[str, str]], layer: int, head: int) -> LanguageModel:
    """attn-2l with one head whose OV circuit maps each source's embedding to its target's unembedding."""
    lm = unembed.load("attn-2l")
    sources, targets = (torch.tensor([lm.single_token(f" {pair[i]}") for pair in pairs]) for i in (0, 1))
    with torch.no_grad():
        reads, writes = lm.weights.W_V[layer][head], lm.weights.W_O[layer][head]
        reads.zero_()
        writes.zero_()
        reads[:, : len(pairs)] = torch.linalg.pinv(lm.weights.W_E[sources])
        writes[: len(pairs)] = torch.linalg.pinv(lm.weights.W_U)[targets]
    return lm


def test_a_planted_head_is_found_and_shuffled_targets_are_not() -> None:
    known = [pair for pair in PAIRS if _is_known(pair)]
    assert len(known) >= 5
    lm = planted(known, 1, 2)
    circuits = unembed.circuits(lm)
    found = circuits.relations(known, k=1, basis="raw")
    table = found.to_table()
    assert (table["layer"][0], table["head"][0]) == (1, 2)
    assert found.share[1, 2] == 1.0 and found.shuffled[1, 2] < 0.1
    assert found.p_value[1, 2] < 0.05
    sources, targets = zip(*known, strict=True)
    turned = list(zip(sources, (*targets[1:], targets[0]), strict=True))
    control = circuits.relations(turned, k=1, basis="raw")
    assert control.share[1, 2] <= 1 / len(known) and control.p_value[1, 2] > 0.5


def test_shares_are_those_of_the_dense_circuits() -> None:
    for name in ("wren", "attn-2l"):
        lm = unembed.load(name, dtype="float64")
        circuits = unembed.circuits(lm)
        relation = open_relation("verb_past_tense")
        pairs = token_pairs(lm, relation)
        found = circuits.relations(relation, k=10)
        for layer, head in ((0, 1), (lm.n_layers - 1, 3)):
            dense = circuits.ov_full(
                layer, head, circuits.known_basis(None), sources=torch.tensor(pairs.sources)
            ).dense()
            top = dense.topk(10).indices.tolist()
            hits = [[bool(targets & set(row)) for targets in pairs.targets] for row in top]
            n = len(hits)
            assert found.share[layer, head] == sum(hits[i][i] for i in range(n)) / n
            others = [hits[i][j] for i in range(n) for j in range(n) if pairs.targets[i].isdisjoint(pairs.targets[j])]
            assert abs(float(found.shuffled[layer, head]) - sum(others) / len(others)) < 1e-12
            assert found.mapped[layer, head].tolist() == [hits[i][i] for i in range(n)]


def test_sources_after_the_layers_below_are_the_streams_of_runs_over_single_words() -> None:
    lm = unembed.load("attn-2l", dtype="float64")
    circuits, relation = unembed.circuits(lm), open_relation("verb_past_tense")
    found = circuits.relations(relation, sources="layers-below", basis="raw")
    assert found.provenance.notes["sources"] == "layers-below"
    pairs = token_pairs(lm, relation)
    assert lm.tokenizer is not None
    begin = lm.tokenizer.bos_token_id
    front = [] if begin is None else [begin]
    streams = torch.stack(
        [
            lm.run(torch.tensor([*front, source]), capture="resid_pre").at("resid_pre", 1)[0, -1]
            for source in pairs.sources
        ]
    )
    for head in (0, 3):
        scores = streams @ lm.weights.W_V[1][head] @ lm.weights.W_O[1][head] @ lm.weights.W_U
        top = scores.topk(10).indices.tolist()
        expected = [bool(targets & set(row)) for targets, row in zip(pairs.targets, top, strict=True)]
        assert found.mapped[1, head].tolist() == expected
    by_embedding = circuits.relations(relation, basis="raw")
    assert bool((found.mapped[0] == by_embedding.mapped[0]).all()), "no layer is below the first"
    assert bool((found.mapped[1] != by_embedding.mapped[1]).any())


def test_shares_in_half_precision_differ_by_at_most_two_pairs() -> None:
    relation = open_relation("verb_past_tense")
    whole, half = (
        unembed.circuits(unembed.load("attn-2l", dtype=dtype)).relations(relation) for dtype in ("float32", "bfloat16")
    )
    assert float((whole.share - half.share).abs().max()) <= 2 / len(whole.pairs) + 1e-12


def test_probabilities_are_one_where_nothing_is_above_the_shuffled_pairs() -> None:
    found = unembed.circuits(_attn_2l()).relations([("France", "Paris"), ("Italy", "Rome")])
    nothing = found.share <= found.shuffled
    assert nothing.any() and bool((found.p_value[nothing] == 1).all())


def test_of_several_relations_shuffled_ones_pass_alone_by_chance_and_never_together(tmp_path: Path) -> None:
    words = [(source, targets[0]) for source, targets in open_relation("verb_past_tense").pairs]
    known = [pair for pair in words if pair[0] != pair[1] and _is_known(pair)][:40]
    assert len(known) >= 30
    circuits = unembed.circuits(planted(known[:12], 1, 2))
    draws = random.Random(0)
    shuffled = []
    for number in range(40):
        targets = [target for _, target in known]
        draws.shuffle(targets)
        shuffled.append(Relation.of([(a[0], b) for a, b in zip(known, targets, strict=True)], f"shuffled {number}"))
    alone = [circuits.relations(one, basis="raw").p_value for one in shuffled]
    by_chance = [one for one in alone if float(one.min()) < MAPPED]
    assert by_chance, "one of 40 tests at 0.05 passes without a correction"
    planted_one, *together = relations_of_heads(circuits, [Relation.of(known[:12]), *shuffled], basis="raw")
    assert planted_one.p_value[1, 2] < MAPPED
    assert min(float(one.p_value.min()) for one in together) > MAPPED
    assert all(bool((one.p_value >= single).all()) for one, single in zip(together, alone, strict=True))
    files = []
    for one in [Relation.of(known[:12]), *shuffled[:4]]:
        files.append(tmp_path / f"{one.name}.json")
        files[-1].write_text(json.dumps(one.pairs), encoding="utf-8")
    (section,) = relations_answer(circuits, files, basis="raw").sections
    heads = circuits.lm.n_layers * circuits.lm.n_heads
    assert (
        f"1 of {heads} heads map" in section.text[0] and f"jointly for {heads} heads and 5 relations" in section.text[0]
    )
    rows = list(section.exhibits[0].table)
    joint = relations_of_heads(circuits, [Relation.of(known[:12]), *shuffled[:4]], basis="raw")
    assert rows[0]["p_value"] == float(joint[0].p_value[1, 2])


def test_the_answer_lists_the_planted_head_first_and_leaves_out_heads_that_map_nothing(tmp_path: Path) -> None:
    known = [pair for pair in PAIRS if _is_known(pair)]
    path = tmp_path / "capitals.json"
    path.write_text(json.dumps(known), encoding="utf-8")
    answer = relations_answer(unembed.circuits(planted(known, 0, 5)), [path], within=1, basis="raw")
    (section,) = answer.sections
    assert "heads map a relation" in section.text[0]
    rows = list(section.exhibits[0].table)
    assert (rows[0]["layer"], rows[0]["head"], rows[0]["share"]) == (0, 5, 1.0)
    assert rows[0]["examples"].startswith(f"{known[0][0]} → {known[0][1]}")
    assert all(row["share"] > 0 for row in rows)


@cache
def _attn_2l() -> LanguageModel:
    return unembed.load("attn-2l")


def _is_known(pair: tuple[str, str]) -> bool:
    try:
        return bool(token_pairs(_attn_2l(), Relation.of([pair, ("one", "two")])).sources[1:])
    except unembed.errors.InvalidInput:
        return False


def test_the_card_of_a_head_shows_the_relations_that_it_maps_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [(source, targets[0]) for source, targets in open_relation("verb_past_tense").pairs]
    known = [pair for pair in words if pair[0] != pair[1] and _is_known(pair)][:12]
    assert len(known) >= 8
    monkeypatch.setattr("unembed.attention.text.relations.known_relations", lambda _lm: [Relation.of(known, "capital")])
    circuits = unembed.circuits(planted(known, 1, 2))
    (found,) = head_relations(circuits, 1, 2, basis="raw")
    whole = circuits.relations(known, basis="raw")
    assert found.relation == "capital" and found.share == float(whole.share[1, 2]) == 1.0
    assert found.shuffled == float(whole.shuffled[1, 2]) and found.pairs == len(known)
    role = head_role(circuits, 1, 2)
    assert role == next((one for one in head_relations(circuits, 1, 2) if one.share >= ROLE), None)
    assert head_relations(circuits, 1, 2, basis="raw", at_least=ROLE) == [found]
    assert head_relations(circuits, 1, 2, basis="raw", at_least=1.1) == []
    assert head_view(circuits, 1, 2, " the", " the", 4).maps == (None if role is None else role.in_words())
    assert head_view(circuits, 0, 3, " the", " the", 4).maps is None
    assert head_relations(circuits, 0, 3, basis="raw") == []
    sections = head_answer(circuits, HeadAddress(1, 2), basis="raw", top=3).sections
    (table,) = [one.table for section in sections for one in section.exhibits if one.name == "relations"]
    assert list(table["relation"]) == ["capital"] and list(table["share"]) == [1.0]
    (other,) = [
        one
        for one in head_answer(circuits, HeadAddress(0, 3), basis="raw", top=3).sections
        if one.text and one.text[0].startswith("It maps")
    ]
    assert other.text[0].startswith("It maps none of the shipped relations")


def test_a_deep_heads_entries_of_rare_tokens_are_folded_behind_the_words_that_it_raises() -> None:
    for name, layer, folded in (("wren", 0, False), ("wren", 1, True), ("attn-2l", 1, False)):
        circuits = unembed.circuits(unembed.load(name))
        sections = head_answer(circuits, HeadAddress(layer, 0), top=3).sections
        entries = {one.name: one.folded for section in sections for one in section.exhibits if "_entries" in one.name}
        raised = next(section for section in sections if section.title == "What it raises")
        assert entries == dict.fromkeys(("ov_entries", "qk_entries"), folded)
        assert [one.name for one in raised.exhibits] == ["raised", *(entries if folded else ())]
