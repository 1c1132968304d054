"""Malformed command lines: a sound one for every command, spoilt in one to three places, run without a new process."""

from __future__ import annotations

import os
import random
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from tests.faults.made import World
from unembed.cli.commands import app

LONGEST = 60
"""Seconds of processor time that one command may take on a tiny model; ten times as many by the clock."""
SOUND = """
trace 'The first month' --model M
explain 'The first month' --token ' of' --model M
value 1 3 --model M
clusters --clusters 4 --model M
concepts 0.1 --model M
concepts --per-layer 2 --model M
models
train nothing
doctor --json
steer 'The first month' --set 0.1=2 --new-tokens 2 --model M
report geva2021 --corpus absent.txt --out out --model M
annotate export pages.html --per-layer 1 --model M
annotate import absent.json --index I
annotate agreement absent.json
index build --corpus C --out built --model M
index status I
index triggers I 1 3
index search I month
index promoting I ' of'
index firing I 'The first' --model M
index similar I 0 3 --model M
index sql I 'SELECT count(*) FROM triggers'
index verify I
index export I triggers.csv
circuits heads --sequences 2 --length 8 --model M
circuits head 1 2 --model M
circuits composition --model M
circuits skip-trigrams 1 0 --top 3 --model M
circuits expand 'a b c' --model M
circuits induction --sequences 2 --length 8 --model M
circuits stream --model M
toxicity select --method manual --values 0.1,1.2 --model M
toxicity evaluate --prompts absent.jsonl --set 0.1=1 --model M
early-exit fit --out rule.json --corpus C --examples 8 --model M
early-exit evaluate absent.json --corpus C --model M
early-exit generate absent.json 'The first' --model M
"""
"""M a model, C a corpus, I an index. Commands that would take minutes name a file that is not there."""
ODD = (
    *("", " ", "-", "--", "---", "=", ",", ".", "..", ":", "None", "null", "true", "[1]", "{}", '{"a":', "'", '"'),
    *("-1", "0", "1", "2", "-0", "007", "1.5", "1e400", "nan", "-inf", "0x10", "٣", "999999999999", "-9999999999999"),
    *("0.1", "0.1=2", "0.9999=1", "9.0=1", "0.1=nan", "0.1=inf", "0.1=", "=1", "0.1=1e39", "0.1,0.2", "-1.-1=1"),
    *("\x1b[2J", "\u202e", "🙂" * 9, "\udcff", "e\u0301", "a" * 5000, "The " * 3000, "<|endoftext|>", "%s%n"),
    *("absent", "absent/at/all", "corpus.txt", "index", "model", "index/manifest.json", "/proc/version", "*.txt", "**"),
    *("SELECT", "SELECT 1; SELECT 2", "COPY triggers TO 'x'", "ATTACH 'x'", "SELECT * FROM read_text('/etc/hosts')"),
    *("--json", "--csv", "--plain", "--html", "--set", "--no-such-option", "-x", "--help", "--seed=-1", "--dtype=int3"),
    *("float64", "bfloat16", "cuda", "meta", "frozen", "raw", "final", "nobody/no-such-model", " of", " January", "of"),
)  # fmt: skip
VALUES = [value for value in ODD if not value.startswith("-")]
_GROUPS = ("annotate", "index", "circuits", "toxicity", "early-exit")


@dataclass
class Tally:
    """How many command lines ended with each exit status, and those that ended as none should."""

    ended: Counter[int] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


def run(world: World, n: int, seed: int) -> Tally:
    """Run n malformed command lines in an empty folder beside the world's files."""
    draw, tally, before = random.Random(seed), Tally(), Path.cwd()
    place = world.folder / "place"
    place.mkdir(exist_ok=True)
    for name in ("corpus.txt", "index", "model"):
        copy = shutil.copytree if (world.folder / name).is_dir() else shutil.copy
        if not (place / name).exists():
            copy(world.folder / name, place / name)  # what a command line overwrites is not the world's
    os.chdir(place)
    try:
        for arguments in lines(world, n, draw):
            if fault := _fault(arguments, tally):
                tally.broken.append(f"{arguments!r}\n{fault}")
    finally:
        os.chdir(before)
    return tally


def lines(world: World, n: int, draw: random.Random) -> Iterator[list[str]]:
    """The command lines."""
    import shlex

    places = {"M": str(world.folder / "model"), "C": str(world.corpus), "I": str(world.index)}
    sound = [[places.get(word, word) for word in shlex.split(line)] for line in SOUND.strip().splitlines()]
    known = _options()
    for _ in range(n):
        arguments = list(draw.choice(sound))
        options = known.get(" ".join(arguments[:2])) or known[arguments[0]]
        for _ in range(draw.randint(1, 3)):
            _spoil(arguments, options, draw)
        yield arguments


def _spoil(arguments: list[str], known: list[str], draw: random.Random) -> None:
    """One mistake; mostly an odd value where a value belongs, because that comes furthest."""
    words = 2 if len(arguments) > 1 and arguments[0] in _GROUPS else 1
    values = [i for i in range(words, len(arguments)) if not arguments[i].startswith("-")]
    at = draw.randrange(words, len(arguments) + 1)  # perhaps the end, where a slice is empty
    match draw.randrange(12):
        case 0 | 1 | 2 | 3 | 4 if values:
            arguments[draw.choice(values)] = draw.choice(ODD)
        case 5 | 6 | 7:
            arguments += [draw.choice(known), draw.choice(VALUES)]
        case 8:
            del arguments[at : at + 1]
        case 9:
            arguments[at:at] = [draw.choice(ODD)]
        case 10:
            arguments += arguments[at : at + 2]
        case _:
            draw.shuffle(arguments) if draw.random() < 0.2 else arguments.append(draw.choice(known))


def _options() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}

    def walk(command: Any, name: str) -> None:
        for child, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{name} {child}".strip())
        found[name] = [option for p in command.params if p.param_type_name == "option" for option in p.opts]

    walk(get_command(app), "")
    return {name: names or ["--json"] for name, names in found.items()}


def _fault(arguments: list[str], tally: Tally) -> str | None:
    """Run one; what is wrong with how it ended, None if nothing."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"still running after {LONGEST} s of processor time, or {10 * LONGEST} s by the clock")

    before = {number: signal.signal(number, late) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    signal.alarm(10 * LONGEST)
    try:
        result = CliRunner().invoke(app, arguments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
    tally.ended[result.exit_code] += 1
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return "".join(traceback.format_exception(result.exception))
    line = [row for row in result.stderr.splitlines() if row.startswith("unembed: ")]
    if result.exit_code == 1 and "verify" not in arguments and len(line) != 1:
        return f"exit 1 without one line that says why: {result.stderr!r}"
    if result.exit_code == 2 and "Error" not in result.stderr:
        return f"exit 2 without the mistake: {result.stderr!r}"
    return None if result.exit_code in (0, 1, 2) else f"exit {result.exit_code}: {result.stderr!r}"
