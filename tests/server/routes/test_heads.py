"""Heads: the library's circuits and the model's own patterns."""

from __future__ import annotations

import base64
import itertools
import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import unembed
from unembed.attention import heads_view
from unembed.attention.behaviour.head_scores import ROLE
from unembed.attention.behaviour.value_weighted_attention import POINTS, contribution_norms
from unembed.attention.text.head_examples import HeadExamples, Progress, examples_of_heads
from unembed.attention.text.output_words import raised_tokens
from unembed.names import HeadAddress

PROMPT = "The first month of the year is"
LINES = [
    "The first month of the year is January .",
    "She put the book on the table and left the house .",
    "The capital of France is Paris , and the capital of Italy is Rome .",
]


def test_scores_are_the_librarys(client, wren):
    found = client.get("/api/v1/heads?sequences=2&length=8").json()
    scores = unembed.circuits(wren).head_scores(0, n_sequences=2, length=8)
    for kind, rows in found["scores"].items():
        assert [score for row in rows for score in row] == pytest.approx(
            scores[kind].flatten().tolist(), rel=1e-4, abs=1e-6
        )
        assert kind in found["definitions"]


def test_a_head_is_its_circuit(client, wren):
    found = client.get("/api/v1/heads/3/6", params={"source": " year", "destination": " month", "top": 5}).json()
    circuits = unembed.circuits(wren)
    hidden = wren.unlisted  # tokens never learned, and bytes of characters
    ov = circuits.ov_full(3, 6).rows([wren.single_token(" year")])[0]
    assert hidden[ov.topk(5).indices].any()
    assert [s["id"] for s in found["raises"]] == ov.masked_fill(hidden, -torch.inf).topk(5).indices.tolist()
    lowest = ov.masked_fill(hidden, torch.inf).topk(5, largest=False)
    assert [s["id"] for s in found["lowers"]] == lowest.indices.tolist()
    qk = circuits.qk_full(3, 6).rows([wren.single_token(" month")])[0].masked_fill(hidden, -torch.inf)
    assert [s["score"] for s in found["looks_for"]] == pytest.approx(qk.topk(5).values.tolist(), rel=1e-4)
    read = client.get("/api/v1/heads/3/2/partners").json()["partners"]
    assert read and all(p["layer"] < 3 for p in read)


def test_other_words_that_a_head_raises_are_those_of_the_command(client, wren):
    found = client.get("/api/v1/heads/5/2/raised", params={"top": 6}).json()
    circuits = unembed.circuits(wren)
    own = raised_tokens(circuits, HeadAddress(5, 2), circuits.known_basis(None), 6)
    assert own is not None and found["sources"] == own.sources and found["raises"] == own.raises
    assert found["text"] == own.text and found["entries"] == pytest.approx(own.entries, rel=1e-4)


def test_a_pattern_is_the_models_and_its_rows_add_up_to_one(client, wren):
    found = client.post("/api/v1/heads/4/1/attention", json={"prompt": PROMPT}).json()
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


def test_effects_are_the_attributions_rows(client, wren):
    found = client.post(
        "/api/v1/heads/prompt", json={"prompt": PROMPT, "token": " year", "position": 3, "alone": True}
    ).json()
    attribution = wren.trace(PROMPT).attribution(" year", 3, by="head")
    assert found["target"]["token"] == " year" and found["logit"] == pytest.approx(attribution.logit)
    expected = [row.contribution for row in attribution.rows if row.label.startswith("head ")]
    assert [x for row in found["scores"]["effect"] for x in row] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    pattern = wren.run(PROMPT, ("pattern",)).at("pattern", 2)[0, 3]
    assert found["scores"]["own"][2][3] == pytest.approx(float(pattern.diagonal().mean()), rel=1e-4)
    spread = [float(-(row[: i + 1] * row[: i + 1].log()).sum()) / math.log(i + 1) for i, row in enumerate(pattern) if i]
    assert found["scores"]["entropy"][2][3] == pytest.approx(sum(spread) / len(spread), rel=1e-4)
    assert "position 3" in found["definitions"]["effect"]


def test_what_a_head_writes_here_is_its_output_in_the_models_own_run(client, wren):
    body = {"prompt": PROMPT, "position": 5, "token": " year", "alone": True}
    found = client.post("/api/v1/heads/4/1/here", json=body).json()
    assert found["basis"] == "raw"
    trace = wren.trace(PROMPT)
    z = wren.run(PROMPT, ("z",)).at("z", 4)[0, 5].double()
    each = torch.einsum("hk,hkd->hd", z, wren.weights.W_O[4].double())
    assert found["update"]["norm"] == pytest.approx(float(each[1].norm()), rel=1e-5)
    assert found["update"]["share"] == pytest.approx(float(each[1].norm() / each.norm(dim=-1).sum()), rel=1e-5)
    row = next(row for row in trace.attribution(" year", 5, by="head").rows if (row.layer, row.index) == (4, 1))
    assert found["update"]["score"] == pytest.approx(row.contribution, rel=1e-4, abs=1e-6)
    assert found["position"] == 5 and found["target"]["token"] == " year" and found["against"] is None
    assert len(found["update"]["top_tokens"]) == len(found["update"]["bottom_tokens"]) == 10
    assert client.post("/api/v1/heads/4/1/here", json={**body, "position": 99}).status_code == 404


