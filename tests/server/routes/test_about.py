"""What the page can offer for a model."""

from __future__ import annotations

import re
import shutil

import pytest
from starlette.testclient import TestClient

import unembed
from tests.models.decoder_classes import tiny_model
from tests.server.conftest import TOKEN
from tests.sweeps.recorder import lettered
from unembed.errors import UnembedError
from unembed.server.app import create
from unembed.server.routes.about import capabilities, index_mark
from unembed.server.state import ServerState


def test_layers_of_experts_and_dense_ones_have_their_own_numbers_of_memories() -> None:
    lm = unembed.load(tiny_model("glm4_moe"), tokenizer=lettered("gpt2").tokenizer)
    session = ServerState(lm)
    try:
        page = TestClient(
            create(session, token=TOKEN, port=7333),
            base_url="http://127.0.0.1:7333",
            headers={"authorization": f"Bearer {TOKEN}"},
        )
        model = page.get("/api/v1/models").json()["models"][0]
        assert model["memories"] == [80, 160, 160, 160] and model["memories_a_layer"] == "80 to 160"
        assert model["can"]["memories"] and list(model["experts"]) == ["1", "2", "3"]
        trace = page.post("/api/v1/traces", json={"prompt": "the cat sat"}).json()
        for layer, form in ((0, r"L0M\d+"), (1, r"L1(E\dM|SM)\d+")):
            found = page.get(f"/api/v1/traces/{trace['id']}/layers/{layer}?memories=3").json()["layers"][0][
                "sub_updates"
            ]
            assert len(found) >= 3 and all((row["experts"] is None) == (layer == 0) for row in found)
            assert all(re.fullmatch(form, lm.memory_name(layer, row["index"])) for row in found)
        for layer, index in ((0, 79), (1, 159)):
            assert page.get(f"/api/v1/memories/{layer}/{index}").status_code == 200
        assert page.get("/api/v1/memories/0/80").status_code == 404
    finally:
        session.close()


def test_two_indexes_of_a_model_have_different_marks_and_copies_the_same(wren, tmp_path) -> None:
    texts = (["one two three four"], ["five six seven eight"])
    first, other = (unembed.Index.build(wren, text, tmp_path / text[0][:3]) for text in texts)
    copy = unembed.Index.open(shutil.copytree(first.path, tmp_path / "copy"), wren)
    marks = [index_mark(index.manifest) for index in (first, other, copy)]
    assert marks[0] == marks[2] != marks[1] and re.fullmatch("[0-9a-f]{8}", marks[0])


@pytest.mark.parametrize(("model_type", "has_events"), [("nemotron_h", True), ("mamba", False)])
def test_events_are_offered_where_any_layer_has_an_ffn(model_type: str, has_events: bool) -> None:
    lm = unembed.load(tiny_model(model_type))
    assert lm.structure.blocks[0].feed_forward is None
    state = ServerState(lm)
    try:
        assert capabilities(state)["events"] is has_events
    finally:
        state.close()
    if has_events:
        lm.trace([1, 2, 3]).events()
    else:
        with pytest.raises(UnembedError):
            lm.trace([1, 2, 3]).events()
