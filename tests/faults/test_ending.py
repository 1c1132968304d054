"""Commands interrupted, and commands that are given too little memory."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import interrupts, starving
from tests.faults.made import Ended, World


@pytest.mark.parametrize(
    "line", ["early-exit fit --out rule.json --examples 300", "index build --out built", "report elhage2021 --out out"]
)
def test_ctrl_c_at_any_moment_is_one_line(world: World, line: str) -> None:
    for seconds in (0.05, 0.3, 0.6):
        ended = interrupts.during(world, shlex.split(line), seconds)
        assert ended.code in (130, -2), ended
        assert interrupts.fault(ended, world.folder / "interrupted") is None


@pytest.mark.parametrize("seconds", [0.4, 0.9])
def test_ctrl_c_while_modules_are_imported_is_one_line(seconds: float) -> None:
    assert interrupts.fault(interrupts.starting(seconds)) is None


INTERRUPTED_IN_A_FINALIZER = """
import os, signal, time
import torch  # before that, an interrupt ends the process at once
from unembed.cli import commands, main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without it

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

def app():
    Finalized()
    time.sleep(60)

commands.app = app
main()
"""


def test_ctrl_c_in_a_finalizer_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IN_A_FINALIZER], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "unembed: Interrupted.\n")


def test_the_check_notices_a_traceback_and_files_left_behind(tmp_path: Path) -> None:
    assert interrupts.fault(Ended(1, "", "Traceback"))
    assert interrupts.fault(Ended(130, "", ""))
    assert interrupts.fault(Ended(130, "", "unembed: Interrupted.\n"), tmp_path) is None
    (tmp_path / ".x.writing").touch()
    assert interrupts.fault(Ended(130, "", "unembed: Interrupted.\n"), tmp_path)
    assert starving.fault(Ended(1, "", "Killed"))


@pytest.mark.parametrize("megabytes", [8, 500])
def test_too_little_memory_is_one_clear_line(world: World, megabytes: int) -> None:
    ended = starving.starved(starving.HUNGRY["circuits"], megabytes)
    assert starving.fault(ended) is None
    assert (ended.code, "not enough memory" in ended.stderr) == ((1, True) if megabytes == 8 else (0, False))


WITHOUT_ROOM = {
    "trace first --html OUT": "page",
    "index build --corpus TEXT --out OUT": "parts that are whole",
    "index export INDEX OUT.csv": "page",
    "report elhage2021 --corpus TEXT --out OUT": "parts that are whole",
    "early-exit fit --corpus TEXT --examples 40 --out OUT": "page",
    "train dictionary --corpus TEXT --features 8 --active 2 --steps 1 --out OUT": "parts that are whole",
}


@pytest.mark.parametrize("line", WITHOUT_ROOM)
def test_a_full_disk_is_one_line_and_loses_no_earlier_file(world: World, tmp_path: Path, line: str) -> None:
    out = tmp_path / "out"
    places = {"OUT": out, "OUT.csv": tmp_path / "out.csv", "INDEX": world.index, "TEXT": world.corpus}
    arguments = [str(places.get(word, word)) for word in shlex.split(line)]
    if not line.startswith("index export"):
        arguments += ["--model", str(world.folder / "model")]
    whole_or_nothing = WITHOUT_ROOM[line] == "page"
    if whole_or_nothing:
        (earlier := Path(next(a for a in arguments if a.startswith(str(out))))).write_text("earlier")
    ended = starving.without_room(arguments)
    assert starving.fault(ended) is None and ended.code == 1, ended
    assert "File too large" in ended.stderr
    if whole_or_nothing:
        assert list(tmp_path.iterdir()) == [earlier] and earlier.read_text() == "earlier"
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".tmp", ".writing"))]


def test_the_continuations_of_an_evaluation_without_room_go_on_from_the_last_whole_line(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("".join(f"The first month {word}\n" for word in "abcdefghijkl" * 4))
    (tmp_path / "words.txt").write_text("first\n")
    given = ["--prompts", str(tmp_path / "prompts.txt"), "--words", str(tmp_path / "words.txt"), "--new-tokens", "20"]
    command = ["toxicity", "evaluate", *given, "--batch", "4", "--model", str(world.folder / "model"), "--json"]
    cached = [*command, "--cache", str(tmp_path / "runs")]
    ended = starving.without_room(cached)
    assert starving.fault(ended) is None and ended.code == 1 and "it continues where it stopped" in ended.stderr, ended
    (remaining,) = (tmp_path / "runs").iterdir()
    assert 0 < remaining.stat().st_size <= starving.LARGEST
    assert all(
        json.loads(row)["texts"] for row in remaining.read_text().splitlines()
    ) and remaining.read_text().endswith("\n")