def test_without_a_token_the_prediction_is_meant(client, wren):
    found = client.post("/api/v1/heads/prompt", json={"prompt": PROMPT}).json()
    assert found["target"]["id"] == int(wren.trace(PROMPT).prediction[-1])
    assert client.post("/api/v1/heads/prompt", json={"prompt": PROMPT, "position": 99}).status_code == 404


def test_a_score_is_the_sum_of_its_terms(client, wren):
    found = client.post("/api/v1/heads/2/3/terms", json={"prompt": PROMPT, "destination": 6, "source": 4}).json()
    terms = unembed.circuits(wren).score_terms(PROMPT, 2, 3)
    assert found["score"] == pytest.approx(float(terms.scores[6, 4]), rel=1e-4)
    assert found["terms"] == pytest.approx({k: float(v[6, 4]) for k, v in terms.terms.items()}, rel=1e-4, abs=1e-6)
    assert sum(found["terms"].values()) == pytest.approx(found["score"], rel=1e-3)
    assert any("position" in name for name in found["terms"])
    request = {"prompt": PROMPT, "destination": 2, "source": 4}
    assert client.post("/api/v1/heads/2/3/terms", json=request).status_code == 404


def largest(wren, text, layer, head):
    """Where a head carries most on a text, sources after the first: value, destination, source; from the weights."""
    run = wren.run(text, ("pattern", "resid_pre"))
    read = wren.structure.blocks[layer].attention.pre_norm.module(run.at("resid_pre", layer)[0]).detach()
    v = read @ wren.weights.W_V[layer][head] + wren.weights.b_V[layer][head]
    carried = run.at("pattern", layer)[0, head] * (v @ wren.weights.W_O[layer][head]).norm(dim=-1)
    at = int(carried[:, 1:].argmax())
    dst, src = at // (len(carried) - 1), at % (len(carried) - 1) + 1
    return float(carried[dst, src]), dst, src


def examples(page, layer, head, **request):
    """The lines of an answer: progress, and the examples."""
    answer = page.post(f"/api/v1/heads/{layer}/{head}/examples", json=request)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[-1] == {"kind": "done"}
    return lines[:-2], lines[-2]


def test_examples_are_where_the_head_carries_most_in_each_window(indexed, wren, monkeypatch):
    progress, found = examples(indexed, 3, 2)
    assert [line["done"] for line in progress] == list(range(1, 7)) and found["windows"] == 6
    assert found["tokens"] == 2 * sum(len(wren.encode(line)[0]) for line in LINES)
    assert found["corpus"] == "the index's corpus" and "times the length" in found["measure"]
    expected = sorted((largest(wren, line, 3, 2) for line in LINES * 2), reverse=True)
    assert [e["value"] for e in found["examples"]] == pytest.approx([value for value, _, _ in expected], rel=1e-4)
    for example in found["examples"]:
        line = (LINES * 2)[example["document"]]
        value, dst, src = largest(wren, line, 3, 2)
        assert (example["position"], example["source"]) == (dst, src)
        assert example["tokens"] == wren.token_strings(wren.encode(line)[0])[: dst + 1]
        assert example["carried"][src] == example["value"] == pytest.approx(value, rel=1e-4)
        weights = wren.run(line, "pattern").at("pattern", 3)[0, 2]
        assert example["weight"] == pytest.approx(float(weights[dst, src]), rel=1e-4)
    monkeypatch.setattr("unembed.attention.text.head_examples.run", None)  # one reading has served the layer
    progress, other = examples(indexed, 3, 7)
    assert progress == [] and other["head"] == 7
    best = max(largest(wren, line, 3, 7)[0] for line in LINES)
    assert other["examples"][0]["value"] == pytest.approx(best, rel=1e-4)


