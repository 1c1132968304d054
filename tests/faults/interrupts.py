"""Ctrl-C at a random moment of every command that takes long: one line, exit status 130, nothing half-written."""

from __future__ import annotations

import multiprocessing
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.faults.made import Ended, World, forked
from unembed.cli import main

LONG = """
trace 'Once upon a time there was a little girl' --html out.html
clusters --clusters 400 --layer 2
concepts --per-layer 20
circuits heads --html out.html
circuits composition
circuits induction
circuits stream
circuits expand 'Once upon a time there was' --model attn-2l
circuits skip-trigrams 0 0 --model attn-2l
steer 'The men were very' --promote happy --new-tokens 60
index build --corpus C --out built
early-exit fit --out rule.json --examples 300
toxicity evaluate --prompts P --set 0.1=3 --self-debiasing --cache kept
train dictionary --out trained
serve --no-browser --port 0
annotate export pages.html --per-layer 20
report elhage2021 --out out --model attn-2l
report geva2021 --corpus C --out out --option examples=150
report geva2022 --corpus C --out out
"""
"""On the embedded models, so that each runs for a while; C is a corpus, P the same lines as prompts."""


def commands(world: World) -> list[list[str]]:
    """The command lines."""
    files = {"C": str(world.corpus), "P": str(world.corpus)}
    return [[files.get(word, word) for word in shlex.split(line)] for line in LONG.strip().splitlines()]


def during(world: World, arguments: list[str], seconds: float) -> Ended:
    """Run a command in a fork, in an empty folder, and interrupt it after so many seconds."""
    place = world.folder / "interrupted"
    place.mkdir(exist_ok=True)

    ready = multiprocessing.get_context("fork").Event()

    def work() -> None:
        os.chdir(place)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["unembed", *arguments]
        ready.set()
        main()

    def interrupt(process: BaseProcess) -> None:
        ready.wait(60)  # before it has a handler the signal would be lost, or would end it without a word
        process.join(seconds)
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGINT)

    return forked(work, interrupt)


def starting(seconds: float) -> Ended:
    """Interrupt a process of its own, `unembed trace`, so many seconds after its start: most of that is importing."""
    command = [sys.executable, "-m", "unembed", "trace", "Once upon a time"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    ) as process:
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    return Ended(process.returncode, out, err)


def fault(ended: Ended, place: Path | None = None) -> str | None:
    """What is wrong with how a command ended; None if nothing.

    Python ends by the signal itself, which a shell also calls 130, when the signal met the code of a C extension.
    """
    if ended.code == -signal.SIGINT and "unembed/" not in ended.stderr and "runpy" in ended.stderr:
        return None  # Python was still starting: nothing of ours had run
    if ended.code not in (0, 130, -signal.SIGINT):
        return f"exit status {ended.code}: {ended.stderr[-400:]!r}"
    if "Traceback" in ended.stderr or "Exception ignored" in ended.stderr:
        return f"a traceback: {ended.stderr[-400:]!r}"
    if ended.code == -signal.SIGINT and ended.stdout and not ended.stderr:
        return None  # all was said, and Python was ending
    if ended.code != 0 and not ended.stderr.rstrip().endswith("unembed: Interrupted."):
        return f"{ended.code} without the line: {ended.stderr[-400:]!r}"
    left = [] if place is None else [p.name for p in place.rglob("*") if p.name.endswith((".tmp", ".writing"))]
    return f"left half-written: {left}" if left else None


def moments(n: int, longest: float, seed: int) -> list[float]:
    """Seconds after which to interrupt."""
    draw = random.Random(seed)
    return [draw.uniform(0.0, longest) for _ in range(n)]
