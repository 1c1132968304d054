"""The picture of a circuit through the API."""

from __future__ import annotations

import json

import pytest

from unembed.circuit_graph import prompt_picture

QUESTION = {"prompt": "Captain Cook sailed north. Captain", "token": " Cook", "against": " Scott"}
OTHER = "Captain Scott sailed north. Captain"


def lines(answer) -> list[dict]:
    """The JSON values of an answer."""
    return [json.loads(line) for line in answer.text.splitlines()]


def test_the_picture_comes_after_its_progress_and_then_from_the_cache(client, wren):
    body = {**QUESTION, "other": OTHER}
    found = lines(client.post("/api/v1/flow", json=body))
    assert [line["kind"] for line in found] == [*["progress"] * 3, "flow", "done"]
    assert all(line["step"] for line in found[:3])
    expected = prompt_picture(wren, QUESTION["prompt"], " Cook", " Scott", OTHER).to_dict()
    assert found[3]["flow"]["title"] == expected["title"]
    assert [n["name"] for n in found[3]["flow"]["nodes"]] == [n["name"] for n in expected["nodes"]]
    again = lines(client.post("/api/v1/flow", json=body))
    assert again == found[3:]


def test_an_earlier_position_is_a_shorter_prompt(client):
    body = {
        "prompt": "The dogs are",
        "position": 1,
        "token": " are",
        "against": " is",
        "unpaired": True,
        "max_nodes": 5,
    }
    (flow,) = [line["flow"] for line in lines(client.post("/api/v1/flow", json=body)) if line["kind"] == "flow"]
    assert flow["tokens"] == ["The", " dogs"] and flow["counterfactual"] is None


def test_a_prompt_of_another_length_is_refused_in_words(client):
    found = lines(client.post("/api/v1/flow", json={**QUESTION, "other": "Captain"}))
    assert found[-1]["kind"] == "error" and "as many tokens" in found[-1]["fix"]


def test_one_part_is_measured(client):
    body = {**QUESTION, "part": "head", "layer": 5, "index": 0, "at": 5}
    off = client.post("/api/v1/flow/without", json=body).json()
    there = client.post("/api/v1/flow/without", json={**body, "other": OTHER}).json()
    assert there["metric"] == pytest.approx(1.63, abs=0.05) and off["metric"] != there["metric"]
    assert len(off["probabilities"]) == 2
    assert client.post("/api/v1/flow/without", json={**body, "at": 99}).status_code == 404


def test_a_group_is_measured_together(client):
    parts = [{"part": "head", "layer": 5, "index": 0, "at": 5}, {"part": "head", "layer": 5, "index": 4, "at": 5}]
    off = client.post("/api/v1/flow/group", json={**QUESTION, "parts": parts}).json()
    half = client.post("/api/v1/flow/group", json={**QUESTION, "parts": parts, "factor": 0.5}).json()
    there = client.post("/api/v1/flow/group", json={**QUESTION, "parts": parts, "other": OTHER}).json()
    alone = client.post("/api/v1/flow/without", json={**QUESTION, **parts[0]}).json()
    assert off["metric"] < half["metric"] and off["metric"] != alone["metric"] != there["metric"]
    assert client.post("/api/v1/flow/group", json={**QUESTION, "parts": []}).status_code == 422
