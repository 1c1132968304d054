"""Heads: the library's circuits and the model's own patterns."""

from __future__ import annotations

import math

import pytest

import unembed

PROMPT = "The first month of the year is"


def test_scores_are_the_librarys(client, wren):
    found = client.get("/api/v1/heads?sequences=2&length=8").json()
    scores = unembed.circuits(wren).head_scores(0, n_sequences=2, length=8)
    for kind, rows in found["scores"].items():
        assert [score for row in rows for score in row] == pytest.approx(
            scores[kind].flatten().tolist(), rel=1e-4, abs=1e-6
        )
        assert kind in found["said"]


def test_a_head_is_its_circuit(client, wren):
    found = client.get("/api/v1/heads/2/3", params={"source": " year", "destination": " month", "top": 5}).json()
    circuits = unembed.circuits(wren)
    ov = circuits.ov_full(2, 3).rows([wren.single_token(" year")])[0]
    assert [s["id"] for s in found["raises"]] == ov.topk(5).indices.tolist()
    assert [s["id"] for s in found["lowers"]] == ov.topk(5, largest=False).indices.tolist()
    qk = circuits.qk_full(2, 3).rows([wren.single_token(" month")])[0]
    assert [s["score"] for s in found["looks_for"]] == pytest.approx(qk.topk(5).values.tolist(), rel=1e-4)
    assert all(p["layer"] < 2 for p in found["partners"])


def test_a_pattern_is_the_models_and_its_rows_add_up_to_one(client, wren):
    key = client.post("/api/v1/traces", json={"prompt": PROMPT}).json()["id"]
    found = client.get(f"/api/v1/traces/{key}/attention/4/1").json()
    pattern = wren.run(PROMPT, ("pattern",))["pattern"][4, 0, 1]
    for i, row in enumerate(found["weights"]):
        assert len(row) == i + 1 and sum(row) == pytest.approx(1, abs=1e-5)
        assert row == pytest.approx(pattern[i, : i + 1].tolist(), rel=1e-4, abs=1e-7)


def test_a_head_that_does_not_exist(client):
    assert client.get("/api/v1/heads/2/99").status_code == 404


def test_a_text_needs_no_trace_and_edits_hold(client, wren):
    edit = {"target": "head", "action": "scale", "layer": 0, "index": 1, "value": 0.0}
    found = client.post("/api/v1/heads/4/1/attention", json={"prompt": PROMPT, "edits": [edit]}).json()
    edited = wren.run(PROMPT, ("pattern",), edits=[unembed.Edit.from_dict({**edit, "positions": "all"})])
    assert found["weights"][-1] == pytest.approx(edited.at("pattern", 4)[0, 1, -1].tolist(), rel=1e-4, abs=1e-7)
    plain = client.post("/api/v1/heads/4/1/attention", json={"prompt": PROMPT}).json()
    assert found["weights"][-1] != pytest.approx(plain["weights"][-1], rel=1e-3)
    assert found["ids"] == wren.encode(PROMPT)[0].tolist()


def test_effects_are_the_accounts_rows(client, wren):
    found = client.post("/api/v1/heads/here", json={"prompt": PROMPT, "token": " year", "position": 3}).json()
    account = wren.trace(PROMPT).account(" year", 3, by="head")
    assert found["token"]["token"] == " year" and found["token"]["score"] == pytest.approx(account.logit)
    expected = [row.share for row in account.rows if row.label.startswith("head ")]
    assert [x for row in found["scores"]["effect"] for x in row] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    pattern = wren.run(PROMPT, ("pattern",)).at("pattern", 2)[0, 3]
    assert found["scores"]["own"][2][3] == pytest.approx(float(pattern.diagonal().mean()), rel=1e-4)
    spread = [float(-(row[: i + 1] * row[: i + 1].log()).sum()) / math.log(i + 1) for i, row in enumerate(pattern) if i]
    assert found["scores"]["entropy"][2][3] == pytest.approx(sum(spread) / len(spread), rel=1e-4)
    assert "position 3" in found["said"]["effect"]


def test_without_a_token_the_prediction_is_meant(client, wren):
    found = client.post("/api/v1/heads/here", json={"prompt": PROMPT}).json()
    assert found["token"]["id"] == int(wren.trace(PROMPT).prediction[-1])
    assert client.post("/api/v1/heads/here", json={"prompt": PROMPT, "position": 99}).status_code == 404


def test_a_score_is_the_sum_of_its_terms(client, wren):
    found = client.post("/api/v1/heads/2/3/terms", json={"prompt": PROMPT, "destination": 6, "source": 4}).json()
    terms = unembed.circuits(wren).score_terms(PROMPT, 2, 3)
    assert found["score"] == pytest.approx(float(terms.scores[6, 4]), rel=1e-4)
    assert found["terms"] == pytest.approx({k: float(v[6, 4]) for k, v in terms.terms.items()}, rel=1e-4, abs=1e-6)
    assert sum(found["terms"].values()) == pytest.approx(found["score"], rel=1e-3)
    assert any("position" in name for name in found["terms"])
    asked = {"prompt": PROMPT, "destination": 2, "source": 4}
    assert client.post("/api/v1/heads/2/3/terms", json=asked).status_code == 404