def test_a_newer_search_for_examples_cancels_the_one_under_way(indexed, monkeypatch):
    begun, ended = threading.Event(), threading.Event()

    def endless(lm, pieces, layer, windows, length):
        if layer != 1:
            yield from examples_of_heads(lm, pieces, layer, windows, length)
            return
        try:
            for done in itertools.count(1):
                begun.set()
                yield Progress(done, done + 1)
                time.sleep(0.002)
        finally:
            ended.set()

    monkeypatch.setattr("unembed.server.routes.heads.examples_of_heads", endless)
    headers = {"x-client": "a page examples"}  # and numbers of windows for which no answer is kept
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(indexed.post, "/api/v1/heads/1/0/examples", json={"windows": 9}, headers=headers)
        assert begun.wait(20)
        newer = indexed.post("/api/v1/heads/2/0/examples", json={"windows": 7}, headers=headers)
        assert newer.text.splitlines()[-1] == '{"kind":"done"}'
        assert ended.wait(20)
        last = json.loads(first.result(20).text.splitlines()[-1])
    assert (last["kind"], last["code"]) == ("error", "superseded")


def test_an_example_as_a_prompt_gives_its_number(client, wren):
    _, found = examples(client, 4, 1, windows=12, length=48)
    assert found["corpus"] == "the text that ships with the package" and found["windows"] == 12
    for example in found["examples"]:
        ids = wren.encode(example["prompt"])
        assert wren.token_strings(ids[0])[: example["position"] + 1] == example["tokens"]
        norms = contribution_norms(wren, wren.run(ids, POINTS), 4)[1]
        assert example["value"] == pytest.approx(float(norms[example["position"], example["source"]]), rel=1e-4)


def test_examples_of_no_head(client):
    assert client.post("/api/v1/heads/3/8/examples", json={}).status_code == 404
    assert client.post("/api/v1/heads/3/1/examples", json={"windows": 1000}).status_code == 422


def test_special_tokens_in_front_are_read_but_neither_shown_nor_sources(wren, index, monkeypatch):
    plain = type(wren).encode
    monkeypatch.setattr(type(wren), "encode", lambda self, text: torch.cat([torch.tensor([[0]]), plain(self, text)], 1))
    monkeypatch.setattr("unembed.attention.text.head_examples.leading", lambda _: [0])
    found = [one for one in examples_of_heads(wren, index.text_pieces(), 2) if isinstance(one, HeadExamples)][5]
    assert found.tokens == 2 * sum(len(plain(wren, line)[0]) for line in LINES)
    for example in found.examples:
        line = (LINES * 2)[example.document]
        carried = contribution_norms(wren, wren.run(wren.encode(line), POINTS), 2)[5]
        at = int(carried[:, 1:].argmax())
        dst, src = at // (len(carried) - 1), at % (len(carried) - 1) + 1
        assert (example.position, example.source) == (dst, src - 1)
        assert example.tokens == wren.token_strings(plain(wren, line)[0])[:dst]
        assert example.prompt is not None and line.startswith(example.prompt)


def test_the_best_induction_head_looks_where_the_stripe_is(client, wren):
    scores = torch.tensor(client.get("/api/v1/heads").json()["scores"]["induction"])
    layer, head = divmod(int(scores.argmax()), wren.n_heads)
    found = client.get(f"/api/v1/heads/{layer}/{head}/induction?length=12&seed=3").json()
    tokens, length = found["tokens"], found["length"]
    front = len(tokens) - 2 * length
    assert tokens[front : front + length] == tokens[front + length :]
    assert [src for _, src in found["stripe"]] == [dst - length + 1 for dst in range(front + length, len(tokens))]
    weights = [found["weights"][dst][src] for dst, src in found["stripe"]]
    assert found["score"] == pytest.approx(sum(weights) / length) and found["score"] > 3 * found["chance"]
    assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in found["weights"])
    text = client.get(f"/api/v1/heads/{layer}/{head}/induction", params={"text": "She put the book"}).json()
    assert text["tokens"][-4:] == wren.token_strings(wren.encode("She put the book")[0])
    assert client.get(f"/api/v1/heads/{layer}/{head}/induction", params={"text": "a"}).status_code == 422


