"""Our attribution graphs are valid for circuit-tracer's and Neuronpedia's own code.

Runs in an environment that has both (`make parity`); skipped elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import unembed
from unembed.circuit_graph import circuit
from unembed.circuit_graph.viewer_graph import viewer_graph


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    prompts = "Captain Cook sailed north. Captain", "Captain Scott sailed north. Captain"
    return viewer_graph(circuit(unembed.load(), prompts[0], " Cook", " Scott", prompts[1], max_nodes=40))


def test_circuit_tracer_reads_the_graph_and_writes_it_unchanged(found: dict[str, Any]) -> None:
    models = pytest.importorskip("circuit_tracer.frontend.graph_models", reason="`make parity` installs it")
    read = models.Model(**found)
    assert [models.Link(**link).weight for link in read.links] == [link["weight"] for link in found["links"]]
    written = json.loads(read.model_dump_json())
    assert written["nodes"] == found["nodes"] and written["qParams"] == found["qParams"]
    feature = next(node for node in found["nodes"] if node["clerp"].startswith("L5M"))
    layer, index, position = map(int, feature["node_id"].split("_"))
    assert models.Node.feature_node(layer, position, index).feature == feature["feature"]


def test_circuit_tracer_lists_the_graph_for_its_page(found: dict[str, Any], tmp_path: Path) -> None:
    utils = pytest.importorskip("circuit_tracer.frontend.utils", reason="`make parity` installs it")
    utils.add_graph_metadata(found["metadata"], str(tmp_path))
    listed = json.loads((tmp_path / "graph-metadata.json").read_text(encoding="utf-8"))["graphs"]
    assert [one["slug"] for one in listed] == [found["metadata"]["slug"]]


def test_neuronpedia_accepts_the_graph(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client checks the file and would send it; what it sends is ours."""
    requests = pytest.importorskip("neuronpedia.requests.graph_request", reason="`make parity` installs it")
    sent: list[dict[str, Any]] = []

    def send(_self: object, method: str, uri: str, json: dict[str, Any], **_: object) -> dict[str, Any]:
        sent.append(json)
        return {"url": "", "putRequestId": ""}

    monkeypatch.setattr(requests.GraphRequest, "send_request", send)
    client = requests.GraphRequest.__new__(requests.GraphRequest)
    with pytest.raises(Exception, match=r"(?i)url|request"):
        client.upload(json.dumps(found))
    assert sent[0]["filename"] == found["metadata"]["slug"] + ".json"
