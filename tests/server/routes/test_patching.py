"""Two prompts side by side, patches between them and what follows."""

from __future__ import annotations

import json

import pytest
import torch

import unembed
from unembed.causality import patching

CLEAN, CORRUPTED = "The first month of the year is", "The last month of the year was"
TWO = {"clean": CLEAN, "corrupted": CORRUPTED, "token": " January", "against": " the"}


def test_both_prompts_their_predictions_and_the_corresponding_tokens(client, wren):
    found = client.post("/api/v1/comparison", json={"clean": CLEAN, "corrupted": "In " + CORRUPTED}).json()
    clean, corrupted = wren.trace(CLEAN), wren.trace("In " + CORRUPTED)
    assert found["target"]["id"] == int(clean.prediction[-1])
    assert found["against"]["id"] != found["target"]["id"]
    for side, trace in (("clean", clean), ("corrupted", corrupted)):
        logits = trace.logits()
        assert [t["id"] for t in found[side]["tokens"]] == trace.tokens.tolist()
        assert found[side]["prediction"][0]["id"] == int(trace.prediction[-1])
        assert found[side]["logits"] == pytest.approx([float(logits[found[k]["id"]]) for k in ("target", "against")])
    a, c = zip(*found["pairs"], strict=True)
    assert list(a) == sorted(a) and list(c) == sorted(c)
    of = "of"
    assert any(of in clean.token_strings[i] and of in corrupted.token_strings[k] for i, k in found["pairs"])


@pytest.mark.parametrize("point", ["resid_pre", "z", "coefficients"])
@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_patches_are_the_librarys(client, wren, point, direction):
    body = {**TWO, "point": point, "direction": direction, "position": 1, "top": 4}
    found = client.post("/api/v1/patching", json=body).json()
    expected = wren.patch(
        CLEAN,
        CORRUPTED,
        point,
        unembed.logit_difference(" January", " the"),
        positions=[1],
        direction=direction,
        top=4,
    )
    # The logits are those of the traces, which have them at all positions: another matrix product rounds differently.
    torch.testing.assert_close(torch.tensor(found["recovered"]), expected.recovered.float(), rtol=1e-4, atol=1e-5)
    assert (found["clean"], found["corrupted"]) == pytest.approx((expected.clean, expected.corrupted), abs=1e-5)
    if point == "coefficients":
        source = wren.run(CLEAN if direction == "denoising" else CORRUPTED, "coefficients")
        for layer, rows in enumerate(found["indices"]):
            own = source.at("coefficients", layer)[0, 1, rows[0]]
            assert found["given"][layer][0] == own.tolist()


def test_one_cell_is_patched_alone_and_has_the_numbers_it_has_in_the_whole_map(client, wren, monkeypatch):
    whole = client.post("/api/v1/patching", json={**TWO, "point": "coefficients", "position": 2, "top": 4}).json()
    rows: list[int] = []
    measured = patching.measured_together
    monkeypatch.setattr(
        patching, "measured_together", lambda parts, batch: (rows.append(len(parts[0][1])), measured(parts, batch))[1]
    )
    body = {**TWO, "point": "coefficients", "position": 2, "top": 4, "layer": 3}
    cell = client.post("/api/v1/patching", json=body).json()
    assert rows == [4] and cell["layers"] == [3]
    assert cell["values"][0][0] == pytest.approx(whole["values"][3][0], abs=1e-5)
    assert cell["indices"][0] == whole["indices"][3] and cell["given"][0] == whole["given"][3]
    assert client.post("/api/v1/patching", json={**body, "layer": 99}).status_code == 404


def test_three_continuations_and_the_patched_one_is_the_edits(client, wren):
    value = float(wren.run(CLEAN, "coefficients").at("coefficients", 4)[0, 1, 278])
    body = {
        "clean": CLEAN,
        "corrupted": CORRUPTED,
        "point": "coefficients",
        "layer": 4,
        "position": 1,
        "index": 278,
        "max_new_tokens": 5,
    }
    answer = client.post("/api/v1/patching/continuation", json=body)
    texts = dict.fromkeys(("clean", "corrupted", "patched"), "")
    for line in map(json.loads, answer.text.splitlines()):
        if line["kind"] == "token":
            texts[line["side"]] += line["token"]
    edit = unembed.set_coefficient(4, 278, value, positions=[1])
    assert CLEAN + texts["clean"] == wren.generate(CLEAN, max_new_tokens=5)[0]
    assert CORRUPTED + texts["corrupted"] == wren.generate(CORRUPTED, max_new_tokens=5)[0]
    assert CORRUPTED + texts["patched"] == wren.generate(CORRUPTED, [edit], max_new_tokens=5)[0]


def test_what_cannot_be_compared_is_refused_by_name(client):
    answer = client.post("/api/v1/patching", json={**TWO, "against": " January"})
    assert answer.status_code == 422 and "itself" in answer.json()["message"]
    same = client.post("/api/v1/patching", json={**TWO, "corrupted": CLEAN})
    assert same.status_code == 422 and "in both runs" in same.json()["why"]
    off = client.post("/api/v1/patching", json={**TWO, "position": 90})
    assert off.status_code == 422 and "aligned with it" in off.json()["why"]
