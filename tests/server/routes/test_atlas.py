"""The atlas through the API."""

from __future__ import annotations

import gzip
import json

from unembed.gallery import memory_descriptions
from unembed.index.atlas import atlas_matches, atlas_view
from unembed.server.packed_atlas import pack


def lines(answer) -> list[dict]:
    """The JSON values of an answer."""
    return [json.loads(line) for line in answer.text.splitlines()]


def test_the_map_comes_after_its_progress(client, wren, tmp_path, monkeypatch):
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path))
    found = lines(client.post("/api/v1/atlas"))
    assert [line["kind"] for line in found] == ["progress"] * (len(found) - 2) + ["atlas", "done"]
    assert found[0]["of"] == 17
    answer = client.get(f"/api/v1/atlas/maps/{found[-2]['version']}")
    assert answer.headers["content-encoding"] == "gzip" and "immutable" in answer.headers["cache-control"]
    assert answer.content == gzip.decompress(pack(atlas_view(wren)).body)
    assert int(answer.headers["content-length"]) < 100_000


def test_without_an_index_the_map_is_computed_once_for_all_servers(wren, tmp_path, monkeypatch):
    from fastapi.testclient import TestClient

    from unembed.server.app import create
    from unembed.server.packed_atlas import stored_path
    from unembed.server.state import ServerState

    def asked() -> list[dict]:
        """The lines of a new server's answer."""
        state = ServerState(wren)
        with TestClient(create(state, token="t", port=80), base_url="http://127.0.0.1") as one:
            found = lines(one.post("/api/v1/atlas", headers={"authorization": "Bearer t"}))
        state.close()
        return found

    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path))
    first = asked()
    computed = pack(atlas_view(wren))
    assert first[-2]["version"] == computed.version
    assert stored_path(wren).read_bytes() == computed.body
    assert [line["kind"] for line in asked()] == ["atlas", "done"]
    stored_path(wren).write_bytes(computed.body[:1000])  # damaged: computed again
    assert asked() == first and stored_path(wren).read_bytes() == computed.body


def test_another_version_of_the_map_is_refused_in_words(client):
    answer = client.get(f"/api/v1/atlas/maps/{'0' * 24}")
    assert answer.status_code == 404 and answer.json()["fix"] == "Request the atlas again"


def test_with_an_index_the_map_is_computed_once_and_has_densities(indexed, wren, index):
    first, again = lines(indexed.post("/api/v1/atlas")), lines(indexed.post("/api/v1/atlas"))
    assert [line["kind"] for line in again] == ["atlas", "done"]
    assert again[0] == first[-2] == {"kind": "atlas", "version": pack(atlas_view(wren, index)).version}


def test_matches_are_the_searchs(client, wren):
    found = client.get("/api/v1/atlas/matches", params={"q": "year"}).json()
    expected = atlas_matches(wren, None, "year", memory_descriptions(wren, None, None))
    assert [tuple(pair) for pair in found["memories"]] == expected.memories
    assert found["total"] == len(found["memories"]) > 0


def test_a_model_without_memories_is_refused_in_words():
    from fastapi.testclient import TestClient

    import unembed
    from unembed.server.app import create
    from unembed.server.state import ServerState

    state = ServerState(unembed.load("attn-2l"))
    with TestClient(create(state, token="t", port=80), base_url="http://127.0.0.1") as client:
        found = lines(client.post("/api/v1/atlas", headers={"authorization": "Bearer t"}))
    state.close()
    assert found[-1]["kind"] == "error" and "no value vectors to map" in found[-1]["message"]
