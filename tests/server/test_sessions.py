"""Addresses too long for a link, kept under a short name."""

from __future__ import annotations

import pytest


def test_a_kept_address_comes_back_under_a_name_its_text_decides(client):
    address = "#/trace?p=" + "word+" * 900
    name = client.post("/api/v1/sessions", json={"address": address}).json()["id"]
    assert len(name) < 30
    assert client.get(f"/api/v1/sessions/{name}").json() == {"address": address}
    assert client.post("/api/v1/sessions", json={"address": address}).json()["id"] == name
    assert client.post("/api/v1/sessions", json={"address": address + "x"}).json()["id"] != name


def test_an_unknown_name_says_what_to_do(client):
    answer = client.get("/api/v1/sessions/" + "0" * 18)
    assert answer.status_code == 422 and "file" in answer.json()["fix"]


@pytest.mark.parametrize("address", ["https://elsewhere", "javascript:alert(1)", "#/a b", "#/é", "#/" + "x" * 200_000])
def test_only_the_pages_own_addresses_are_kept(client, address):
    assert client.post("/api/v1/sessions", json={"address": address}).status_code == 422


def test_strangers_keep_nothing(stranger):
    assert stranger.post("/api/v1/sessions", json={"address": "#/trace"}).status_code == 401
