"""Edits kept under a name, in the index's folder or until the server stops."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from unembed.server.app import create
from unembed.server.state import ServerState
from unembed.server.store import MAX_PRESETS, Presets

EDITS = [
    {"target": "coefficient", "action": "set", "layer": 3, "index": 5, "value": 9.5, "positions": "last", "on": True},
    {"target": "head", "action": "scale", "layer": 1, "index": 2, "value": 0.0, "positions": [0, 2], "on": False},
]


@pytest.fixture(autouse=True)
def _none_yet(indexed, client):
    """Tests of other files, with made-up requests among them, share these servers."""
    for page in (indexed, client):
        for one in page.get("/api/v1/presets").json()["presets"]:
            page.delete(f"/api/v1/presets/{one['id']}")


def save(page, name, edits=EDITS):
    return page.post("/api/v1/presets", json={"name": name, "edits": edits})


def listed(page):
    found = page.get("/api/v1/presets").json()
    return {one["name"]: one for one in found["presets"]}, found["persistent"]


def test_a_preset_outlives_the_server_where_there_is_an_index(indexed, wren, index):
    number = save(indexed, " two edits ").json()["id"]
    later = ServerState(wren, index, index_name="of-tests")
    page = TestClient(
        create(later, token="t", port=7336), base_url="http://127.0.0.1:7336", headers={"authorization": "Bearer t"}
    )
    found, stay = listed(page)
    assert found["two edits"]["edits"] == EDITS and found["two edits"]["model"] == "wren" and stay
    assert page.delete(f"/api/v1/presets/{number}").json() == {"removed": True}
    assert page.delete(f"/api/v1/presets/{number}").json() == {"removed": False}
    assert "two edits" not in listed(indexed)[0]
    later.close()


@pytest.mark.parametrize("page", ["client", "indexed"])
def test_the_same_name_is_replaced_and_others_stay(page, request):
    page = request.getfixturevalue(page)
    save(page, "a </script>")
    first = save(page, "b").json()["id"]
    second = save(page, "b", EDITS[:1]).json()["id"]
    found, stay = listed(page)
    assert first != second and found["b"]["edits"] == EDITS[:1] and found["a </script>"]["edits"] == EDITS
    assert [page.delete(f"/api/v1/presets/{one['id']}").json()["removed"] for one in found.values()] == [True, True]
    assert listed(page) == ({}, stay)


@pytest.mark.parametrize(
    ("name", "edits"),
    [(" ", EDITS), ("x" * 81, EDITS), ("none", []), ("many", EDITS * 33), ("odd", [{**EDITS[0], "more": 1}])],
)
def test_what_is_no_preset_is_refused(indexed, name, edits):
    assert save(indexed, name, edits).status_code == 422 and listed(indexed)[0] == {}


def test_half_a_character_is_refused_or_kept_but_never_fails(indexed, client):
    for page in (indexed, client):
        body = b'{"name": "\\ud800", "edits": [{"action": "scale", "layer": 0, "index": 0, "value": 0}]}'
        answer = page.post("/api/v1/presets", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 422) and page.get("/api/v1/presets").status_code == 200
        for one in page.get("/api/v1/presets").json()["presets"]:
            page.delete(f"/api/v1/presets/{one['id']}")


def test_requests_without_the_token_neither_store_nor_read(stranger):
    assert save(stranger, "mine").status_code == 401 and stranger.get("/api/v1/presets").status_code == 401


@pytest.mark.parametrize("kind", ["file", "passing"])
def test_there_are_no_more_than_so_many(tmp_path, kind):
    presets = Presets(tmp_path if kind == "file" else None)
    for n in range(MAX_PRESETS):
        presets.put(f"{n}", EDITS, "wren")
    presets.put("7", EDITS[:1], "wren")
    with pytest.raises(Exception, match="Delete one"):
        presets.put("one more", EDITS, "wren")
    assert len(presets.all()) == MAX_PRESETS


def test_a_folder_that_is_not_writable_is_reported(tmp_path):
    presets = Presets(tmp_path / "gone")
    assert presets.all() == [] and presets.remove(1) is False
    with pytest.raises(Exception, match="Check the folder's permissions"):
        presets.put("a", EDITS, "wren")