@pytest.mark.parametrize("text", [PROMPT, " ".join(["one two three"] * 20)])
def test_small_pictures_are_the_largest_weights_of_blocks(client, wren, text):
    found = client.post("/api/v1/heads/patterns", json={"prompt": text}).json()
    weights = wren.run(text, ("pattern",))
    n = found["n_tokens"]
    assert n == len(wren.encode(text)[0])
    assert found["side"] == min(n, 24)
    assert [len(row) for row in found["patterns"]] == [wren.n_heads] * wren.n_layers
    side = found["side"]
    for layer, head in ((0, 0), (3, 5), (5, 7)):
        levels = base64.b64decode(found["patterns"][layer][head])
        whole = weights.at("pattern", layer)[0, head]
        for row in range(side):
            for column in range(side):
                # A block begins at floor(i n / side) and ends at ceil((i + 1) n / side).
                rows = slice(row * n // side, -(-(row + 1) * n // side))
                columns = slice(column * n // side, -(-(column + 1) * n // side))
                assert levels[row * side + column] == pytest.approx(255 * float(whole[rows, columns].max()), abs=0.51)


def test_a_heads_sources_add_up_to_its_effect_on_the_target(client, wren):
    body = {"prompt": PROMPT, "position": 3, "token": " the", "alone": True}
    effects = client.post("/api/v1/heads/prompt", json=body).json()["scores"]["effect"]
    whole = wren.trace(PROMPT).attribution(" the", 3, by="source")
    for layer, head in ((0, 1), (2, 3), (5, 7)):
        found = client.post(f"/api/v1/heads/{layer}/{head}/sources", json=body).json()
        assert len(found["contributions"]) == 4
        assert sum(found["contributions"]) == pytest.approx(effects[layer][head], abs=2e-5)
        of_source = {r.source: r.contribution for r in whole.rows if (r.layer, r.index) == (layer, head)}
        assert found["contributions"] == pytest.approx([of_source[i] for i in range(4)], abs=1e-6)
        assert found["target"]["token"] == " the" and found["against"] is None
        logit = float(wren.run(PROMPT, ()).logits[0, 3, found["target"]["id"]])
        assert found["logit"] == pytest.approx(logit, abs=1e-4)


def test_heads_explain_the_prediction_against_the_runner_up_unless_another_question_is_put(client, wren):
    trace = wren.trace(PROMPT)
    first, second = trace.logits(-1).topk(2).indices.tolist()
    for body, target, against in (
        ({}, first, second),
        ({"against": " house"}, first, wren.single_token(" house")),
        ({"token": f"#{second}"}, second, first),
        ({"alone": True}, first, None),
    ):
        found = client.post("/api/v1/heads/prompt", json={"prompt": PROMPT, **body}).json()
        assert found["target"]["id"] == target
        assert (found["against"] or {"id": None})["id"] == against
        assert [c["id"] for c in found["prediction"][:2]] == [first, second]
        logits = wren.run(PROMPT, ()).logits[0, -1]
        expected = logits[target] - (logits[against] if against is not None else 0)
        assert found["logit"] == pytest.approx(float(expected), abs=1e-4)
        whole = trace.attribution(target, -1, against, by="head")
        effects = {(r.layer, r.index): r.contribution for r in whole.rows if r.label.startswith("head ")}
        for (layer, head), effect in effects.items():
            assert found["scores"]["effect"][layer][head] == pytest.approx(effect, abs=1e-5)
        sources = client.post("/api/v1/heads/4/1/sources", json={"prompt": PROMPT, **body}).json()
        assert sum(sources["contributions"]) == pytest.approx(effects[4, 1], abs=2e-5)


def test_what_heads_move_is_their_contribution_from_the_same_word_in_the_prompt(client, wren):
    body = {"prompt": "Mary and John went home . John saw Mary and", "token": " John", "alone": True}
    found = client.post("/api/v1/heads/prompt", json=body).json()
    trace = wren.trace(body["prompt"])
    at = [i for i, text in enumerate(trace.token_strings) if text.strip() == "John"]
    assert len(at) == 2 and [one["position"] for one in found["copied"]] == at
    rows = trace.attribution(" John", -1, by="source").rows
    expected = torch.zeros(wren.n_layers, wren.n_heads)
    for row in rows:
        if row.source in at and row.label.startswith("head "):
            expected[row.layer, row.index] += row.contribution
    assert float(expected.abs().max()) > 0.01
    torch.testing.assert_close(torch.tensor(found["scores"]["moved"]), expected, rtol=1e-3, atol=1e-5)
    absent = client.post("/api/v1/heads/prompt", json=body | {"token": " year"}).json()
    assert absent["copied"] == [] and "moved" not in absent["scores"]


def test_a_head_is_named_by_its_largest_score_as_in_the_terminal(client):
    found = client.get("/api/v1/heads").json()
    named = {}
    for layer, row in enumerate(found["roles"]):
        for head, role in enumerate(row):
            kinds = ("previous_token", "duplicate_token", "induction")
            score = {k: found["scores"][k][layer][head] for k in kinds}
            best = max(score, key=score.__getitem__)
            assert role == (best if score[best] >= found["role_threshold"] == ROLE else None)
            if role:
                named.setdefault(role, []).append((layer, head))
    assert (3, 0) in named["induction"]


def test_heads_of_random_weights_have_no_names(wren):
    torch.manual_seed(0)
    random = unembed.load(type(wren.hf)(wren.hf.config).eval(), tokenizer=wren.tokenizer)
    roles = heads_view(unembed.circuits(random), 8, 24, 0).roles
    assert {role for row in roles for role in row} == {None}
