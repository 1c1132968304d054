"""The API returns what the library and the command line return."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests.server.closeness import close
from tests.server.conftest import rest
from unembed import scale_attention, scale_coefficient, scale_ffn, scale_head
from unembed.jacobian import reading_by
from unembed.server.app import create
from unembed.server.routes import traces
from unembed.server.state import ServerState
from unembed.trace import emergence

PROMPT = "The first month of the year is"


def post(client, prompt=PROMPT, **more):
    answer = client.post("/api/v1/traces", json={"prompt": prompt, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def command(wren, monkeypatch):
    """What a command prints as JSON, on the same opened model."""
    monkeypatch.setattr("unembed.load", lambda *_, **__: wren)
    return _command


def _command(*arguments: str) -> dict:
    from unembed.cli.commands import app

    # The page of these tests has no lens, so the command reads without one too.
    result = CliRunner().invoke(app, [*arguments, "--lens", "none", "--json"])
    assert result.exit_code == 0, result.output
    # Roles are those of a conversation; JSON of the command has them only there.
    return {"roles": None} | json.loads(result.stdout)


def test_every_cell_of_the_grid_is_the_librarys(client, wren):
    found = post(client)
    trace = wren.trace(PROMPT)
    for stage in found["stages"]:
        reading = trace.readings(stage["point"])
        assert stage["ids"] == reading.ids[..., :5].tolist()
        close(stage["probabilities"], reading.probabilities[..., :5].tolist())
        for n in range(wren.n_layers):
            for p in range(len(trace)):
                ranks = trace.ranks_of(int(trace.prediction[p]), stage["point"])
                assert stage["rank_of_prediction"][n][p] == int(ranks[n, p])
    assert [t["token"] for t in found["tokens"]] == trace.token_strings
    assert {int(i) for i in found["texts"]} >= set(found["prediction"])
    assert len(found["events"]) == len(trace.events())


def same(found, printed):
    """The page shows besides, of each layer, its memories by their effect."""
    close(
        *(
            {**one, "grid": None, "layers": [{**n, "sub_updates": []} for n in one["layers"]]}
            for one in (found, printed)
        )
    )


def test_a_position_is_what_the_command_prints(client, command):
    found = client.get(f"/api/v1/traces/{post(client)['id']}?position=-2&memories=4").json()
    same(found, command("trace", PROMPT, "--position", "-2", "--memories", "4"))
    listed = [sum(not row["always_on"] for row in layer["sub_updates"]) for layer in found["layers"]]
    assert max(listed) == 4, "fewer only where fewer are active"


def test_a_question_is_the_commands_and_ranks_the_memories(client, wren, command):
    key = post(client)["id"]
    for params, arguments in (
        ({"token": " the", "against": " a"}, ("--token", " the", "--against", " a")),
        ({"token": " the", "alone": True}, ("--token", " the", "--against", "none")),
    ):
        found = client.get(f"/api/v1/traces/{key}", params={**params, "memories": 3, "listed": 6}).json()
        same(found, command("trace", PROMPT, *arguments, "--memories", "6"))
    trace = wren.trace(PROMPT)
    question = trace.question(" the", " a")
    for order in ("effect", "deviation", "size", "coefficient"):
        request = {"token": " the", "against": " a", "order": order, "memories": 7}
        layer = client.get(f"/api/v1/traces/{key}/layers/2", params=request).json()["layers"][0]
        expected = trace.memory_effects_by_layer([2], question, top=7, order=order)[0]
        assert [row["index"] for row in layer["sub_updates"]] == [row.index for row in expected]
        close([row["deviation"] for row in layer["sub_updates"]], [row.deviation for row in expected])
    assert client.get(f"/api/v1/traces/{key}/layers/2?order=strength").status_code == 422
    same_token = client.get(f"/api/v1/traces/{key}", params={"token": " the", "against": " the"})
    assert same_token.status_code == 422 and "against itself" in same_token.json()["message"]


def test_a_layer_is_what_the_command_prints(client, command):
    found = client.get(f"/api/v1/traces/{post(client)['id']}/layers/3?top=5").json()
    same(found, command("trace", PROMPT, "--layer", "3"))


def test_direct_and_total_effects_are_what_the_command_prints(client, command):
    trace_id = post(client)["id"]
    for by in ("component", "head", "memory"):
        found = client.get(f"/api/v1/traces/{trace_id}/effects", params={"token": " the", "by": by, "top": 5}).json()
        printed = command("explain", PROMPT, "--token", " the", "--by", by, "--effects", "--top", "5")
        assert found["rows"] == printed["rows"] and len(found["rows"]) == 5
        assert {"writer", "direct_effect", "total_effect", "note"} == set(found["rows"][0])
    refused = client.get(f"/api/v1/traces/{trace_id}/effects", params={"token": " the", "by": "source"})
    assert refused.status_code == 422


def test_an_attribution_is_what_the_command_prints(client, command):
    found = client.get(
        f"/api/v1/traces/{post(client)['id']}/attribution", params={"token": " the", "by": "memory"}
    ).json()
    close(found, command("explain", PROMPT, "--token", " the", "--by", "memory"))


def test_edits_change_the_trace_and_its_id(client, wren):
    edit = {"action": "set", "layer": 3, "index": 5, "value": 40.0}
    plain, edited = post(client), post(client, edits=[edit])
    assert plain["id"] != edited["id"] and edited["edits"] == ["memory L3M5 set to 40"]
    assert plain["stages"][1]["probabilities"][:3] == edited["stages"][1]["probabilities"][:3]
    assert plain["stages"][1]["probabilities"][3:] != edited["stages"][1]["probabilities"][3:]
    layer = client.get(f"/api/v1/traces/{edited['id']}").json()
    assert layer["without_edits"] is not None


def test_trajectories_of_chosen_tokens(client, wren):
    key = post(client)["id"]
    request = {"token": [" the", "#17"]}
    one = client.get(f"/api/v1/traces/{key}/trajectories", params={**request, "position": 2}).json()
    everywhere = client.get(f"/api/v1/traces/{key}/trajectories", params=request).json()
    trace = wren.trace(PROMPT)
    assert one["position"] == 2 and everywhere["position"] is None
    for token, here, all_of_it in zip((" the", 17), one["tokens"], everywhere["tokens"], strict=True):
        for point in ("resid_mid", "resid_post"):
            ranks, probabilities = trace.ranks_and_probabilities(token, point)
            assert all_of_it["points"][point]["ranks"] == ranks.tolist()
            close(all_of_it["points"][point]["probabilities"], probabilities.tolist())
            assert here["points"][point]["ranks"] == ranks[:, [2]].tolist()
    bad = client.get(f"/api/v1/traces/{key}/trajectories", params={**request, "position": 99})
    assert bad.status_code == 404


def test_findings_are_those_of_the_trace_and_of_the_command(client, wren, command):
    key = post(client, "The river is 30")["id"]
    found = client.get(f"/api/v1/traces/{key}").json()
    trace = wren.trace("The river is 30")
    assert [f["kind"] for f in found["findings"]][1:] == ["settled", "displaced"]
    settled = found["findings"][1]
    (event,) = (e for e in trace.events(-1) if e.kind == "saturation")
    answer = int(trace.prediction[-1])
    before, after = (trace.ranks_and_probabilities(answer, point)[1][:, -1] for point in ("resid_mid", "resid_post"))
    assert settled["layer"] == event.layer and settled["nats"] == pytest.approx(
        float((after / before)[event.layer].log()), rel=1e-4
    )
    part = found["findings"][0]
    silent = {
        "head": lambda: scale_head(part["layer"], part["index"], 0.0, "last"),
        "memory": lambda: scale_coefficient(part["layer"], part["index"], 0.0, "last"),
        "layer": lambda: (scale_ffn if part["point"] == "resid_post" else scale_attention)(part["layer"], 0.0, "last"),
    }[part["kind"]]()
    p = [float(t.logits(-1).softmax(-1)[answer]) for t in (trace, wren.trace("The river is 30", edits=silent))]
    assert part["nats"] == pytest.approx(math.log(p[0] / (1 - p[0])) - math.log(p[1] / (1 - p[1])), abs=1e-3)
    assert all(f["definition"] for f in found["findings"])
    assert client.get(f"/api/v1/traces/{key}/layers/3").json()["findings"] == []
    printed = command("trace", "The river is 30")["findings"]
    assert [f["sentence"] for f in printed] == [f["sentence"] for f in found["findings"]]


def test_moves_are_described_in_words(client, wren):
    with reading_by(wren, None):  # a page with a lens has no rank changes of the logit lens
        key = post(client, "Once upon a time there was a little")["id"]
        found = client.get(f"/api/v1/traces/{key}").json()["moves"]
    trace = wren.trace("Once upon a time there was a little")
    moves = trace.rank_changes(int(trace.prediction[-1]), -1)
    assert [(m["layer"], m["cause"], m["rank_after"]) for m in found] == [
        (m.layer, m.cause, m.rank_after) for m in moves
    ]
    first = max(moves, key=lambda move: move.rank_before - move.rank_after)
    cause = {"attention": "attention", "ffn": "FFN"}[first.cause]
    rise = f"Layer {first.layer} {cause}: ·girl rises from rank {first.rank_before:,} to {first.rank_after:,}."
    assert rise in [m["sentence"] for m in found]


def test_a_layer_shows_what_its_heads_add_and_where_candidates_came_from(client, wren):
    key = post(client)["id"]
    found = client.get(f"/api/v1/traces/{key}/layers/3", params={"heads": True, "token": " the", "alone": True}).json()[
        "layers"
    ][0]
    trace = wren.trace(PROMPT)
    shares = {
        r.index: r.contribution for r in trace.attribution(" the", by="head").rows if r.label.startswith("head L3H")
    }
    assert len(found["heads"]) == wren.n_heads
    for head in found["heads"]:
        assert head["score"] == pytest.approx(shares[head["index"]], rel=1e-3, abs=1e-5)
    assert sum(head["share"] for head in found["heads"]) == pytest.approx(1)
    for candidate, was in zip(found["after"], found["after_from"], strict=True):
        assert was == int(trace.ranks_of(candidate["id"], "resid_mid")[3, -1])
    assert client.get(f"/api/v1/traces/{key}/layers/3").json()["layers"][0]["heads"] == []


def test_a_memory_equals_the_librarys(client, wren):
    found = client.get("/api/v1/memories/4/7?top=12").json()
    assert [s["token"] for s in found["promoted"]] == wren.values.top_tokens(4, 7, 12)
    assert [s["token"] for s in found["suppressed"]] == wren.values.top_tokens(4, 7, 12, bottom=True)
    assert found["norm"] == pytest.approx(wren.values.norm(4, 7))


def test_coefficients_over_a_text(client, wren):
    found = client.post("/api/v1/memories/2/9/activations", json={"prompt": PROMPT}).json()
    close(found["coefficients"], wren.run(PROMPT, ("coefficients",))["coefficients"][2, 0, :, 9].tolist())


def test_a_text_that_the_tokenizer_changes_is_reported_with_the_place(client, wren, monkeypatch):
    request = {"text": "the First month"}
    assert client.get("/api/v1/tokenize", params=request).json()["changed"] is None
    monkeypatch.setattr(type(wren), "decode", lambda *_: "<s>the first month")
    monkeypatch.setattr(type(wren), "token_strings", lambda *_: ["the", " first", " month"])
    answer = client.get("/api/v1/tokenize", params={"text": "the First month "}).json()
    assert answer["changed"] == 0
    monkeypatch.setattr(type(wren), "decode", lambda *_: "the first month")
    assert client.get("/api/v1/tokenize", params={"text": "the First  month"}).json()["changed"] == 4


def _streamed(client, text: str) -> list[dict]:
    answer = client.post("/api/v1/traces/stream", json={"prompt": text})
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture
def typing(wren):
    """A page of its own, whose requests share a loop, and what its server has open."""
    session = ServerState(wren)
    headers = {"authorization": "Bearer its-own"}
    app = create(session, token="its-own", port=7333)
    with TestClient(app, base_url="http://127.0.0.1:7333", headers=headers) as page:
        yield page, session
    session.close()


def test_a_prompt_is_traced_while_it_is_typed(typing, wren):
    text, other = "A text that somebody types now", "A text that nobody types"
    client, session = typing
    assert client.get("/api/v1/tokenize", params={"text": text}).status_code == 200
    rest(session)
    assert [line["kind"] for line in _streamed(client, text)] == ["trace", "done"]
    assert [line["kind"] for line in _streamed(client, other)] == ["layers", "trace", "done"]
    found = _streamed(client, text)[0]
    view = json.loads(json.dumps(asdict(emergence(wren, wren.trace(text), text))))
    own = {"kind": "trace", "id": session.trace_id(text, []), "roles": None, "without_chat": False}
    close(found, {**own, **view})


@pytest.mark.parametrize("text", ["", "word " * 3000, "Once more, by a larger model"])
def test_an_expensive_prompt_is_not_traced_while_it_is_typed(typing, monkeypatch, text):
    client, session = typing
    calls: list[object] = []
    monkeypatch.setattr(session, "trace", lambda *given: calls.append(given))
    if text.endswith("model"):
        monkeypatch.setattr(traces, "MAX_IDLE_MODEL", 1)
    assert client.get("/api/v1/tokenize", params={"text": text}).status_code == 200
    rest(session)
    assert not calls


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/memories/99/0", 404, "out_of_range"),
        ("/api/v1/memories/0/999999", 404, "out_of_range"),
        ("/api/v1/memories/x/0", 422, "invalid"),
        (f"/api/v1/traces/{'0' * 24}", 422, "invalid"),
        ("/api/v1/traces/nonsense", 422, "invalid"),
        ("/api/v1/nothing", 404, "http"),
    ],
)
def test_failures_have_one_shape(client, path, status, code):
    answer = client.get(path)
    assert answer.status_code == status
    assert set(answer.json()) == {"code", "message", "why", "fix", "detail"}
    assert answer.json()["code"] == code


def test_what_cannot_be_a_prompt_is_refused(client):
    assert client.post("/api/v1/traces", json={"prompt": ""}).status_code == 422
    assert client.post("/api/v1/traces", json={"prompt": "a " * 2000}).json()["code"] == "invalid"
    assert client.post("/api/v1/traces", json={"prompt": "a", "edits": [{"action": "set"}]}).status_code == 422
    wide = {"action": "set", "layer": 0, "index": 10**6, "value": 1}
    assert client.post("/api/v1/traces", json={"prompt": "a", "edits": [wide]}).json()["code"] == "out_of_range"


def test_a_repeated_request_costs_nothing(client, session):
    first = client.post("/api/v1/traces", json={"prompt": PROMPT})
    second = client.post("/api/v1/traces", json={"prompt": PROMPT}, headers={"if-none-match": first.headers["etag"]})
    assert second.status_code == 304 and second.content == b""
    assert first.headers["content-encoding"] == "gzip"
    assert 0 < len(session.cache) < 16 * 1024 * 1024


def test_status_and_models(client, wren):
    assert client.get("/api/v1/status").json()["model"] == "wren"
    model = client.get("/api/v1/models").json()["models"][0]
    assert model["n_layers"] == wren.n_layers and model["can"]["memories"] and not model["can"]["index"]


def test_a_streamed_trace_comes_layer_by_layer_and_ends_whole(client, wren):
    text = " ".join(["She put the book on the table ."] * 12)
    answer = client.post("/api/v1/traces/stream", json={"prompt": text})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["kind"] for line in lines[-2:]] == ["trace", "done"]
    parts, whole = lines[:-2], lines[-2]
    points = [s["point"] for part in parts for s in part["stages"]]
    assert points == sorted(points, reverse=True) and len(parts) > 2, "after the FFNs first: what the grid shows"
    for stage in whole["stages"]:
        of = [(part, s) for part in parts for s in part["stages"] if s["point"] == stage["point"]]
        rows = [row for _, s in reversed(of) for row in s["ids"]]
        layers = [n for part, _ in reversed(of) for n in part["layers"]]
        assert layers == list(range(wren.n_layers))[-len(rows) :] and rows == stage["ids"][-len(rows) :]
        assert of[0][0]["layers"][-1] == wren.n_layers - 1, "the top layers come first"
        assert len(rows) == wren.n_layers or stage["point"] == "resid_mid", (
            "but for the last of these, sent with the whole"
        )
        assert {str(i) for row in rows[-1] for i in row} <= of[0][0]["texts"].keys()
    assert whole["events"] and {k: v for k, v in whole.items() if k != "kind"} == post(client, text)
    again = client.post("/api/v1/traces/stream", json={"prompt": text}).text.splitlines()
    assert len(again) == 2 and json.loads(again[0]) == whole
    answer = client.post("/api/v1/traces/stream", json={"prompt": "She put the book on"})
    short = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["kind"] for line in short] == ["layers", "trace", "done"]
    assert short[0]["stages"] == short[1]["stages"][1:], "the grid of a short prompt comes before its events"


def test_entropy_and_divergence_of_every_cell(client, wren):
    found = post(client)
    got = client.get(f"/api/v1/traces/{found['id']}/spread").json()
    entropy, divergence = wren.trace(PROMPT).entropy_and_kl("resid_mid")
    close(got["resid_mid"], {"entropy": entropy.tolist(), "divergence": divergence.tolist()})
    assert set(got) == {"resid_mid", "resid_post"} and max(got["resid_post"]["divergence"][-1]) < 1e-4
