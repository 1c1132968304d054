"""Labels: appended, withdrawn, carried in files, and the annotators' queue."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch

from unembed.annotation.queue import annotation_queue, definitions, tokens_of_items
from unembed.annotation.rules import NONE


def test_a_label_is_stored_and_withdrawn(indexed, index):
    number = indexed.post(
        "/api/v1/labels", json={"layer": 1, "index": 3, "label": "months", "author": "ann", "confidence": 4}
    ).json()["id"]
    rows = indexed.get("/api/v1/labels?layer=1&index=3").json()["rows"]
    assert [(r["label"], r["author"], r["notes"]["confidence"]) for r in rows] == [("months", "ann", 4)]
    assert index.labels(1, 3).to_dict()["rows"] == rows
    assert indexed.post(f"/api/v1/labels/{number}/withdraw", json={"author": "ann"}).status_code == 200
    assert indexed.get("/api/v1/labels?layer=1&index=3").json()["rows"] == []
    assert indexed.post(f"/api/v1/labels/{number}/withdraw", json={"author": "ann"}).status_code == 422


def test_labels_of_two_pages_are_both_stored(indexed):
    for author in ("ann", "bob"):
        indexed.post("/api/v1/labels", json={"layer": 1, "index": 4, "label": "the same", "author": author})
    assert len(indexed.get("/api/v1/labels?layer=1&index=4").json()["rows"]) == 2


def test_the_queue_is_blind_and_the_same_for_a_seed(indexed, wren):
    found = indexed.get("/api/v1/annotations/queue?what=value&per_layer=2&random_per_layer=1").json()
    assert found["items"] == 3 * wren.n_layers and found["rules"]["at_least"] == 4
    items = annotation_queue(wren, "value", per_layer=2, random_per_layer=1)
    assert items == annotation_queue(wren, "value", per_layer=2, random_per_layer=1)
    assert sum(item.what == "random value" for item in items) == wren.n_layers
    for item in items[:6]:
        shown = indexed.get(f"/api/v1/annotations/queue/{item.number}?per_layer=2&random_per_layer=1").json()
        assert set(shown) == {"number", "tokens"} and len(shown["tokens"]) == 30
        if item.what == "value":
            assert [t["token"] for t in shown["tokens"]] == wren.values.top_tokens(item.layer, item.index, 30)


@pytest.mark.parametrize("what", ["value", "key"])
def test_items_whose_tokens_are_words_most_alike_come_first(indexed, index, wren, what):
    settings = {"what": what, "per_layer": 2, "random_per_layer": 1}
    items = annotation_queue(wren, what, per_layer=2, random_per_layer=1)
    rows = wren.weights.W_E.double()
    rows = rows - rows.mean(0)
    common = torch.linalg.svd(rows[:: max(1, len(rows) // 1024)], full_matrices=False).Vh[:2]
    rows = torch.nn.functional.normalize(rows - rows @ common.T @ common, dim=-1)

    def alike(item) -> float:
        if what == "value":
            ids = tokens_of_items(wren, [item])[0].tolist()
        else:
            ids = [wren.single_token(text) for text in index.triggers(item.layer, item.index, 25)["token"]]
        pairs = [float(rows[a] @ rows[b]) for i, a in enumerate(ids) for j, b in enumerate(ids) if i != j]
        words = [text is not None for text in definitions(wren.token_strings(ids))]
        return sum(pairs) / max(len(pairs), 1) * sum(words) / max(len(words), 1)

    numbers = indexed.get("/api/v1/annotations/order", params=settings).json()["numbers"]
    assert sorted(numbers) == [item.number for item in items]
    found = [alike(items[number]) for number in numbers]
    assert all(first >= second - 1e-5 for first, second in pairwise(found))


def test_annotations_are_stored_and_agreement_is_measured(indexed, index, wren):
    settings = {"what": "value", "per_layer": 2, "random_per_layer": 1}
    for author, members in (("ann", [0, 1, 2, 3]), ("bob", [0, 1, 2, 3, 4])):
        pattern = {"label": "words of time", "kind": "semantic", "members": members}
        answer = indexed.post(
            "/api/v1/annotations", json={**settings, "number": 0, "author": author, "patterns": [pattern]}
        )
        assert answer.status_code == 200, answer.text
        indexed.post("/api/v1/annotations", json={**settings, "number": 1, "author": author})
    done = indexed.get("/api/v1/annotations/queue", params={**settings, "author": "ann"}).json()["done"]
    assert done == [0, 1]
    item = annotation_queue(wren, "value", per_layer=2, random_per_layer=1)[1]
    assert index.labels(item.layer, item.index).to_dict()["rows"][-1]["label"] == NONE
    questions = {q["question"]: q for q in indexed.get("/api/v1/annotations/agreement").json()["questions"]}
    assert questions["is there a pattern"]["pairs"] == {"ann and bob": 1.0}
    members = questions["does this token or prefix belong to one"]["pairs"]["ann and bob"]
    # 60 places: 4 agreed in, 55 agreed out, 1 not.
    observed, expected = 59 / 60, (4 * 5 + 56 * 55) / 3600
    assert members == pytest.approx((observed - expected) / (1 - expected))


def test_too_few_members_are_refused(indexed):
    pattern = {"label": "x", "kind": "semantic", "members": [0, 1]}
    answer = indexed.post(
        "/api/v1/annotations", json={"what": "value", "number": 0, "author": "a", "patterns": [pattern]}
    )
    assert answer.status_code == 422 and "a pattern needs 4" in answer.json()["why"]


def test_export_and_import_are_inverse_and_repeatable(indexed, wren, tmp_path):
    from starlette.testclient import TestClient

    import unembed
    from tests.server.conftest import TOKEN
    from unembed.server.app import create
    from unembed.server.state import ServerState

    indexed.post("/api/v1/labels", json={"layer": 0, "index": 1, "label": "<b>&\u202e", "author": "ann"})
    text = indexed.get("/api/v1/annotations/export").text
    other = unembed.Index.build(wren, ["The first month of the year is January ."], tmp_path / "other", top=3)
    session = ServerState(wren, other)
    page = TestClient(
        create(session, token=TOKEN, port=1), base_url="http://localhost", headers={"authorization": f"Bearer {TOKEN}"}
    )
    lines = text.splitlines()
    assert page.post("/api/v1/annotations/import", json={"jsonl": text}).json() == {"added": len(lines), "known": 0}
    assert page.post("/api/v1/annotations/import", json={"jsonl": text}).json() == {"added": 0, "known": len(lines)}
    brought = [json.loads(line) for line in page.get("/api/v1/annotations/export").text.splitlines()]
    for old, new in zip(map(json.loads, lines), brought, strict=True):
        assert {k: old[k] for k in ("layer", "index", "kind", "label", "author")} == {
            k: new[k] for k in ("layer", "index", "kind", "label", "author")
        }
    for bad in ("{}", "[" * 100_000, '{"layer": 1, "index": 2, "label": "x", "author": "a", "notes": [1]}'):
        assert page.post("/api/v1/annotations/import", json={"jsonl": bad}).json()["code"] == "invalid"
    session.close()


def test_a_head_and_a_memory_of_one_place_keep_their_labels_apart(indexed, index, wren):
    for kind, label in (("memory", "months"), ("head", "looks back")):
        given = {"layer": 2, "index": 3, "label": label, "author": "hal", "kind": kind, "tags": ["t"]}
        assert indexed.post("/api/v1/labels", json=given).status_code == 200
    for of, labels in (("memory", ["months"]), ("head", ["looks back"]), ("all", ["months", "looks back"])):
        rows = indexed.get(f"/api/v1/labels?layer=2&index=3&of={of}").json()["rows"]
        assert [row["label"] for row in rows if row["author"] == "hal"] == labels
        assert rows == index.labels(2, 3, of=of).to_dict()["rows"]
    assert "looks back" not in [row["label"] for row in index.labels().rows()]
    assert "looks back" not in [one["name"] for one in indexed.get("/api/v1/concepts").json()["concepts"]]
    hits = indexed.get("/api/v1/memories/search", params={"q": 'name:"looks back"'}).json()["hits"]
    assert [(h["of"], h["layer"], h["index"], h["top_tokens"]) for h in hits] == [("head", 2, 3, [])]
    hits = indexed.get("/api/v1/memories/search", params={"q": "name:months"}).json()["hits"]
    assert ("memory", 2, 3) in [(h["of"], h["layer"], h["index"]) for h in hits]
    number = index.labels(2, 3, of="head").columns["id"][-1]
    assert indexed.post(f"/api/v1/labels/{number}/withdraw", json={"author": "hal"}).status_code == 200
    assert [row["label"] for row in index.labels(2, 3, of="all").rows() if row["author"] == "hal"] == ["months"]


def test_no_head_no_label(indexed, wren):
    given = {"layer": 2, "index": wren.n_heads, "label": "x", "author": "hal", "kind": "head"}
    assert indexed.post("/api/v1/labels", json=given).status_code == 404
    assert indexed.get(f"/api/v1/labels?layer=2&index={wren.n_heads}&of=head").status_code == 404
    assert indexed.get("/api/v1/labels?of=heads").status_code == 422
    line = json.dumps({"layer": 2, "index": wren.n_heads, "label": "x", "author": "hal", "kind": "head"})
    assert indexed.post("/api/v1/annotations/import", json={"jsonl": line}).status_code == 404


def test_an_import_is_stored_completely_or_not_at_all(indexed, index):
    line = {"layer": 1, "index": 5, "label": "half a file", "author": "ivo"}
    for bad, status in (("{", 422), (json.dumps({**line, "index": 10**6}), 404)):
        answer = indexed.post("/api/v1/annotations/import", json={"jsonl": f"{json.dumps(line)}\n{bad}"})
        assert answer.status_code == status
    assert not [row for row in index.labels(1, 5).rows() if row["author"] == "ivo"]
    twice = f"{json.dumps(line)}\n" * 2
    assert indexed.post("/api/v1/annotations/import", json={"jsonl": twice}).json() == {"added": 1, "known": 1}


@pytest.mark.parametrize("notes", [{"pattern": None, "members": 5}, {"pattern": [1], "members": []}, {"made": [1]}])
def test_notes_that_this_package_reads_are_checked_when_they_are_imported(indexed, notes):
    line = {"layer": 0, "index": 1, "label": "wrong notes", "author": "ivo", "kind": "key", "notes": notes}
    answer = indexed.post("/api/v1/annotations/import", json={"jsonl": json.dumps(line)})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    line["notes"] = {"pattern": "a line\u2028separator", "mine": {"and": [1]}}
    answer = indexed.post("/api/v1/annotations/import", json={"jsonl": json.dumps(line, ensure_ascii=False)})
    assert answer.status_code == 200
    exported = map(json.loads, indexed.get("/api/v1/annotations/export").text.splitlines())
    assert [row["notes"]["mine"] for row in exported if row["label"] == "wrong notes"] == [{"and": [1]}]
    assert indexed.get("/api/v1/annotations/agreement").status_code == 200


def test_labels_of_heads_are_exported_and_imported(indexed, index):
    number = index.add_label(4, 1, "carries names", author="ida", kind="head")
    lines = indexed.get("/api/v1/annotations/export").text.splitlines()
    mine = next(line for line in lines if json.loads(line)["label"] == "carries names")
    index.withdraw_label(number, author="ida")
    assert indexed.post("/api/v1/annotations/import", json={"jsonl": mine}).json() == {"added": 1, "known": 0}
    assert indexed.post("/api/v1/annotations/import", json={"jsonl": mine}).json() == {"added": 0, "known": 1}
    assert [row["kind"] for row in index.labels(4, 1, of="head").rows()] == ["head"]
    assert not [row for row in index.labels(4, 1).rows() if row["label"] == "carries names"]
