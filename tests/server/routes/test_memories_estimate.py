"""What the explorer says an index would cost is near what the same index costs; what cannot have one is refused."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

import unembed
from tests.cli.conftest import save_model
from tests.conftest import tiny
from tests.server.conftest import TOKEN
from unembed import steering
from unembed.corpus import open_corpus
from unembed.server.app import create
from unembed.server.state import ServerState

FACTOR = 1.5
"""Of bytes: Parquet and the text search shrink what the estimate counts by a share that hangs on the text."""


def estimate_of(lm):
    """The answer of an explorer of that model."""
    session = ServerState(lm)
    try:
        page = TestClient(
            create(session, token=TOKEN, port=7333),
            base_url="http://127.0.0.1:7333",
            headers={"authorization": f"Bearer {TOKEN}"},
        )
        return page.get("/api/v1/index/estimate")
    finally:
        session.close()


def test_the_estimate_gives_the_size_of_an_index_and_its_exact_number_of_keys(tmp_path, monkeypatch):
    lm = unembed.load(save_model(tmp_path / "model"))
    # A tenth of the text that ships: more than the sample that an estimate cuts, and built in seconds.
    (tmp_path / "corpus.txt").write_text(steering.default_text()[: 10**5])
    monkeypatch.setattr("unembed.corpus.open_corpus", lambda _: open_corpus(tmp_path / "corpus.txt"))
    estimate = estimate_of(lm).json()
    corpus = open_corpus(tmp_path / "corpus.txt")
    built = unembed.Index.build(lm, corpus, tmp_path / "index").status()
    segments = list(corpus.segments(lm))
    assert estimate["keys"] == 2 * lm.d_mlp
    assert estimate["memory"] == estimate["keys"] * 25 * 12
    assert estimate["tokens"] == pytest.approx(sum(len(one) - one.skip for one in segments), rel=0.1)
    assert estimate["segments"] == pytest.approx(len(segments), rel=0.1)
    assert built["bytes"] / FACTOR < estimate["bytes"] < FACTOR * built["bytes"]
    assert 0 < estimate["seconds"] <= estimate["seconds_busy"] and not estimate["is_exact"]


def test_a_model_without_memories_has_no_index_to_estimate():
    refused = estimate_of(tiny("attention-only"))
    assert refused.status_code == 409 and "no layer of the model has an FFN" in refused.json()["why"], refused.json()


def test_a_request_without_the_token_learns_nothing(stranger):
    assert stranger.get("/api/v1/index/estimate").status_code == 401
