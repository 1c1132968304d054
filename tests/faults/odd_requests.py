"""Malformed requests to every route that the API describes, asked in this process."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from starlette.testclient import TestClient

from tests.faults.made import World
from unembed.index import Index
from unembed.server.app import create
from unembed.server.state import ServerState

TOKEN = "a-token-for-faults"
PORT = 7399
ODD: tuple[Any, ...] = (
    *(None, True, 0, 1, 2, -1, 3.5, 1e308, -(2**70), 2**31, "", " ", "0", "-1", "nan", "1e9", "null", "٣", "a" * 999),
    *("The first", " of", "of", "\x00", "\u202e", "\ud800", "🙂" * 9, "<|endoftext|>", "../..", "%2e%2e", "raw"),
    *([], {}, [1], [[]], [None], {"a": 1}, [{"layer": 0, "index": 1, "to": 2.0}], "0.1", "0.1=2", "x"),
    *("values", "keys", "memory", "head", "positive", "sideways", "2026-01-01", "' OR 1=1 --", 'a"b', "month", "*"),
)  # fmt: skip
RAW = (b"", b"null", b"[]", b"{", b'{"prompt": NaN}', b'{"prompt": 1}', b"\xff\xfe", b"[" * 3000, b'"', b"\x00" * 99)


@dataclass
class Tally:
    """How many requests were answered with each status, and those answered as none should be."""

    answer_counts: Counter[int] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


def run(world: World, n: int, seed: int) -> Tally:
    """Ask n malformed requests of an explorer over the tiny model and its index."""
    session = ServerState(world.lm, Index.open(world.index, world.lm), index_name="index")
    app = create(session, token=TOKEN, port=PORT)
    page = TestClient(app, base_url=f"http://127.0.0.1:{PORT}", headers={"authorization": f"Bearer {TOKEN}"})
    draw, tally = random.Random(seed), Tally()
    try:
        described = page.get("/api/v1/openapi.json").json()
        routes = [
            (path, method, about) for path, methods in described["paths"].items() for method, about in methods.items()
        ]
        known = page.post("/api/v1/traces", json={"prompt": "The first month"}).json()["id"]
        for _ in range(n):
            path, method, about = draw.choice(routes)
            request = _request(described, path, about, known, draw)
            _ask(page, method, request, tally)
    finally:
        session.close()
    return tally


def _request(described: dict[str, Any], path: str, about: dict[str, Any], known: str, draw: random.Random) -> Any:
    params = {}
    for parameter in about.get("parameters", []):
        value = _value(described, parameter["schema"], draw)
        text = value if isinstance(value, str) else json.dumps(value)
        if parameter["in"] == "path":
            text = known if draw.random() < 0.5 and "id" in parameter["name"] else text
            path = path.replace(f"{{{parameter['name']}}}", quote(text.encode("utf-8", "surrogatepass"), safe=""))
        elif parameter["in"] == "query" and (parameter.get("required") or draw.random() < 0.4):
            params[parameter["name"]] = text.encode("utf-8", "surrogatepass")
    body = None
    if "requestBody" in about:
        schema = about["requestBody"]["content"].get("application/json", {}).get("schema", {})
        body = draw.choice(RAW) if draw.random() < 0.1 else json.dumps(_value(described, schema, draw)).encode()
    return path, params, body


def _value(described: dict[str, Any], schema: dict[str, Any], draw: random.Random, depth: int = 0) -> Any:
    """A value nearly as the schema wants it; one time in five, anything."""
    if draw.random() < 0.2 or depth > 6:
        return draw.choice(ODD)
    if "$ref" in schema:
        return _value(described, described["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], draw, depth + 1)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return _value(described, draw.choice(schema[choice]), draw, depth + 1)
    if "enum" in schema:
        return draw.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            required = schema.get("required", ())
            return {
                name: _value(described, inner, draw, depth + 1)
                for name, inner in schema.get("properties", {}).items()
                if (name in required and draw.random() < 0.95) or draw.random() < 0.4
            }
        case "array":
            return [_value(described, schema.get("items", {}), draw, depth + 1) for _ in range(draw.randrange(4))]
        case "integer":
            return draw.choice((0, 1, 2, 3, 5, -1, 200, 10**9))
        case "number":
            return draw.choice((0.0, 1.0, 2.5, -1.0, 1e30))
        case "boolean":
            return draw.random() < 0.5
        case "string":
            return draw.choice(("The first month", " of", " January", "month", "raw", "0.1", "values", ""))
    return draw.choice(ODD)


def _ask(page: TestClient, method: str, request: Any, tally: Tally) -> None:
    path, params, body = request
    request_line = f"{method.upper()} {path[:200]} {str(params)[:200]} {str(body)[:400]}"
    try:
        answer = page.request(method, path, params=params, content=body, headers={"content-type": "application/json"})
    except Exception as error:  # what nobody foresaw is what is looked for
        tally.broken.append(f"{request_line}\n{error!r}")
        return
    tally.answer_counts[answer.status_code] += 1
    if answer.status_code >= 500:
        tally.broken.append(f"{request_line}\n{answer.status_code} {answer.text[:400]}")
    elif answer.status_code >= 400 and not {"message", "fix"} <= set(answer.json()):
        tally.broken.append(f"{request_line}\n{answer.status_code} without a message: {answer.text[:400]}")
