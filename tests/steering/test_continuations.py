"""Edits as a file, and what they do to a generation."""

from __future__ import annotations

import math

import pytest
import torch

import unembed
from unembed.errors import InvalidInput
from unembed.memories.token_ranking import RankedValue
from unembed.steering.continuations import change_by_position, chosen_edits, next_token_table, steer
from unembed.steering.edit_files import load_edits, save_edits


@pytest.fixture(scope="module")
def wren():
    return unembed.load("wren")


def test_a_value_both_wanted_and_unwanted_is_switched_on():
    a, b = RankedValue(0, 1, "a", "a", 1, 1.0, ()), RankedValue(0, 2, "b", "b", 1, 1.0, ())
    edits = chosen_edits([a], [a, b], to=3.0, by=0.0)
    assert edits == [unembed.set_coefficient(0, 1, 3.0), unembed.scale_coefficient(0, 2, 0.0)]


def test_next_token_table_holds_both_runs(wren):
    edits = [unembed.set_coefficient(5, 286, 20.0)]
    table = next_token_table(wren, "The great", edits, 5)
    plain = wren.run("The great").logits[0, -1].softmax(-1)
    edited = wren.run("The great", (), edits).logits[0, -1].softmax(-1)
    rows = list(table.rows())
    assert {r["id"] for r in rows} == set(plain.topk(5).indices.tolist()) | set(edited.topk(5).indices.tolist())
    for r in rows:
        assert math.isclose(r["plain"], float(plain[r["id"]]), rel_tol=1e-5)
        assert math.isclose(r["edited"], float(edited[r["id"]]), rel_tol=1e-5)
    cost = (plain.double() * (plain.double() / edited.double()).log()).sum()
    assert table.provenance.notes["divergence"] == pytest.approx(float(cost), rel=1e-4)
    assert next_token_table(wren, "The great", []).provenance.notes["divergence"] == 0


def test_the_words_of_a_search_are_summed_over_their_spellings(wren):
    edits = [unembed.set_coefficient(5, 286, 20.0)]
    made = steer(wren, "The great", edits, max_new_tokens=1, promote=["war"], suppress=["city"])
    assert made.wanted is not None and steer(wren, "The great", edits, max_new_tokens=1).wanted is None
    up, down = made.wanted.rows()
    assert (up["word"], up["wanted"], down["word"], down["wanted"]) == ("war", "promote", "city", "suppress")
    plain = wren.run("The great").logits[0, -1].double().softmax(-1)
    edited = wren.run("The great", (), edits).logits[0, -1].double().softmax(-1)
    texts = wren.token_strings(range(wren.d_vocab))
    for row in (up, down):
        spelled = {row["word"].lower(), row["word"].capitalize(), row["word"].upper()}
        forms = [token for token, text in enumerate(texts) if text.removeprefix(" ") in spelled]
        assert len(forms) > 1
        assert row["plain"] == pytest.approx(float(plain[forms].sum()), rel=1e-4)
        assert row["edited"] == pytest.approx(float(edited[forms].sum()), rel=1e-4)
        assert row["ratio"] == pytest.approx(row["edited"] / row["plain"], rel=1e-6)


def test_the_change_at_every_position_is_that_of_both_runs(wren):
    edits = [unembed.set_coefficient(5, 286, 20.0, positions=[2])]
    rows = list(change_by_position(wren, "The great war of", edits).rows())
    plain = wren.run("The great war of").logits[0].double().softmax(-1)
    edited = wren.run("The great war of", (), edits).logits[0].double().softmax(-1)
    assert [row["token"] for row in rows] == ["The", " great", " war", " of"]
    for p, row in enumerate(rows):
        first = int(plain[p].argmax())
        assert row["first"] == wren.token_strings([first])[0]
        assert row["first_edited"] == wren.token_strings([int(edited[p].argmax())])[0]
        assert row["plain"] == pytest.approx(float(plain[p, first]), rel=1e-5)
        assert row["edited"] == pytest.approx(float(edited[p, first]), rel=1e-5)
        cost = (plain[p] * (plain[p] / edited[p]).log()).sum()
        assert row["divergence"] == pytest.approx(float(cost), rel=1e-3, abs=1e-6)
    assert rows[2]["divergence"] > 0.01 > rows[1]["divergence"] == rows[0]["divergence"] == 0


def test_edits_beyond_the_prompt_leave_its_next_token_alone(wren):
    later = [unembed.set_coefficient(3, 5, 60.0, positions=[0, 9])]
    now = [unembed.set_coefficient(3, 5, 60.0, positions=[0])]
    assert next_token_table(wren, "The great", later).columns == next_token_table(wren, "The great", now).columns
    assert next_token_table(wren, "The great", now).provenance.notes["divergence"] > 0


def test_steering_changes_the_text_and_states_its_cost(wren):
    edits = [unembed.set_coefficient(5, 286, 40.0)]
    found = steer(wren, "The great", edits, max_new_tokens=5, seed=3, cost_text="The war was long. " * 20)
    assert found.plain[0] == unembed.load("wren").generate("The great", max_new_tokens=5, seed=3)[0][len("The great") :]
    assert found.edited != found.plain
    assert found.perplexity_plain != found.perplexity_edited
    with pytest.raises(InvalidInput):
        steer(wren, "The great", [])


def test_saved_edits_hold_in_any_transformers_generation(wren, tmp_path):
    edits = load_edits(save_edits([unembed.set_coefficient(5, 286, 40.0)], tmp_path / "e.json"))
    ids = wren.encode("The great")
    with wren.edited(edits):
        cached = wren.hf.generate(ids, max_new_tokens=6, do_sample=False, use_cache=True)
        plain = wren.hf.generate(ids, max_new_tokens=6, do_sample=False, use_cache=False)
        torch.manual_seed(0)
        batch = wren.hf.generate(ids.repeat(3, 1), max_new_tokens=6, do_sample=True)
    assert cached.tolist() == plain.tolist()
    assert batch.shape == (3, ids.shape[1] + 6)
    assert wren.generate("The great", edits, max_new_tokens=6)[0] == wren.decode(cached[0])
