"""Concepts over labels, how large coefficients usually are, and a head on a text said twice."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from unembed.concepts.annotation.queue import NONE


def test_a_concept_is_all_memories_of_a_name(indexed, wren):
    given = [(0, 1, "Colours", "ann"), (2, 7, "colours", "ann"), (2, 7, "months", "bob"), (2, 9, NONE, "bob")]
    for layer, index, label, author in given:
        body = {"layer": layer, "index": index, "label": label, "author": author}
        assert indexed.post("/api/v1/labels", json=body).status_code == 200
    listed = {one["name"]: one for one in indexed.get("/api/v1/concepts").json()["concepts"]}
    assert listed["colours"] == {"name": "colours", "members": 2, "authors": ["ann"]} and NONE not in listed
    found = indexed.get("/api/v1/concepts/COLOURS").json()
    assert [(m["layer"], m["index"], m["authors"], m["annotators"]) for m in found["members"]] == [
        (0, 1, ["ann"], 1),
        (2, 7, ["ann"], 2),
    ]
    assert found["by_layer"] == [1, 0, 1, 0, 0, 0] and found["agreement"] == 0.5
    tops = [set(wren.values.top_tokens(n, i, 30)) for n, i in ((0, 1), (2, 7))]
    assert {token for token, n in found["tokens"]} == tops[0] & tops[1]
    missing = indexed.get("/api/v1/concepts/nothing%2Fsuch")
    assert missing.status_code in (404, 422) and missing.json()["message"]


def test_memories_join_a_concept_together(indexed):
    def ask(name, author, *members):
        listed = [{"layer": layer, "index": index} for layer, index in members]
        return indexed.post("/api/v1/concepts", json={"name": name, "author": author, "members": listed})

    assert len(ask("rivers / seas", "ann", (0, 31), (1, 41), (1, 41)).json()["ids"]) == 2
    again = ask("Rivers / Seas", "ann", (1, 41), (2, 51)).json()
    assert len(again["ids"]) == 1 and again["known"] == 1
    assert len(ask("rivers / seas", "bob", (1, 41)).json()["ids"]) == 1
    members = indexed.get("/api/v1/concepts/rivers%20%2F%20seas").json()["members"]
    assert [(m["layer"], m["index"], m["authors"]) for m in members] == [
        (0, 31, ["ann"]),
        (1, 41, ["ann", "bob"]),
        (2, 51, ["ann"]),
    ]
    assert indexed.post(f"/api/v1/labels/{again['ids'][0]}/withdraw", json={"author": "ann"}).status_code == 200
    assert len(indexed.get("/api/v1/concepts/rivers%20%2F%20seas").json()["members"]) == 2


@pytest.mark.parametrize(
    ("name", "author", "member", "status"),
    [
        (" ", "ann", (0, 1), 422),
        ("fish", " ", (0, 1), 422),
        ("fish", "ann", (0, 10**5), 404),
        (NONE, "ann", (0, 1), 422),
    ],
)
def test_of_what_cannot_join_nothing_is_kept(indexed, name, author, member, status):
    members = [{"layer": 0, "index": 2}, dict(zip(("layer", "index"), member, strict=True))]
    answer = indexed.post("/api/v1/concepts", json={"name": name, "author": author, "members": members})
    assert answer.status_code == status and answer.json()["message"]
    assert "fish" not in {one["name"] for one in indexed.get("/api/v1/concepts").json()["concepts"]}


def test_joining_needs_an_index_and_the_token(client, stranger):
    body = {"name": "fish", "author": "ann", "members": [{"layer": 0, "index": 1}]}
    assert client.post("/api/v1/concepts", json=body).status_code == 409
    assert stranger.post("/api/v1/concepts", json=body).status_code == 401


def test_coefficients_of_the_whole_small_corpus(indexed, index, wren):
    found = indexed.get("/api/v1/memories/2/9/coefficients").json()
    start = np.asarray(index.passages.start)
    m = []
    for a, b in itertools.pairwise(start):
        ids = torch.tensor(np.asarray(index.passages.token[a:b])).long()[None]
        m += wren.run(ids, "coefficients", logits=False).at("coefficients", 2)[0, :, 9].tolist()
    counts, edges = np.histogram(m, bins=len(found["counts"]))
    assert found["sampled"] == found["tokens"] == len(m) and found["edges"] == pytest.approx(edges.tolist(), abs=1e-4)
    assert sum(abs(a - b) for a, b in zip(found["counts"], counts, strict=True)) <= 4  # values on a bin's edge
    assert found["statistics"]["largest"] == pytest.approx(max(m), rel=1e-4)


def test_coefficients_need_an_index(client):
    assert client.get("/api/v1/memories/2/9/coefficients").status_code == 409


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
