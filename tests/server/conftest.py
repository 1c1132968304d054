"""A served explorer without a network: the application, asked in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

import unembed
from unembed.server.app import create
from unembed.server.state import ServerState

TOKEN = "a-token-for-tests"


def rest(session: ServerState) -> None:
    """Wait until the model's thread has nothing left of what nobody waits for."""
    until = time.monotonic() + 60
    while session.queue._idle_task is not None:
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.fixture(scope="session")
def wren():
    """The embedded model, opened once."""
    return unembed.load()


@pytest.fixture(scope="session")
def session(wren) -> Iterator[ServerState]:
    """What the server has open."""
    found = ServerState(wren)
    yield found
    found.close()


@pytest.fixture(scope="session")
def app(session):
    """The guarded application."""
    return create(session, token=TOKEN, port=7333)


@pytest.fixture
def client(app) -> TestClient:
    """A page that knows the token."""
    return TestClient(app, base_url="http://127.0.0.1:7333", headers={"authorization": f"Bearer {TOKEN}"})


@pytest.fixture
def stranger(app) -> TestClient:
    """A page that does not."""
    return TestClient(app, base_url="http://127.0.0.1:7333", follow_redirects=False)


@pytest.fixture(scope="session")
def index(wren, tmp_path_factory):
    """An index of a few sentences."""
    lines = [
        "The first month of the year is January .",
        "She put the book on the table and left the house .",
        "The capital of France is Paris , and the capital of Italy is Rome .",
    ]
    return unembed.Index.build(wren, lines * 2, tmp_path_factory.mktemp("index") / "of-tests", top=25)


@pytest.fixture(scope="session")
def indexed_session(wren, index) -> Iterator[ServerState]:
    """What a server with an index has open."""
    found = ServerState(wren, index, index_name="of-tests")
    yield found
    found.close()


@pytest.fixture(scope="session")
def indexed_app(indexed_session):
    """The application with an index."""
    return create(indexed_session, token=TOKEN, port=7334)


@pytest.fixture
def indexed(indexed_app, index) -> Iterator[TestClient]:
    """A page of an explorer that has an index; the labels that a test adds are withdrawn after it."""
    yield TestClient(indexed_app, base_url="http://127.0.0.1:7334", headers={"authorization": f"Bearer {TOKEN}"})
    for row in index.labels(of="all").rows():
        index.withdraw_label(row["id"])
