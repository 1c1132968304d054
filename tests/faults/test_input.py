"""Malformed command lines and requests: a line that says what is wrong, never a traceback, never a 500."""

from __future__ import annotations

import pytest

from tests.faults import odd_arguments, odd_requests
from tests.faults.made import World


def test_malformed_command_lines(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    tally = odd_arguments.run(world, 100, seed=11)
    assert tally.broken == []
    assert tally.ended[2] > 20 and tally.ended[1] > 5  # both usage and what only the work finds out


def test_malformed_requests(world: World) -> None:
    tally = odd_requests.run(world, 200, seed=1)
    assert tally.broken == []
    assert tally.answered[422] > 50 and tally.answered[200] > 10
