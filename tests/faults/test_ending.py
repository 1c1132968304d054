"""Commands interrupted, and commands that are given too little memory."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.faults import interrupts, starving
from tests.faults.made import Ended, World


@pytest.mark.parametrize("line", ["concepts --per-layer 20", "index build --out built", "report elhage2021 --out out"])
def test_ctrl_c_at_any_moment_is_one_line(world: World, line: str) -> None:
    for seconds in (0.05, 0.6, 1.1):
        ended = interrupts.during(world, shlex.split(line), seconds)
        assert ended.code in (130, -2), ended
        assert interrupts.fault(ended, world.folder / "interrupted") is None


@pytest.mark.parametrize("seconds", [0.4, 0.9])
def test_ctrl_c_while_modules_are_imported_is_one_line(seconds: float) -> None:
    assert interrupts.fault(interrupts.starting(seconds)) is None


def test_the_check_notices_a_traceback_and_files_left_behind(tmp_path: Path) -> None:
    assert interrupts.fault(Ended(1, "", "Traceback"))
    assert interrupts.fault(Ended(130, "", ""))
    assert interrupts.fault(Ended(130, "", "unembed: Interrupted.\n"), tmp_path) is None
    (tmp_path / ".x.writing").touch()
    assert interrupts.fault(Ended(130, "", "unembed: Interrupted.\n"), tmp_path)
    assert starving.fault(Ended(1, "", "Killed"))


@pytest.mark.parametrize("megabytes", [8, 500])
def test_too_little_memory_is_one_line(world: World, megabytes: int) -> None:
    ended = starving.starved(starving.HUNGRY["circuits"], megabytes)
    assert starving.fault(ended) is None
    assert (ended.code, "not enough memory" in ended.stderr) == ((1, True) if megabytes == 8 else (0, False))
