"""Addresses too long for a link, kept under a short name."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from starlette.testclient import TestClient

from unembed.server.app import create
from unembed.server.state import ServerState


def test_a_stored_address_is_found_by_the_hash_of_its_text(client):
    address = "#/trace?prompt=" + "word+" * 900
    name = client.post("/api/v1/sessions", json={"address": address}).json()["id"]
    assert len(name) < 30
    assert client.get(f"/api/v1/sessions/{name}").json() == {"address": address}
    assert client.post("/api/v1/sessions", json={"address": address}).json()["id"] == name
    assert client.post("/api/v1/sessions", json={"address": address + "x"}).json()["id"] != name


def test_an_unknown_name_is_refused_with_a_remedy(client):
    answer = client.get("/api/v1/sessions/" + "0" * 18)
    assert answer.status_code == 422 and "file" in answer.json()["fix"]


@pytest.mark.parametrize("address", ["https://elsewhere", "javascript:alert(1)", "#/a b", "#/é", "#/" + "x" * 200_000])
def test_only_the_pages_own_addresses_are_kept(client, address):
    assert client.post("/api/v1/sessions", json={"address": address}).status_code == 422


def test_requests_without_the_token_store_nothing(stranger):
    assert stranger.post("/api/v1/sessions", json={"address": "#/trace"}).status_code == 401


def test_a_link_outlives_the_server_where_there_is_an_index(indexed, client, wren, index):
    address = "#/trace?prompt=" + "kept+" * 900
    saved = indexed.post("/api/v1/sessions", json={"address": address}).json()
    assert saved["persistent"] is True
    later = ServerState(wren, index, index_name="of-tests")
    page = TestClient(
        create(later, token="t", port=7335), base_url="http://127.0.0.1:7335", headers={"authorization": "Bearer t"}
    )
    assert page.get(f"/api/v1/sessions/{saved['id']}").json() == {"address": address}
    later.close()
    assert client.post("/api/v1/sessions", json={"address": address}).json()["persistent"] is False


def test_a_folder_that_is_not_writable_still_gives_a_link(tmp_path):
    from unembed.server.store import SavedAddresses

    addresses = SavedAddresses(tmp_path / "gone")
    assert addresses.put("a", "#/trace") is False and addresses.get("a") is None
    saved = SavedAddresses(tmp_path)
    assert saved.put("a", "#/trace") and saved.put("a", "#/heads") and saved.get("a") == "#/trace"
    with closing(sqlite3.connect(saved.path)) as connection, pytest.raises(sqlite3.DatabaseError, match="append-only"):
        connection.execute("DELETE FROM sessions")
