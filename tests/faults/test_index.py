"""Indexes killed, cut off, damaged and shared; `benchmarks/faults.py` does the same many times more."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.faults import damage, kills, together
from tests.faults.made import World, contents, forked
from unembed.sweeps import checkpoint


def test_killed_at_random_moments_and_resumed_the_bytes_are_the_same(world: World) -> None:
    began = time.perf_counter()
    world.build(world.folder / "timed")
    seconds = 0.7 * (time.perf_counter() - began)  # so that the first kill of a round meets a build under way
    draw = random.Random(0)
    rounds = [kills.killed(world, draw, seconds) for _ in range(4)]
    assert sum(r.stops for r in rounds) >= 3
    assert not [r for r in rounds if not r.good]


def test_a_build_killed_while_it_tries_the_folder_leaves_nothing_behind(world: World, tmp_path: Path) -> None:
    def killed_there(**named: Any) -> Any:
        tempfile.NamedTemporaryFile(**named, delete=False).close()
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        with mock.patch.object(checkpoint, "tempfile", SimpleNamespace(NamedTemporaryFile=killed_there)):
            world.build(tmp_path / "index")

    assert forked(work).code == -signal.SIGKILL
    assert contents(tmp_path / "index").keys() - world.built.keys()  # the file was there
    world.build(tmp_path / "index")
    assert contents(tmp_path / "index") == world.built


def test_a_build_on_a_full_disk_fails_in_one_line_and_resumes_later(world: World) -> None:
    draw = random.Random(3)
    rounds = [kills.disk_full(world, draw) for _ in range(4)]
    ends = [ended for _, some in rounds for ended in some if ended.code]
    assert len(ends) >= 3
    assert all(e.code == 1 and e.stderr.startswith("unembed: ") and e.stderr.count("\n") == 1 for e in ends), ends
    assert not [r for r, _ in rounds if not r.good]


def test_a_full_disk_while_the_search_file_is_written_is_one_line(world: World) -> None:
    last = len(world.built) - 2  # of all files but the manifest, the last to be written
    ended = kills.forked(lambda: kills.short_of_room(world, world.folder / "full", last, 3000))
    assert (ended.code, ended.stderr.count("\n")) == (1, 1), ended
    assert "search.sqlite" in ended.stderr


@pytest.mark.parametrize("kind", damage.KINDS)
def test_a_damaged_file_is_refused_by_name_and_repaired(world: World, expected: dict[str, str], kind: str) -> None:
    assert not any(answer.startswith(("refused: ", "broke: ")) for answer in expected.values())
    draw = random.Random(kind)
    for number, file in enumerate(world.built):
        if number % 3 == damage.KINDS.index(kind) or file == "manifest.json":
            outcome = damage.tried(world, file, kind, draw, expected)
            assert not outcome.wrong, outcome
            assert outcome.refused, outcome
            assert outcome.named and outcome.repaired, outcome


def test_readers_during_a_build_get_right_answers_or_one_line(world: World, expected: dict[str, str]) -> None:
    found = together.run(world, readers=2, repairs=2, seed=0, expected=expected)
    assert set(found) <= {"right", "refused"}, found
    assert found["right"] >= 10
