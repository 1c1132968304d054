"""Heads: the library's circuits and the model's own patterns."""

from __future__ import annotations

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
