"""Laboratories return what the library measures."""

from __future__ import annotations

import json

import pytest

import unembed

PROMPT = "The first month of the year is"


def test_values_found_by_words_and_their_edits(client, wren):
    found = client.post("/api/v1/labs/promoters", json={"promote": "year", "suppress": "the", "values": 2}).json()
    from unembed import steering

    up, down = steering.promoting(wren, ["year"], 2), steering.promoting(wren, ["the"], 2)
    assert [(r["layer"], r["index"], r["word"]) for r in found["rows"]] == [
        (p.layer, p.index, p.word) for p in [*up, *down]
    ]
    assert [unembed.Edit.from_dict(e) for e in found["edits"]] == steering.chosen_edits(up, down)


def test_never_leaving_is_the_full_model(client, wren):
    found = client.post("/api/v1/labs/early-exit", json={"prompt": PROMPT}).json()
    assert found["exits"] == [wren.n_layers - 1] * len(found["tokens"]) and all(found["agrees"])
    assert found["final"] == wren.token_strings(wren.trace(PROMPT).prediction)
    settled = {e.position: e.layer for e in wren.trace(PROMPT).events() if e.kind == "saturation"}
    assert found["saturation"] == [settled[p] for p in range(len(found["tokens"]))]


@pytest.mark.parametrize("method", ["margin", "entropy", "agreement"])
def test_a_threshold_of_the_curve_gives_the_curves_numbers(client, method):
    dial = client.post("/api/v1/labs/early-exit", json={"prompt": PROMPT, "method": method}).json()["curve"]["rows"]
    assert dial[0]["disagreement"] == 0 and dial[0]["saved_layers"] == 0
    row = dial[len(dial) // 2]
    request = {"prompt": PROMPT, "method": method, "threshold": row["threshold"]}
    found = client.post("/api/v1/labs/early-exit", json=request).json()
    saved = [found["n_layers"] - 1 - e for e in found["exits"]]
    assert sum(saved) / len(saved) == pytest.approx(row["saved_layers"])
    assert 100 * (1 - sum(found["agrees"]) / len(saved)) == pytest.approx(row["disagreement"])


def suppressed(client, request):
    """The lines of an answer: a pair for each prompt, then all of it."""
    *found, end = map(json.loads, client.post("/api/v1/labs/suppress", json=request).text.splitlines())
    assert end == {"kind": "done"} and found[-1]["kind"] == "suppressed"
    return found


def test_suppression_shows_its_cost_with_its_benefit(client):
    same = {"action": "scale", "layer": 3, "index": 5, "value": 1.0}
    request = {"prompt": PROMPT, "edits": [same], "samples": 2, "max_new_tokens": 5, "cost_tokens": 128}
    pair, found = suppressed(client, request)
    (one,) = found["prompts"]
    assert one["plain"] == one["edited"] and len(one["plain"]) == 2
    assert found["perplexity_plain"] == pytest.approx(found["perplexity_edited"], rel=1e-6)
    assert pair == {"kind": "pair", "scorer": found["scorer"], "cost_tokens": 128, **one}
    assert suppressed(client, request) == [found], "what was found is kept"
    refused = client.post("/api/v1/labs/suppress", json={**request, "edits": []}).text.splitlines()
    assert [(line["kind"], line["code"]) for line in map(json.loads, refused)] == [("error", "invalid")]


def test_several_prompts_have_one_perplexity(client, wren):
    from unembed import steering, toxicity

    edit = {"action": "set", "layer": 3, "index": 5, "value": 30.0}
    request = {"prompt": PROMPT, "further": ["She said that"], "edits": [edit], "samples": 2, "max_new_tokens": 5}
    *pairs, found = suppressed(client, {**request, "cost_tokens": 128})
    assert [one["prompt"] for one in pairs] == [PROMPT, "She said that"]
    assert [one["prompt"] for one in found["prompts"]] == [PROMPT, "She said that"]
    edits = [unembed.set_coefficient(3, 5, 30.0)]
    own = steering.steer(wren, "She said that", edits, max_new_tokens=5, seed=0, samples=2)
    assert [one["text"] for one in found["prompts"][1]["edited"]] == list(own.edited)
    scores = toxicity.open_scorer("linear").score(list(own.edited))["toxicity"]
    assert [one["score"] for one in found["prompts"][1]["edited"]] == pytest.approx(scores)
    assert found["perplexity_edited"] != found["perplexity_plain"]


def test_each_step_of_the_curve_shows_where_tokens_exit(client):
    found = client.post("/api/v1/labs/early-exit", json={"prompt": PROMPT}).json()
    n, last = len(found["tokens"]), found["n_layers"] - 1
    assert found["curve"]["rows"][0]["exits"] == [last] * n and found["predictions"][last] == found["final"]
    for row in found["curve"]["rows"]:
        predicted = [found["predictions"][layer][i] for i, layer in enumerate(row["exits"])]
        assert sum(last - e for e in row["exits"]) / n == pytest.approx(row["saved_layers"])
        differ = sum(a != b for a, b in zip(predicted, found["final"], strict=True))
        assert 100 * differ / n == pytest.approx(row["disagreement"])
