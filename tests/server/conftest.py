"""A served explorer without a network: the application, asked in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

import unembed
from unembed.server.app import create
from unembed.server.session import Session

TOKEN = "a-token-for-tests"


@pytest.fixture(scope="session")
def wren():
    """The embedded model, opened once."""
    return unembed.load()


@pytest.fixture(scope="session")
def session(wren) -> Iterator[Session]:
    """What the server has open."""
    found = Session(wren)
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
