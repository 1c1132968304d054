"""The world that faults are tried on, made once."""

from __future__ import annotations

import pytest

from tests.faults import damage, made


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> made.World:
    """A tiny model, a few sentences, an index of them."""
    return made.make(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="session")
def expected(world: made.World) -> dict[str, str]:
    """What the sound index answers."""
    return damage.answers(world, world.index)
