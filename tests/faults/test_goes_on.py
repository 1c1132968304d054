"""Work that Ctrl-C meets: what was done by then is kept, and the same command run again goes on to the same end."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from tools.training.loop import Run

from tests.faults.made import Ended, World, forked
from tests.tools.training.test_loop import RECIPE
from tests.tools.training.test_loop import corpus as corpus  # a fixture
from tests.tools.training.test_wikilm_mini import LINES, SMALL
from tools.training import wikilm_mini
from unembed.cli import main
from unembed.index import Index

NO_ONE: Callable[[BaseProcess], None] = lambda process: None  # noqa: E731


def command(line: str, place: Path, meanwhile: Callable[[BaseProcess], None] = NO_ONE) -> Ended:
    """Run a command in a fork, in a folder."""

    def work() -> None:
        os.chdir(place)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["unembed", *shlex.split(line)]
        main()

    return forked(work, meanwhile)


def once(there: Callable[[], Any]) -> Callable[[BaseProcess], None]:
    """Interrupt as soon as something is there; after a minute in any case."""

    def wait(process: BaseProcess) -> None:
        end = time.monotonic() + 60
        while process.is_alive() and not there() and time.monotonic() < end:
            time.sleep(0.005)
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGINT)

    return wait


def at_update(number: int, inner: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """The same function, in whose n-th call Ctrl-C is pressed so many times."""
    calls: list[None] = []

    def pressed(*given: Any) -> Any:
        calls.append(None)
        if len(calls) == number:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
        return inner(*given)

    return pressed


def test_training_finishes_its_update_and_resumes_to_the_same_weights(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(LINES))

    def work(name: str) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        text = wikilm_mini.text_of(str(tmp_path / "text.txt"))
        wikilm_mini.train(text, tmp_path / name, replace(SMALL, steps=12))

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            work("cut")

    assert forked(partial(work, "whole")).code == 0
    with mock.patch.object(wikilm_mini, "_loss", at_update(7, wikilm_mini._loss)):
        assert forked(interrupted).code == 0
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]
    assert torch.load(tmp_path / "cut" / "checkpoint.pt", weights_only=True)["step"] == 7
    assert forked(partial(work, "cut")).code == 0
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert set(whole) == set(cut) and all(torch.equal(whole[name], cut[name]) for name in whole)


@pytest.mark.parametrize(("times", "step"), [(1, 3), (2, 2)])
def test_one_ctrl_c_waits_for_the_update_and_two_do_not(corpus: Any, tmp_path: Path, times: int, step: int) -> None:
    Run(RECIPE, corpus, tmp_path, compiled=False).train(until=2)

    def work() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run = Run(RECIPE, corpus, tmp_path, compiled=False)
        with mock.patch.object(run, "_update", at_update(1, run._update, times)), pytest.raises(KeyboardInterrupt):
            run.train()

    assert forked(work).code == 0
    assert Run(RECIPE, corpus, tmp_path, compiled=False).step == step
    left = {path.name for path in tmp_path.iterdir()} - {"checkpoint.previous.pt"}  # none after the first save
    assert left == {"checkpoint.pt", "loss.jsonl"}


def test_toxicity_evaluate_stores_its_continuations_and_resumes_to_the_same_table(world: World, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("\n".join(f"The {letter} of the year" for letter in "abcdefgh"))
    what = f"--set 0.1=3 --batch 2 --clean-tokens 256 --model {world.folder}/model"
    line = f"toxicity evaluate --prompts prompts.txt {what} --csv"
    written = lambda: [row for file in tmp_path.glob("cut/*") for row in file.read_text().splitlines()]  # noqa: E731
    whole = command(f"{line} --cache whole", tmp_path)
    assert whole.code == 0 and whole.stdout.count("\n") == 3, whole
    ended = command(f"{line} --cache cut", tmp_path, once(written))
    assert ended.code == 130 and ended.stderr == "unembed: Interrupted.\n" and not ended.stdout
    before = written()
    assert 2 <= len(before) < 16  # two arms of eight prompts
    again = command(f"{line} --cache cut", tmp_path)
    assert again.stdout == whole.stdout
    assert written()[: len(before)] == before and len(written()) == 16


def test_serve_ends_with_one_line_and_keeps_its_labels(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.index, tmp_path / "index")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def ask(path: str, body: dict[str, Any] | None = None, patience: float = 30.0) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"authorization": "Bearer known", "content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/api/v1/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=patience) as answer:
            return json.load(answer)

    def interrupt_after_start(process: BaseProcess) -> None:
        def up() -> bool:
            try:
                return bool(ask("labels?layer=1&index=3"))
            except urllib.error.HTTPError:
                raise
            except OSError:
                return False

        while process.is_alive() and not up():
            time.sleep(0.05)
        ask("labels", {"layer": 1, "index": 3, "label": "months", "author": "ann"})
        once(lambda: True)(process)

    with mock.patch("unembed.server.serve.session_token", lambda _port, _folder: "known"):
        line = f"serve --no-browser --port {port} --model {world.folder}/model --index index"
        ended = command(line, tmp_path, interrupt_after_start)
    assert ended.code == 130 and ended.stderr == "unembed: Interrupted.\n", ended
    assert ended.stdout.startswith("unembed explorer of")
    assert [row["label"] for row in Index.open(tmp_path / "index").labels(1, 3).rows()] == ["months"]
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", port)) != 0  # nothing of it still listens
