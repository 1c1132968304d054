"""Concepts: memories with one label."""

from __future__ import annotations

import pytest

from unembed.annotation.rules import NONE


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
    assert found["by_layer"] == [1, 0, 1, *[0] * (wren.n_layers - 3)] and found["agreement"] == 0.5
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
def test_what_cannot_be_merged_is_not_stored(indexed, name, author, member, status):
    members = [{"layer": 0, "index": 2}, dict(zip(("layer", "index"), member, strict=True))]
    answer = indexed.post("/api/v1/concepts", json={"name": name, "author": author, "members": members})
    assert answer.status_code == status and answer.json()["message"]
    assert "fish" not in {one["name"] for one in indexed.get("/api/v1/concepts").json()["concepts"]}


def test_joining_needs_an_index_and_the_token(client, stranger):
    body = {"name": "fish", "author": "ann", "members": [{"layer": 0, "index": 1}]}
    assert client.post("/api/v1/concepts", json=body).status_code == 409
    assert stranger.post("/api/v1/concepts", json=body).status_code == 401
