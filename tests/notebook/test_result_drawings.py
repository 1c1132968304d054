"""Every result draws itself in a notebook with its own numbers, above a table of the same rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import unembed
import unembed.notebook
from unembed.language_model import LanguageModel
from unembed.notebook.drawings import card_of
from unembed.notebook.result_drawings import CHARTS, Bars

PROMPT = "Once upon a time there was a little"
PAIR = ("The king of France", "The king of England")


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return unembed.load()


RESULTS: dict[str, Callable[[LanguageModel], Any]] = {
    "Ablation": lambda lm: lm.ablate(PROMPT),
    "Attribution": lambda lm: lm.trace(PROMPT).attribution(" girl", by="head"),
    "CorpusAblation": lambda lm: lm.ablate(unembed.open_corpus(["The cat sat.", "It rained."]), heads=[(0, 1), (2, 3)]),
    "Effects": lambda lm: lm.trace(PROMPT).attribution(" girl").with_effects(4),
    "EntropyAndKL": lambda lm: lm.trace(PROMPT).entropy_and_kl(),
    "HeadScores": lambda lm: unembed.circuits(lm).head_scores(n_sequences=2, length=8),
    "MemoryEffects": lambda lm: lm.trace(PROMPT).memory_effects(top=3),
    "Patching": lambda lm: lm.patch(*PAIR),
    "PatchingPairs": lambda lm: lm.patch([PAIR[0]], [PAIR[1]], "z"),
    "Paths": lambda lm: lm.patch(*PAIR, "L0H1", through=["L1H0", "logits"]),
    "Readings": lambda lm: lm.trace(PROMPT).readings(top=3),
    "EstimatedEffects": lambda lm: unembed.attribution_patching(lm, PROMPT, top=3),
}


def test_every_drawing_is_tried() -> None:
    assert set(RESULTS) == {*CHARTS, "Readings"}


@pytest.mark.parametrize("name", list(RESULTS))
def test_a_result_is_a_table_and_a_drawing_of_the_same_numbers(name: str, lm: LanguageModel) -> None:
    result = RESULTS[name](lm)
    assert type(result).__name__ == name
    page = result._repr_html_()
    table = page[: page.index("<style>")]
    assert "<table>" in table and table.count("<tr>") == 1 + min(40, len(result.to_table()))
    assert "http" not in page.replace("http://www.w3.org/", "")
    data = json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
    assert data == json.loads(json.dumps(card_of(result).data))
    assert data["schema"].split("/")[0] in {f"unembed.{kind}" for kind in ("bars", "heads", "heat", "readings")}


@pytest.mark.parametrize("name", [name for name, chart in CHARTS.items() if isinstance(chart, Bars)])
def test_bars_are_the_rows_of_the_table(name: str, lm: LanguageModel) -> None:
    result = RESULTS[name](lm)
    chart, table = CHARTS[name], result.to_table()
    rows = [row for row in table if row[chart.value] is not None][:40]
    drawn = chart.draw(table)["rows"]
    assert [row["value"] for row in drawn] == [row[chart.value] for row in rows] and rows
    for row, bar in zip(rows, drawn, strict=True):
        named = [chart.label] if isinstance(chart.label, str) else chart.label
        assert bar["label"] == " to ".join(row[column] for column in named)
        assert all(bar[column] == row[column] for column in ("layer", "index") if column in row)


def test_a_patching_is_its_own_map(lm: LanguageModel) -> None:
    found = lm.patch(*PAIR)
    data = card_of(found).data
    assert data["values"] == found.recovered.tolist() and data["columns"] == list(found.tokens)
    memories = lm.patch(*PAIR, "coefficients", top=3)
    strongest = memories.recovered.gather(-1, memories.recovered.abs().argmax(-1, keepdim=True))[..., 0]
    assert card_of(memories).data["values"] == strongest.tolist()
    assert data["note"] == f"{found.to_table().title}; shown: recovered"
    assert card_of(memories).data["note"].endswith("; shown: recovered, of the strongest in each square")
    heads = lm.patch(*PAIR, "z")
    assert card_of(heads).data["scores"] == heads.recovered.tolist()


def test_an_ablation_of_all_heads_is_a_square_for_each_and_another_is_bars(lm: LanguageModel) -> None:
    heads = lm.ablate(PROMPT)
    assert card_of(heads).data["scores"] == heads.effects.tolist()
    for few in (lm.ablate(PROMPT, memories=[(5, 955), (5, 132)]), lm.ablate(PROMPT, heads=[(0, 1), (2, 3)])):
        rows = card_of(few).data["rows"]
        assert {row["label"]: row["value"] for row in rows} == pytest.approx(
            dict(zip(few.labels, few.effects.tolist(), strict=True))
        )


def test_readings_are_the_lens_grid(lm: LanguageModel) -> None:
    trace = lm.trace(PROMPT)
    data = card_of(trace.readings("resid_mid", top=7)).data
    assert data["tokens"] == trace.token_strings
    assert data["texts"][2][3] == trace.readings("resid_mid").tokens[2][3][:5]
    assert data["probabilities"][2][3] == pytest.approx(trace.readings("resid_mid").probabilities[2, 3, :5].tolist())


def test_ranks_have_a_line_for_each_token(lm: LanguageModel) -> None:
    trace = lm.trace(PROMPT)
    card = unembed.notebook.ranks_card(trace, [" girl", " boy"])
    for one, token in zip(card.data["series"], (" girl", " boy"), strict=True):
        assert one["name"] == token and one["ranks"] == trace.ranks_of(token, position=-1)[:, 0].tolist()
    assert "<table>" in card._repr_html_()
    question = trace.question()
    plain = unembed.notebook.ranks_card(trace)
    assert [one["name"] for one in plain.data["series"]] == lm.token_strings([question.token, question.against])


def test_composition_is_a_square_for_each_pair_or_the_largest_as_bars(lm: LanguageModel) -> None:
    small = unembed.circuits(unembed.load("attn-2l"))
    scores = small.composition("k")
    card = unembed.notebook.composition_card(small, "k")
    shown = torch.tensor(card.data["shown"])
    assert torch.allclose(shown, scores[0, :, 1].T.float()) and card.data["rows"][0] == "L1H0"
    best = (scores == scores.max()).nonzero()[0].tolist()
    cells = re.findall(r"<td[^>]*>(.*?)</td>", re.sub(r"</?bdi>", "", card.table))
    assert cells[:2] == [f"L{best[0]}H{best[1]}", f"L{best[2]}H{best[3]}"]
    many = unembed.notebook.composition_card(unembed.circuits(lm), "q", top=5)
    assert len(many.data.get("rows", [])) in (5, (lm.n_layers - 1) * lm.n_heads)
    with pytest.raises(unembed.UnembedError, match="one layer"):
        unembed.notebook.composition_card(unembed.circuits(unembed.load("attn-1l")))
