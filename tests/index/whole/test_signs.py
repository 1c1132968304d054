"""Memories of gated layers fire with either sign: what is said of each sign, against products in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.index.conftest import token_text
from unembed.concepts.value_concepts import value_concepts
from unembed.errors import InvalidInput
from unembed.gallery.ranking import rank_memories
from unembed.index import Index
from unembed.index.memory_search import search, understand
from unembed.language_model import LanguageModel
from unembed.memories.token_ranking import LISTED, firing, promoting, word_forms
from unembed.memories.values import written_values
from unembed.names import SignedMemory, parse_memory, parse_signed_memory, read_memory, read_signed_memory
from unembed.steering import chosen_edits

TOKEN = " January"


def scores_of(lm: LanguageModel) -> torch.Tensor:
    """The raw scores of every value, (layer, memory, token), in float64."""
    W_U = lm.weights.W_U.double()
    return torch.stack([written_values(lm, n).double() @ W_U for n in range(lm.n_layers)]).detach()


def test_a_minus_sign_names_the_negative_pole() -> None:
    assert read_signed_memory("-L24M1005") == SignedMemory(24, 1005, "negative")
    assert read_signed_memory("\u2212L24M1005").sign == -1
    assert read_signed_memory("24.1005") == (24, 1005, "positive")
    assert parse_signed_memory("-L2E1M5") == (2, (1, 5), "negative")
    assert read_memory("-L24M1005") == parse_memory("L24M1005") == (24, 1005)
    assert parse_signed_memory("--L24M1005") is parse_signed_memory("-L24H3") is parse_signed_memory("-1.5") is None
    with pytest.raises(InvalidInput, match="is not a memory"):
        read_signed_memory("-24")
    with pytest.raises(InvalidInput, match="It is an attention head: unembed circuits head L2H3 shows it"):
        read_signed_memory("L2H3")


def test_a_token_is_promoted_at_either_pole(gated: LanguageModel, gated_index: Index) -> None:
    token, k = gated.single_token(TOKEN), 6
    scores = scores_of(gated)
    scores[..., gated.unlisted] = torch.nan
    expected: dict[tuple[int, int, str], float] = {}
    for sign, pole in ((1, "positive"), (-1, "negative")):
        signed = torch.nan_to_num(sign * scores, nan=-torch.inf)
        for layer, index in ((signed > signed[..., token, None]).sum(-1) < k).nonzero().tolist():
            expected[layer, index, pole] = float(signed[layer, index, token])
    found = list(gated_index.promoting(TOKEN, 10_000).rows())
    assert {(row["layer"], row["index"], row["pole"]) for row in found} == expected.keys()
    assert {row["pole"] for row in found} == {"positive", "negative"}
    assert [row["score"] for row in found] == sorted((row["score"] for row in found), reverse=True)
    for row in found:
        assert row["score"] == pytest.approx(expected[row["layer"], row["index"], row["pole"]], rel=1e-4)
        assert TOKEN in row["top_tokens"]
        assert row["memory"] == ("-" if row["pole"] == "negative" else "") + f"L{row['layer']}M{row['index']}"


def test_keys_that_fire_list_what_their_sign_promotes(gated: LanguageModel, gated_index: Index) -> None:
    scores, texts = scores_of(gated), token_text(gated)
    scores[..., gated.unlisted] = 0
    for row in gated_index.firing_on("The first month of the year", 40).rows():
        best = (np.sign(row["coefficient"]) * scores[row["layer"], row["index"]]).topk(6).indices
        assert row["top_tokens"][:6] == [texts[i] for i in best.tolist()]
        assert row["memory"].startswith("-") == (row["coefficient"] < 0)


def test_neighbours_are_found_at_the_pole_that_is_more_similar(gated: LanguageModel, gated_index: Index) -> None:
    values = torch.cat([written_values(gated, n).double() for n in range(gated.n_layers)]).detach()
    units = values / values.norm(dim=1, keepdim=True)
    cosines = units @ units[5]
    cosines[5] = 0
    order = cosines.abs().argsort(descending=True)[:8].tolist()
    for pole, sign in (("positive", 1), ("negative", -1)):
        found = list(gated_index.similar(0, 5, 8, pole=pole).rows())  # pyright: ignore[reportArgumentType]
        assert [row["layer"] * gated.d_mlp + row["index"] for row in found] == order
        assert [row["cosine"] for row in found] == pytest.approx(cosines[order].abs().tolist(), abs=1e-5)
        assert [row["pole"] == "negative" for row in found] == (sign * cosines[order] < 0).tolist()


def test_triggers_of_both_signs_are_searched(gated_index: Index) -> None:
    both = list(gated_index.search("month", 10_000).rows())
    for pole in gated_index.poles:
        alone = [
            (row["layer"], row["index"], row["rank"]) for row in gated_index.search("month", 10_000, pole=pole).rows()
        ]
        assert sorted(alone) == sorted((r["layer"], r["index"], r["rank"]) for r in both if r["pole"] == pole)
    strengths = [row["strength"] for row in both]
    assert strengths == sorted(strengths, reverse=True)
    assert {row["pole"] for row in both} == {"positive", "negative"}


def test_words_are_promoted_by_setting_the_right_sign(gated: LanguageModel) -> None:
    found = promoting(gated, ["January"], 6)
    assert {one.pole for one in found} == {"positive", "negative"}
    for one, edit in zip(found, chosen_edits(found, to=2.0), strict=True):
        ids, _ = gated.values.top(one.layer, one.index, LISTED, bottom=one.pole == "negative")
        assert gated.token_strings(ids)[one.rank - 1] == one.token
        assert edit.value == (-2.0 if one.pole == "negative" else 2.0)


def test_values_are_ranked_at_the_pole_that_promotes(gated: LanguageModel) -> None:
    """Every memory whose value lists a spelling of the word at the better sign, by its score, computed in float64."""
    ids = word_forms(gated, "January")
    own = scores_of(gated)
    listable = own.masked_fill(gated.unlisted, torch.nan)
    best, form = own[..., ids].abs().max(dim=-1)
    expected = []
    for layer, index in torch.cartesian_prod(torch.arange(gated.n_layers), torch.arange(gated.d_mlp)).tolist():
        token, score = ids[int(form[layer, index])], float(best[layer, index])
        sign = -1 if own[layer, index, token] < 0 else 1
        rank = int((sign * listable[layer, index] > sign * own[layer, index, token]).sum()) + 1
        if rank <= LISTED:
            expected.append((score, layer, index, rank, "negative" if sign < 0 else "positive"))
    expected.sort(reverse=True)
    found = promoting(gated, ["January"], 10_000)
    assert len(expected) > 12 and {pole for *_, pole in expected} == {"positive", "negative"}
    assert [(one.layer, one.index, one.rank, one.pole) for one in found] == [row[1:] for row in expected][: len(found)]
    assert [one.score for one in found] == pytest.approx([row[0] for row in expected][: len(found)], rel=1e-4)
    assert len(found) == len(expected)


def test_texts_are_found_for_each_sign(gated: LanguageModel) -> None:
    text = "The first month of the year is January"
    m = gated.run(text, "coefficients")["coefficients"][1, 0, :, 3]
    texts = gated.token_strings(gated.encode(text)[0])
    found = firing(gated, [SignedMemory(1, 3, "negative"), (1, 3)], [text])
    for one, sign in ((SignedMemory(1, 3, "negative"), -1), ((1, 3), 1)):
        best = (sign * m).max(dim=0)
        assert found[one] == () if best.values <= 0 else found[one][0].endswith(f"[{texts[int(best.indices)]}]")


def test_the_search_box_finds_memories_at_a_sign(gated: LanguageModel, gated_index: Index) -> None:
    assert understand("-L1M3").memory == (1, 3) and understand("-L1M3").pole == "negative"
    hit = search(gated, gated_index, "-L1M3").hits[0]
    ids, _ = gated.values.top(1, 3, 12, bottom=True)
    assert (hit.layer, hit.index, hit.pole, hit.top_tokens) == (1, 3, "negative", gated.token_strings(ids))
    for index in (None, gated_index):
        hits = search(gated, index, "January", 200).hits
        assert {hit.pole for hit in hits} == {"positive", "negative"}
        assert all((hit.score or 0) > 0 for hit in hits if hit.rank == 1)


def test_concepts_are_read_at_both_signs(gated: LanguageModel) -> None:
    found = value_concepts(gated, ["L1M3", "-L0M2", (0, 1)], embedding=False)
    assert found.labels == ("L1M3", "-L1M3", "-L0M2", "L0M1", "-L0M1")
    low, _ = gated.values.top(1, 3, 30, bottom=True)
    assert found.ids[1].tolist() == low.tolist()
    assert value_concepts(gated, [(0, 1)], poles="named", embedding=False).labels == ("L0M1",)


def test_the_gallery_without_an_index_has_both_signs(gated: LanguageModel) -> None:
    found = rank_memories(gated, None, 500)
    assert {row.pole for row in found} == {"positive", "negative"}
    for row in list(found)[:20]:
        ids, _ = gated.values.top(row.layer, row.index, 10, bottom=row.pole == "negative")
        assert list(row.top_ids) == ids.tolist()


def test_memories_without_a_gate_have_one_sign(lm: LanguageModel, built: Index) -> None:
    assert "pole" not in built.promoting(TOKEN).columns
    assert value_concepts(lm, ["L1M3"], embedding=False).labels == ("L1M3",)
    assert {one.pole for one in promoting(lm, ["January"], 50)} == {"positive"}
