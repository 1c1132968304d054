"""The published description of the API, fuzzed: whatever is asked, the answer is one that it describes, never a 500."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from starlette.testclient import TestClient

from tests.server.conftest import TOKEN, rest

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

SLOW = {
    "/api/v1/compare",
    "/api/v1/heads",
    "/api/v1/analyses/concepts",
    "/api/v1/labs/suppress",
    "/api/v1/labs/early-exit",
}
"""Answered in other tests; with random sizes they would take minutes."""


@pytest.fixture(scope="module")
def described(indexed_app):
    """The API as it describes itself."""
    page = TestClient(indexed_app, base_url="http://127.0.0.1:7334", headers={"authorization": f"Bearer {TOKEN}"})
    return page, page.get("/api/v1/openapi.json").json()


def test_every_route_is_described(described):
    _, api = described
    assert len(api["paths"]) >= 25
    assert {"Emergence", "TraceView", "MemoryView", "HeadsView", "Search", "Problem"} <= set(
        api["components"]["schemas"]
    )


def test_no_request_breaks_the_server(described, indexed_session):
    page, api = described
    schema = schemathesis.openapi.from_dict(api)
    counts: dict[str, int] = {}
    for operation in (found.ok() for found in schema.get_all_operations()):
        if operation.path in SLOW:
            continue

        @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy())
        def ask(case) -> None:
            answer = page.request(
                case.method, case.formatted_path, params=case.query or {}, **_body(case), headers=_headers(case)
            )
            rest(indexed_session)  # the checks of types in tests draw random numbers, and so does what asks here
            assert answer.status_code < 500 or answer.status_code in (503, 507), (case.formatted_path, answer.text)
            if answer.status_code >= 400:
                assert set(answer.json()) == {"code", "message", "why", "fix", "detail"}
            path = operation.path  # noqa: B023  (asked at once, below)
            counts[path] = counts.get(path, 0) + 1

        ask()
    assert len(counts) >= 20


def _body(case) -> dict:
    if case.body is schemathesis.core.NOT_SET:
        return {}
    return {"content": json.dumps(case.body, default=str)}


def _headers(case) -> dict:
    return {"content-type": "application/json"} | {
        name: value for name, value in (case.headers or {}).items() if value.isascii() and value.isprintable()
    }


@pytest.mark.parametrize(
    "prompt", ["\x00", "\ud800", "a" * 20_000, "\u202e" * 300, "🙂" * 50, " ", "<|endoftext|>", "\n" * 400]
)
def test_unusual_prompts_break_nothing(described, prompt):
    page, _ = described
    answer = page.post(
        "/api/v1/traces", content=json.dumps({"prompt": prompt}), headers={"content-type": "application/json"}
    )
    assert answer.status_code in (200, 422)
    if answer.status_code == 200:
        assert page.get(f"/api/v1/traces/{answer.json()['id']}").status_code == 200


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b'{"prompt": NaN}', b'{"prompt": 1}', b"\xff\xfe"])
def test_bodies_that_are_not_a_question_are_refused(described, body):
    page, _ = described
    answer = page.post("/api/v1/traces", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422) and answer.json()["message"]
