"""What an index answers, against the model run by hand and full sorts in float64."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.index.conftest import corpus_of, token_text
from unembed.errors import IndexFault, InvalidInput, NotOneToken, OutOfRange
from unembed.index import Index
from unembed.language_model import LanguageModel


def all_coefficients(
    lm: LanguageModel, segmentation: str
) -> tuple[torch.Tensor, list[tuple[int, str, str, str | None]]]:
    """Coefficients (layer, place, key) of every counted place, and document, prefix, token and next token of each."""
    rows, places = [], []
    strings = token_text(lm)
    for segment in corpus_of(segmentation).segments(lm):
        seen = lm.run(segment.tokens[None], ("coefficients",), logits=False)["coefficients"][:, 0]
        texts = [strings[int(i)] for i in segment.tokens]
        for column in range(segment.skip, len(segment)):
            following = texts[column + 1] if column + 1 < len(segment) else None
            if following is None and segment.next_token >= 0:
                following = strings[segment.next_token]
            places.append((segment.document, "".join(texts[segment.lead : column]), texts[column], following))
            rows.append(seen[:, column])
    return torch.stack(rows, dim=1), places


def firing_key(index: Index) -> tuple[int, int]:
    """A key that has all the triggers it can have."""
    return next((1, i) for i in range(index.manifest.layers[1]) if len(index.triggers(1, i)) == index.top)


@pytest.mark.parametrize("which", ["gpt2", "llama"])
def test_triggers_are_those_of_a_full_sort(which: str, request: pytest.FixtureRequest) -> None:
    lm, index = (
        request.getfixturevalue(name) for name in (("lm", "built") if which == "gpt2" else ("gated", "gated_index"))
    )
    coefficients, places = all_coefficients(lm, "sentences" if which == "gpt2" else "windows")
    for pole, sign in zip(index.poles, (1, -1), strict=False):
        for layer in range(lm.n_layers):
            for key in (0, 7, lm.d_mlp - 1):
                column = coefficients[layer, :, key].double() * sign
                values, order = column.sort(descending=True, stable=True)
                n = min(index.top, int((values > 0).sum()))
                found = list(index.triggers(layer, key, pole=pole).rows())
                assert len(found) == n
                np.testing.assert_allclose([row["coefficient"] * sign for row in found], values[:n], rtol=1e-5)
                for row, place in zip(found, order.tolist(), strict=False):
                    if (values[:6].diff().abs() > 1e-6).all():  # places of near-equal coefficients may swap
                        seen = (row["document"], row["prefix"], row["token"], row["next_token"])
                        assert seen == places[place]


def test_gated_models_keep_both_poles(gated_index: Index, built: Index) -> None:
    assert gated_index.poles == ("positive", "negative")
    assert built.poles == ("positive",)
    with pytest.raises(InvalidInput, match="pole 'negative'"):
        built.triggers(0, 0, pole="negative")


def test_context_cuts_the_prefix_and_top_the_rows(built: Index) -> None:
    layer, index = firing_key(built)
    whole, short = built.triggers(layer, index), built.triggers(layer, index, 2, context=1)
    assert len(short) == 2
    for long_row, short_row in zip(whole.rows(), short.rows(), strict=False):
        assert long_row["prefix"].endswith(short_row["prefix"])
        assert len(short_row["prefix"].split()) <= 1


def test_position_counts_the_tokens_of_the_document(
    lm: LanguageModel, gated_index: Index, gated: LanguageModel
) -> None:
    strings = token_text(gated)
    documents: dict[int, list[int]] = {}
    for segment in corpus_of("windows").segments(gated):
        documents.setdefault(segment.document, []).extend(segment.tokens[segment.skip :].tolist())
    for row in gated_index.triggers(0, 5).rows():
        assert strings[documents[row["document"]][row["position"]]] == row["token"]


def test_promoting_finds_exactly_the_values_that_hold_the_token(built: Index, lm: LanguageModel) -> None:
    ids = torch.cat([lm.values.top(n, range(lm.d_mlp), 6)[0] for n in range(lm.n_layers)]).view(lm.n_layers, -1, 6)
    token = lm.single_token(" January")
    expected = {tuple(at[:2]) for at in (ids == token).nonzero().tolist()}
    found = list(built.promoting(" January", 10_000).rows())
    assert {(row["layer"], row["index"]) for row in found} == expected
    assert len(found) == len(expected) > 3
    scores = [row["score"] for row in found]
    assert scores == sorted(scores, reverse=True)
    for row in found:
        assert int(ids[row["layer"], row["index"], row["rank"] - 1]) == token
    ranks = [row["rank"] for row in built.promoting(token, 10_000, by="rank").rows()]
    assert ranks == sorted(ranks)


def test_firing_on_agrees_with_the_triggers_of_the_same_text(built: Index, lm: LanguageModel) -> None:
    text = "The first month of the year is January ."
    seen = lm.run(text, ("coefficients",), logits=False)["coefficients"][:, 0]
    found = list(built.firing_on(text, 10_000).rows())
    strengths = [row["strength"] for row in found]
    assert strengths == sorted(strengths, reverse=True)
    assert len(found) == int((seen.amax(dim=1) > 0).sum())
    for row in found[:50]:
        column = seen[row["layer"], :, row["index"]]
        assert row["coefficient"] == pytest.approx(float(column.max()), rel=1e-5)
        assert row["position"] == int(column.argmax())
        best = [r["coefficient"] for r in built.triggers(row["layer"], row["index"]).rows()]
        assert row["strength"] == pytest.approx(row["coefficient"] / best[0], rel=1e-5)
        assert row["place"] == sum(other > row["coefficient"] for other in best)
    by_size = [row["coefficient"] for row in built.firing_on(text, 20, by="coefficient").rows()]
    largest = seen.amax(dim=1).flatten().sort(descending=True).values[:20]
    np.testing.assert_allclose(by_size, largest, rtol=1e-5)


def test_the_text_of_a_trigger_has_the_coefficient_in_the_index(built: Index) -> None:
    layer, index = firing_key(built)
    row = next(iter(built.triggers(layer, index).rows()))
    found = {(r["layer"], r["index"]): r for r in built.firing_on(row["prefix"] + row["token"], 10_000).rows()}
    assert found[layer, index]["strength"] == pytest.approx(1.0, abs=1e-5)


def test_negative_pole_fires_with_a_negative_coefficient(gated_index: Index) -> None:
    found = list(gated_index.firing_on("The first month of the year is", 10_000).rows())
    negative = [row for row in found if row["pole"] == "negative"]
    assert negative
    assert all(row["coefficient"] < 0 < row["strength"] for row in negative)


@pytest.mark.parametrize("among", ["values", "keys"])
def test_similar_equals_all_cosines_in_float64(built: Index, lm: LanguageModel, among: str) -> None:
    rows = [lm.weights.W_out[n] if among == "values" else lm.weights.W_in[n].T for n in range(lm.n_layers)]
    vectors = torch.nn.functional.normalize(torch.cat(rows).double(), dim=1)
    cosines = vectors @ vectors[lm.d_mlp + 4]
    cosines[lm.d_mlp + 4] = -2
    best, order = cosines.topk(7)
    found = list(built.similar(1, 4, 7, among=among).rows())
    np.testing.assert_allclose([row["cosine"] for row in found], best.detach(), atol=1e-6)
    assert [row["layer"] * lm.d_mlp + row["index"] for row in found] == order.tolist()


def test_search_finds_triggers_whose_prefix_holds_all_words(built: Index, lm: LanguageModel) -> None:
    found = list(built.search('"of the" year', 100_000).rows())
    expected = 0
    for layer in range(lm.n_layers):
        for key in range(lm.d_mlp):
            for row in built.triggers(layer, key).rows():
                words = re.findall(r"\w+", (row["prefix"] + row["token"]).lower())
                expected += "year" in words and ("of", "the") in itertools.pairwise(words)
    assert len(found) == expected > 10
    strengths = [row["strength"] for row in found]
    assert strengths == sorted(strengths, reverse=True)
    assert len(built.search("janu*", 3)) == 3
    assert len(built.search("nowhere")) == 0


def test_bottom_tokens_are_those_that_a_value_suppresses_most(built: Index, lm: LanguageModel) -> None:
    ids, scores = lm.values.top(1, 11, 30, bottom=True)
    found = built.value_tokens(1, 11, 30, bottom=True)
    assert found.columns["token_id"] == ids.tolist()[: len(found)]
    assert found.columns["score"] == pytest.approx(scores.tolist()[: len(found)], abs=1e-5)
    assert built.value_norm(1, 11) == pytest.approx(lm.values.norm(1, 11))


def test_an_older_index_says_that_it_has_no_suppressed_tokens(built: Index) -> None:
    files = tuple(entry for entry in built.manifest.files if "suppressed" not in entry.path)
    older = Index(built.path, replace(built.manifest, files=files))
    assert older.suppressed is None and len(older.value_tokens(1, 11)) > 0
    with pytest.raises(IndexFault, match="an earlier version of unembed built it"):
        older.value_tokens(1, 11, bottom=True)


def test_value_tokens_are_the_readings(built: Index, lm: LanguageModel) -> None:
    found = list(built.value_tokens(1, 11).rows())
    ids, scores = lm.values.top(1, 11, 6)
    assert [row["token_id"] for row in found] == ids.tolist()
    np.testing.assert_allclose([row["score"] for row in found], scores.detach(), rtol=1e-6)


def test_bad_requests_are_refused(built: Index) -> None:
    for call, kind, match in (
        (lambda: built.triggers(9, 0), OutOfRange, "layer 9"),
        (lambda: built.triggers(0, 10_000), OutOfRange, "memory in layer 0: 10000"),
        (lambda: built.triggers(0, 0, 0), InvalidInput, "top 0"),
        (lambda: built.promoting("no token at all"), NotOneToken, "not one token"),
        (lambda: built.promoting("January"), NotOneToken, "' January' with its leading space"),
        (lambda: built.promoting(10**6), OutOfRange, "token 1000000"),
        (lambda: built.promoting(" January", by="name"), InvalidInput, "by='name'"),
        (lambda: built.similar(0, 0, among="heads"), InvalidInput, "among 'heads'"),
        (lambda: built.search(' " " . '), InvalidInput, "no word"),
        (lambda: built.firing_on(""), InvalidInput, "empty"),
        (lambda: built.firing_on("a", by="luck"), InvalidInput, "by='luck'"),
    ):
        with pytest.raises(kind, match=match):
            call()


def test_an_index_shows_its_model_corpus_size_and_folder(built: Index) -> None:
    facts = built.manifest.facts
    shown = repr(built)
    assert shown.startswith(
        f"Index of {built.provenance.model} over {built.provenance.corpus} ({facts['tokens']:,} tokens"
    )
    assert f"{sum(built.manifest.layers):,} memories, complete, in {built.path}" in shown
