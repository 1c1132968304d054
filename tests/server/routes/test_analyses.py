"""Every declared analysis has a route, which answers what the command prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import unembed
from tests.server.conftest import TOKEN
from unembed import analyses
from unembed.analyses import Analysis, Cost, Needs
from unembed.options import Option, Prompt, Top
from unembed.results import Table
from unembed.server.app import create
from unembed.server.state import ServerState

_Folder = Annotated[Path | None, Option("A folder.")]


def test_every_analysis_is_listed_with_the_schema_of_its_request(client) -> None:
    found = client.get("/api/v1/analyses").json()["analyses"]
    names = {one.name for one in analyses.listings()}
    # A rule for early exit, the prompts of an evaluation, an atlas are files: a page may name none.
    of_files = {"early-exit fit", "early-exit evaluate", "early-exit generate", "toxicity evaluate"}
    of_files |= {"annotate import", "annotate agreement", "atlas card", "atlas judge"}
    assert names - {row["name"] for row in found} == of_files
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    assert {row["path"] for row in found} <= paths.keys()
    composition = next(row for row in found if row["name"] == "circuits composition")
    assert composition["path"] == "/api/v1/analyses/circuits-composition"
    assert composition["request"]["properties"]["top"]["minimum"] == 1
    assert composition["request"]["properties"]["kind"]["enum"] == ["q", "k", "v", "all"]


def test_an_analysis_answers_what_the_command_prints(monkeypatch) -> None:
    lm = unembed.load("attn-2l")
    monkeypatch.setattr("unembed.load", lambda *_, **__: lm)
    from unembed.cli.commands import app

    prompt = "The first month of the"
    asked = {
        "circuits-composition": ({"kind": "k", "top": 5}, ["circuits", "composition", "--kind", "k", "--top", "5"]),
        "explain": ({"prompt": prompt, "by": "head"}, ["explain", prompt, "--by", "head", "--model", "attn-2l"]),
        "lens": ({"texts": [prompt, "He"], "layer": 1}, ["lens", prompt, "He", "--layer", "1", "--model", "attn-2l"]),
    }
    printed = {name: CliRunner().invoke(app, [*words, "--json"]) for name, (_, words) in asked.items()}
    state = ServerState(lm)
    page = TestClient(
        create(state, token=TOKEN, port=7333),
        base_url="http://127.0.0.1:7333",
        headers={"authorization": f"Bearer {TOKEN}"},
    )
    found = {name: page.post(f"/api/v1/analyses/{name}", json=body) for name, (body, _) in asked.items()}
    state.close()
    for name, answered in found.items():
        assert answered.status_code == 200, answered.text
        assert answered.json() == json.loads(printed[name].stdout), name


def test_a_memory_is_read_as_the_library_reads_it(client, wren) -> None:
    found = client.post("/api/v1/analyses/value", json={"memory": "-L1M5", "tokens": 4}).json()
    ids, scores = wren.values.top(1, 5, 4, bottom=True)
    assert [row["promoted_id"] for row in found["rows"]] == ids.tolist()
    assert [row["promoted_score"] for row in found["rows"]] == (-scores).tolist()
    assert client.post("/api/v1/analyses/value", json={"memory": "L1M5", "index": "/etc"}).status_code == 422
    verified = client.post("/api/v1/analyses/index-verify", json={})
    assert verified.status_code in (404, 409) and "index" in verified.text


def test_an_analysis_takes_the_edits_of_a_request(client, wren) -> None:
    edit = {"target": "head", "action": "scale", "layer": 0, "index": 1, "value": 0.0}
    body = {"clean": "The king of France", "corrupted": "The king of England", "points": "heads", "edits": [edit]}
    found = client.post("/api/v1/analyses/patch", json=body)
    assert found.status_code == 200, found.text
    expected = wren.patch(body["clean"], body["corrupted"], "z", edits=[unembed.scale_head(0, 1, 0.0)])
    assert found.json() == expected.to_table().to_dict()
    assert client.post("/api/v1/analyses/patch", json=body | {"edits": [{"layer": 0}]}).status_code == 422


@pytest.mark.parametrize("body", [{"kind": "x"}, {"top": 0}, {"rows": 3}])
def test_a_request_that_the_signature_does_not_allow_is_refused(client, body) -> None:
    found = client.post("/api/v1/analyses/circuits-composition", json=body)
    assert found.status_code == 422 and found.json()["code"] == "invalid"


def test_an_analysis_of_another_package_has_a_route(wren, monkeypatch) -> None:
    def ends(lm, prompt: Prompt, *, top: Top = 3, folder: _Folder = None) -> Table:
        """List the last tokens of a text."""
        ids = lm.encode(prompt)[0][-top:]
        return Table("Last tokens", {"token": lm.token_strings(ids)}, lm.provenance())

    listing = Analysis("text ends", ends, Needs.MODEL, Cost.INSTANT).listing(__name__)
    monkeypatch.setattr(type(listing), "load", lambda _: Analysis("text ends", ends, Needs.MODEL, Cost.INSTANT))
    monkeypatch.setattr("unembed.server.routes.analyses.listings", lambda: (listing,))
    state = ServerState(wren)
    headers = {"authorization": f"Bearer {TOKEN}"}
    page = TestClient(create(state, token=TOKEN, port=7333), base_url="http://127.0.0.1:7333", headers=headers)
    found = page.post("/api/v1/analyses/text-ends", json={"prompt": "The first month", "top": 2})
    assert [row["token"] for row in found.json()["rows"]] == [" first", " month"]
    assert page.post("/api/v1/analyses/text-ends", json={}).status_code == 422, "a prompt is required"
    refused = page.post("/api/v1/analyses/text-ends", json={"prompt": "a", "folder": "/etc"})
    assert refused.status_code == 422, "a page opens no files"
    state.close()


def test_a_missing_option_is_named_in_the_error(client) -> None:
    found = client.post("/api/v1/analyses/index-sql", json={})
    assert (found.status_code, found.json()["message"]) == (422, "query is not valid")
