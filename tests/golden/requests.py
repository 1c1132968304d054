"""The cases of the explorer's API: every route, on models with and without an index, and OpenAPI."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import torch
from starlette.testclient import TestClient

from tests.golden.case import OTHER_PROMPT, PROMPT, Case, Place
from tests.golden.comparison import indented
from unembed import Index
from unembed.server.app import create
from unembed.server.state import ServerState

TWO = {"clean": PROMPT, "corrupted": OTHER_PROMPT}
EDITS = [
    {"action": "set", "layer": 1, "index": 7, "value": 4.0},
    {"target": "head", "action": "scale", "layer": 0, "index": 1, "value": 0.0, "positions": "last"},
    {"action": "add", "layer": 0, "index": 3, "value": 1.5, "positions": [1, 2]},
]
MEMBERS = [{"layer": 1, "index": 6}, {"layer": 2, "index": 1}]
ASKED = {"prompt": PROMPT, "edits": EDITS, "position": 3, "token": " the", "against": " a"}

READ = [
    "status",
    "models",
    f"tokenize?text={quote(PROMPT)}",
    "TRACE",
    "TRACE?position=2&token=%20the&against=%20a&top=4&memories=6&listed=3",
    "TRACE?alone=true&order=deviation&basis=raw&top=3&show_unlearned=true",
    "TRACE/spread",
    "TRACE/layers/1?heads=true&memories=5&top=4",
    "TRACE/layers/0?position=1&basis=frozen&token=%20the",
    "TRACE/layers/99",
    "TRACE/attribution?token=%20the",
    "TRACE/attribution?token=%20the&against=%20a&by=head&top=5&position=4",
    "TRACE/attribution?token=%20the&alone=true&by=source",
    "TRACE/attribution?token=%20the&by=memory",
    "TRACE/attribution?token=rubbish%20words",
    "TRACE/effects?token=%20the&top=4",
    "TRACE/effects?token=%20the&by=head&top=4",
    "TRACE/effects?token=%20the&by=memory&top=4&alone=true",
    "TRACE/trajectories?token=%20the&token=%23300",
    "TRACE/trajectories?token=%20a&position=2",
    "traces/000000000000000000000000",
    "memories/1/5",
    "memories/1/5?top=4&hide_unlearned=false",
    "memories/99/0",
    "memories/descriptions",
    "memories/search?q=war&top=6",
    "memories/search?q=L1M5",
    "memories/search?q=months&labelled=true",
    "memories/search?q=the&layer=1&why=promotes&top=4&offset=2",
    "memories/search?q=the&density_above=0.1&top=4",
    "memories/1/5/triggers?top=3",
    "memories/1/5/triggers?top=3&pole=negative&context=4",
    "index/estimate",
    "memories/1/5/contexts?top=3",
    "memories/1/5/coefficients",
    "memories/1/5/statistics",
    "memories/1/5/truth",
    "memories/1/5/usual",
    "memories/1/5/cluster",
    "memories/1/5/connections?top=3",
    "atlas/matches?q=war",
    "heads?sequences=3&length=8",
    "heads/1/2?top=4",
    "heads/0/1?source=%20war&destination=%20of&top=4",
    "heads/1/2/partners",
    "heads/1/2/induction?length=6",
    "heads/1/2/induction?length=6&text=one%20two",
    "heads/99/0",
    "labels?layer=1&index=5",
    "labels?of=all",
    "labels?index=5",
    "concepts",
    "concepts/months",
    "annotations/queue?per_layer=2&random_per_layer=1&author=anna",
    "annotations/queue/1?per_layer=2&random_per_layer=1",
    "annotations/queue/1?what=key&per_layer=2&random_per_layer=1",
    "annotations/queue/9999",
    "annotations/agreement",
    "annotations/export",
    "runs",
    "presets",
    "sessions/000000000000000000",
]
ASK: list[tuple[str, Any]] = [
    ("traces", {"prompt": PROMPT}),
    ("traces", {"prompt": PROMPT, "edits": EDITS, "top": 3}),
    ("traces", {"prompt": ""}),
    ("traces", {"prompt": PROMPT, "colour": 1}),
    ("traces", {"prompt": PROMPT, "edits": [{**EDITS[0], "layer": 99}]}),
    ("traces/stream", {"prompt": PROMPT, "top": 2}),
    ("clusters", None),
    ("analyses/index-firing", {"text": PROMPT}),
    ("memories/1/5/activations", {"prompt": PROMPT}),
    ("memories/1/5/activations", ASKED),
    ("atlas", None),
    ("heads/1/2/attention", {"prompt": PROMPT, "edits": EDITS}),
    ("heads/patterns", {"prompt": PROMPT}),
    ("heads/1/2/sources", {"prompt": PROMPT}),
    ("heads/1/2/sources", ASKED),
    ("heads/1/2/examples", {"windows": 2, "length": 16}),
    ("heads/1/2/terms", {"prompt": PROMPT, "destination": 4, "source": 2}),
    ("heads/prompt", {"prompt": PROMPT}),
    ("heads/prompt", ASKED),
    ("next", {"prompt": PROMPT, "edits": EDITS}),
    ("compare", {"prompt": PROMPT, "edits": EDITS, "max_new_tokens": 4, "seed": 3}),
    ("compare", {"prompt": PROMPT, "max_new_tokens": 4, "top_p": 0.9, "temperature": 0.7, "seed": 3}),
    ("comparison", TWO),
    ("comparison", {**TWO, "token": " January", "against": " December"}),
    ("patching", TWO),
    ("patching", {**TWO, "point": "z", "direction": "noising"}),
    ("patching", {**TWO, "point": "coefficients", "top": 3}),
    ("patching", {**TWO, "point": "mlp_out", "position": 2}),
    ("patching", {"clean": PROMPT, "corrupted": "Short"}),
    ("patching/continuation", {**TWO, "layer": 1, "position": 3, "max_new_tokens": 3}),
    ("patching/continuation", {**TWO, "point": "z", "layer": 1, "position": 3, "index": 2, "max_new_tokens": 3}),
    ("labs/suppress", {"prompt": PROMPT, "edits": EDITS, "samples": 2, "max_new_tokens": 4, "cost_tokens": 128}),
    ("labs/early-exit", {"prompt": PROMPT}),
    ("labs/early-exit", {"prompt": PROMPT, "method": "entropy", "threshold": -1.0}),
    ("labs/promoters", {"promote": "king, war", "suppress": "peace", "values": 2}),
    ("analyses/index-similar", {"memory": "L1M5", "top": 3}),
    ("analyses/index-similar", {"memory": "L1M5", "top": 3, "among": "keys"}),
    ("analyses/concepts", {"named": ["L1M5"]}),
    ("heads/1/2/here", {"prompt": PROMPT}),
    ("heads/1/2/here", ASKED),
    ("next/positions", {"prompt": PROMPT, "edits": EDITS}),
    ("samples", {"prompt": PROMPT, "edits": EDITS, "samples": 3, "max_new_tokens": 4}),
]
WRITTEN: list[tuple[str, str, Any]] = [
    ("POST", "labels", {"layer": 1, "index": 6, "label": "names", "author": "carla", "note": "n", "tags": ["x"]}),
    ("POST", "labels", {"layer": 0, "index": 1, "label": "copies", "author": "carla", "kind": "head", "confidence": 4}),
    ("POST", "labels/1/withdraw", {"author": "anna"}),
    ("POST", "labels/99/withdraw", {"author": "anna"}),
    ("GET", "labels?of=all", None),
    ("POST", "concepts", {"name": "names", "author": "carla", "members": MEMBERS}),
    ("GET", "concepts", None),
    ("GET", "concepts/names", None),
    (
        "POST",
        "annotations",
        {"what": "value", "number": 1, "author": "anna", "per_layer": 2, "random_per_layer": 1,
         "patterns": [{"label": "cities", "kind": "names", "members": [0, 1, 2, 3], "confidence": 2}]},
    ),
    ("POST", "annotations", {"what": "value", "number": 1, "author": "carla", "per_layer": 2, "random_per_layer": 1}),
    ("GET", "annotations/queue?per_layer=2&random_per_layer=1&author=carla", None),
    ("GET", "annotations/agreement", None),
    ("POST", "annotations/import", {"jsonl": '{"layer": 1, "index": 2, "label": "x", "author": "d"}'}),
    ("POST", "annotations/import", {"jsonl": "rubbish"}),
    ("GET", "annotations/export", None),
    ("GET", "memories/search?q=names", None),
    ("POST", "presets", {"name": "mine", "edits": [{**EDITS[0], "on": False}]}),
    ("GET", "presets", None),
    ("DELETE", "presets/1", None),
    ("DELETE", "presets/1", None),
    ("POST", "sessions", {"address": "#/trace?prompt=a"}),
    ("GET", "sessions/SAVED", None),
    ("DELETE", "runs/1", None),
    ("DELETE", "runs/1", None),
]  # fmt: skip
"""Requests that change what the server keeps, in this order."""
PLACES = {"wren": "", "gated": "", "wren-indexed": "wren", "gated-indexed": "gated"}
"""By name: the model whose index is open, if one is."""
FEWER = ("memories/1/5/triggers?top=3", "memories/search?q=war&top=6", "models", "concepts", "labels?of=all")
"""What is asked of wren without an index: where the answer differs."""


def cases() -> Iterator[Case]:
    """The cases of the API."""
    yield Case("api/openapi", lambda place: _asked(place, "wren", "GET", "openapi.json", None))
    for name in PLACES:
        for path in READ if name != "wren" else FEWER:
            yield Case(f"api/{name}/GET {path}", lambda place, n=name, p=path: _asked(place, n, "GET", p, None))
        for i, (path, body) in enumerate(ASK if name != "wren" else ()):
            yield Case(
                f"api/{name}/POST {path} {i}", lambda place, n=name, p=path, b=body: _asked(place, n, "POST", p, b)
            )
        if name != "gated-indexed":
            yield Case(f"api/{name}/written", lambda place, n=name: _written(place, n))
    yield Case("api/attn-2l/GET models", lambda place: _asked(place, "attn-2l", "GET", "models", None))
    yield Case("api/attn-2l/GET TRACE", lambda place: _asked(place, "attn-2l", "GET", "TRACE", None))
    yield Case("api/attn-2l/GET memories", lambda place: _asked(place, "attn-2l", "GET", "memories/1/5", None))


def _client(place: Place, name: str, copy: str = "") -> TestClient:
    """The page of an explorer that is opened once; a copy of its index where the requests write."""
    if name + copy not in place.clients:
        model = name.removesuffix("-indexed")
        lm, index = place.with_lens(place.name(model)), None
        if PLACES.get(name):
            path = place.index(model)
            if copy:
                path = shutil.copytree(path, f"{path}{copy}")
            index = Index.open(path, lm)
        state = ServerState(lm, index, index_name=None if index is None else "golden")
        place.states.append(state)
        headers = {"authorization": "Bearer golden"}
        app = create(state, token="golden", port=7333)
        place.clients[name + copy] = TestClient(app, base_url="http://127.0.0.1:7333", headers=headers)
    return place.clients[name + copy]


def _asked(place: Place, name: str, method: str, path: str, body: Any) -> dict[str, str]:
    client = _client(place, name)
    if path.startswith("TRACE"):
        trace = client.post("/api/v1/traces", json={"prompt": PROMPT}).json()["id"]
        path = path.replace("TRACE", f"traces/{trace}")
    torch.manual_seed(0)
    return {"json": _answer(client, method, path, body)}


def _answer(client: TestClient, method: str, path: str, body: Any) -> str:
    response = client.request(method, f"/api/v1/{path}", json=body)
    kind = response.headers.get("content-type", "")
    text = response.text
    if "ndjson" in kind:
        rows = [json.loads(line) for line in text.splitlines()]
        text = "\n".join(indented(row) for row in rows if row.get("kind") != "progress")
    elif "json" in kind:
        text = indented(response.json())
    return f"status {response.status_code} {kind}\n{text}"


def _written(place: Place, name: str) -> dict[str, str]:
    """The requests that change something, one after the other, on a copy of the index."""
    client = _client(place, name, "-copy")
    if name != "gated":
        client.post("/api/v1/compare", json={"prompt": PROMPT, "max_new_tokens": 2})
    made: dict[str, str] = {}
    saved = ""
    for i, (method, path, body) in enumerate(WRITTEN):
        text = made[f"{i} {method} {path}"] = _answer(client, method, path.replace("SAVED", saved), body)
        if path == "sessions":
            saved = json.loads(text.split("\n", 1)[1])["id"]
    return made
