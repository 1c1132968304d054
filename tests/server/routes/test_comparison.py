"""Two continuations that grow together."""

from __future__ import annotations

import json

import pytest
import torch
from scipy.stats import binomtest
from starlette.testclient import TestClient

import unembed
from tests.server.conftest import TOKEN
from unembed.server.app import create
from unembed.server.state import ServerState

PROMPT = "The first month of the year is"
EDIT = {"action": "set", "layer": 3, "index": 5, "value": 60.0}


def compare(client, **more):
    answer = client.post("/api/v1/compare", json={"prompt": PROMPT, "max_new_tokens": 8, **more})
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_both_sides_are_what_generate_gives(client, wren):
    found = compare(client, edits=[EDIT], seed=5)
    assert found[-1] == {"kind": "done"}
    summary = found[-2]
    edits = [unembed.set_coefficient(3, 5, 60.0)]
    for side, used in (("base", ()), ("edit", edits)):
        text = wren.generate(PROMPT, used, max_new_tokens=8, seed=5, top_k=50)[0]
        assert PROMPT + summary["texts"][side] == text
        assert [line["text"] for line in found if line.get("side") == side][-1] == summary["texts"][side]
    base, edit = ([line["id"] for line in found if line.get("side") == side] for side in ("base", "edit"))
    assert summary["diverges_at"] == next(i for i in range(8) if base[i] != edit[i])
    assert [line["side"] for line in found[:4]] == ["base", "edit", "base", "edit"]


def test_the_same_seed_gives_the_same_text_and_no_edits_one_side(client):
    one, two = (compare(client, seed=9)[-2]["texts"] for _ in range(2))
    assert one == two and set(one) == {"base"}


def test_samples_are_what_generate_gives_and_their_shares_have_exact_intervals(client, wren):
    body = {"prompt": PROMPT, "edits": [EDIT], "samples": 4, "max_new_tokens": 5, "seed": 2}
    found = client.post("/api/v1/samples", json=body).json()
    for side, edits in (("plain", ()), ("edited", [unembed.set_coefficient(3, 5, 60.0)])):
        texts = wren.generate([PROMPT] * 4, edits, max_new_tokens=5, seed=2)
        assert [PROMPT + text for text in found[side]] == texts
    for hits, share in enumerate(found["shares"]):
        bounds = binomtest(hits, 4).proportion_ci(0.95, method="exact")
        assert [share["value"], share["low"], share["high"]] == pytest.approx([hits / 4, bounds.low, bounds.high])
    assert len(found["shares"]) == 5 and len(set(found["edited"])) > 1
    assert client.post("/api/v1/samples", json={"prompt": PROMPT}).json()["message"] == "steering without edits"


def test_turning_off_then_on_returns_the_baseline(client):
    off = {"action": "scale", "layer": 3, "index": 5, "value": 1.0}
    summary = compare(client, edits=[off])[-2]
    assert summary["texts"]["base"] == summary["texts"]["edit"] and summary["diverges_at"] is None


def test_the_last_position_only_leaves_earlier_cells_equal(client):
    plain = client.post("/api/v1/traces", json={"prompt": PROMPT}).json()["stages"][1]["probabilities"]
    found = client.post("/api/v1/traces", json={"prompt": PROMPT, "edits": [{**EDIT, "positions": "last"}]}).json()
    edited = found["stages"][1]["probabilities"]
    assert [layer[:-1] for layer in plain] == [layer[:-1] for layer in edited]
    assert plain[-1][-1] != edited[-1][-1]


def test_runs_are_cached_and_evicted(client):
    number = compare(client)[-2]["run"]
    assert number in [run["run"] for run in client.get("/api/v1/runs").json()["runs"]]
    assert client.delete(f"/api/v1/runs/{number}").json() == {"removed": True}
    assert client.delete(f"/api/v1/runs/{number}").json() == {"removed": False}


def test_the_same_run_again_is_one_run_and_the_newest(client):
    first, other, again = (compare(client, seed=seed, edits=[EDIT])[-2]["run"] for seed in (21, 22, 21))
    assert again == first != other
    assert [run["run"] for run in client.get("/api/v1/runs").json()["runs"]][-2:] == [other, first]
    assert compare(client, seed=21, edits=[EDIT], max_new_tokens=9)[-2]["run"] not in (first, other)


def test_an_edit_that_breaks_the_model_ends_the_stream_with_its_reason(client):
    wild = [{**EDIT, "value": 1e6, "index": i, "layer": n} for i in range(8) for n in range(6)]
    found = compare(client, edits=wild)
    assert found[-1]["kind"] in ("done", "error")


def test_a_side_that_overflows_leaves_the_other_complete():
    lm = unembed.load()
    with torch.no_grad():  # a memory that is silent everywhere, with a value that overflows when it is set
        lm.weights.W_out[3][5] = 1e35
        lm.weights.W_in[3][:, 5] = 0.0
        bias = lm.weights.b_in[3]
        assert bias is not None
        bias[5] = -1e4
    state = ServerState(lm)
    try:
        page = TestClient(
            create(state, token=TOKEN, port=7333),
            base_url="http://127.0.0.1:7333",
            headers={"authorization": f"Bearer {TOKEN}"},
        )
        found = compare(page, edits=[{**EDIT, "value": 1e6}])
        base = "".join(line["token"] for line in found[:-1] if line["side"] == "base")
        assert PROMPT + base == lm.generate(PROMPT, max_new_tokens=8)[0]
        assert (found[-1]["kind"], found[-1]["code"]) == ("error", "not_finite")
        assert found[-1]["why"] == "they overflowed under these edits"
        assert page.get("/api/v1/runs").json()["runs"] == []
    finally:
        state.close()


def test_the_next_token_table(client, wren):
    from unembed import steering

    found = client.post("/api/v1/next", json={"prompt": PROMPT, "edits": [EDIT]}).json()
    table = steering.next_token_table(wren, PROMPT, [unembed.set_coefficient(3, 5, 60.0)])
    rows = {row["id"]: row for row in table.rows()}
    for row in found["rows"]:
        assert row["edited"] == pytest.approx(rows[row["id"]]["edited"], rel=1e-5)
