"""Error responses: one shape, whatever failed, with the reason and the remedy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from starlette.testclient import TestClient

from unembed.errors import InvalidInput
from unembed.server.responses import install_error_handlers, ndjson_response


async def lines(error: Exception) -> AsyncIterator[dict[str, str]]:
    """One item, then a failure."""
    yield {"kind": "item"}
    raise error


class Strict(BaseModel):
    """A body without further fields."""

    model_config = ConfigDict(extra="forbid")
    n: dict[str, int]


@pytest.fixture
def client() -> TestClient:
    """An application whose routes fail."""
    app = FastAPI()
    install_error_handlers(app)

    @app.get("/defect")
    async def defect() -> None:
        raise KeyError("layer")

    @app.get("/memory")
    async def memory() -> None:
        raise RuntimeError("not enough memory: you tried to allocate 40 GB")

    @app.get("/number")
    async def number(n: int) -> int:
        return n

    @app.post("/strict")
    async def strict(given: Strict) -> dict[str, int]:
        return given.n

    @app.get("/stream/{known}")
    async def stream(known: bool):
        error = InvalidInput("layer 9", why="the model has 6", instead="Choose 0 to 5") if known else KeyError("layer")
        return ndjson_response(lines(error))

    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/defect", 500, "defect"),
        ("/memory", 507, "out_of_memory"),
        ("/number?n=x", 422, "invalid"),
        ("/nowhere", 404, "http"),
    ],
)
def test_every_failure_has_a_code_a_message_and_a_remedy(client: TestClient, path: str, status: int, code: str) -> None:
    answer = client.get(path)
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code)
    assert body["message"] and body["fix"]


def test_a_defect_is_named_with_its_error(client: TestClient) -> None:
    assert client.get("/defect").json()["why"] == "KeyError: 'layer'"


def test_a_stream_ends_with_the_error_that_stopped_it(client: TestClient) -> None:
    first, last = (json.loads(line) for line in client.get("/stream/true").text.splitlines())
    assert (first, last["kind"], last["fix"]) == ({"kind": "item"}, "error", "Choose 0 to 5")
    first, last = (json.loads(line) for line in client.get("/stream/false").text.splitlines())
    assert (first["kind"], last["kind"], last["code"]) == ("item", "error", "defect")


@pytest.mark.parametrize(
    ("body", "why"), [("{", "it is not JSON"), ("[]", "it is not a JSON object"), ("", "it is mis")]
)
def test_a_body_that_is_no_object_is_named_as_the_body(client: TestClient, body: str, why: str) -> None:
    told = client.post("/strict", content=body, headers={"content-type": "application/json"}).json()
    assert told["message"] == "the request's body is not valid" and told["why"].startswith(why)


def test_half_of_a_character_in_a_request_can_be_named(client: TestClient) -> None:
    answer = client.post(
        "/strict", content=b'{"n": {"half \\ud800": "x"}}', headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422 and answer.json()["message"].startswith("n.half ")
    assert client.get("/number?n=%ED%A0%80").json()["message"] == "n is not valid"
