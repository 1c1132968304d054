"""A sweep that is killed, stopped, or fails goes on and ends bit for bit as one never interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.sweeps import interrupted
from tests.sweeps.recorder import lettered, texts
from unembed.corpus import open_corpus
from unembed.corpus.segments import Batch
from unembed.errors import CheckpointFault, InvalidInput
from unembed.sweeps import ActiveFraction, CheckpointInterval, Progress, TopTriggers, sweep

WAIT = 120


def same(a: Any, b: Any) -> bool:
    """Equal, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return a == b


def started(folder: Path) -> subprocess.Popen[bytes]:
    """The slow sweep under way, its first checkpoint written."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.sweeps.interrupted", str(folder), "0.15"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    end = time.monotonic() + WAIT
    while not (folder / "sweep.pt").exists():
        assert program.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    return program


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_killed_at_any_moment_resumes(how: signal.Signals, tmp_path: Path) -> None:
    program = started(tmp_path)
    time.sleep(0.37)
    program.send_signal(how)
    assert program.wait(WAIT) != 0
    done = torch.load(tmp_path / "sweep.pt")["batches"]
    assert done > 0 and not torch.load(tmp_path / "sweep.pt")["finished"]
    fed = []

    class Counting(interrupted.Slow):
        def update(self, batch: Batch) -> None:
            super().update(batch)
            fed.append(batch.number)

    Counting.__name__ = "Slow"
    todo = interrupted.reducers()
    todo[-1] = Counting()
    resumed = sweep(
        lettered("gpt2"), open_corpus(texts(30)), todo, checkpoint=tmp_path / "sweep.pt", tokens_per_batch=150
    )
    assert fed[0] == done
    whole = sweep(lettered("gpt2"), open_corpus(texts(30)), interrupted.reducers(), tokens_per_batch=150)
    assert all(same(a, b) for a, b in zip(resumed, whole, strict=True))


class Failing(ActiveFraction):
    """Fails at a batch."""

    at = -1

    def update(self, batch: Batch) -> None:
        super().update(batch)
        if batch.number == type(self).at:
            raise RuntimeError("power cut")


def test_every_batch_can_be_the_last_one(tmp_path: Path) -> None:
    lm, corpus, file = lettered("opt"), open_corpus(texts(8)), tmp_path / "deep" / "sweep.pt"
    n = sum(1 for _ in corpus.batches(lm, 100))
    assert n > 4
    whole = sweep(lm, corpus, [TopTriggers(5), Failing()], tokens_per_batch=100)
    for at in range(n):
        Failing.at = at
        with pytest.raises(RuntimeError, match="power cut"):
            sweep(
                lm,
                corpus,
                [TopTriggers(5), Failing()],
                checkpoint=file,
                every=CheckpointInterval(batches=1),
                tokens_per_batch=100,
            )
    Failing.at = -1
    resumed = sweep(lm, corpus, [TopTriggers(5), Failing()], checkpoint=file, tokens_per_batch=100)
    assert all(same(a, b) for a, b in zip(resumed, whole, strict=True))
    Failing.at = 0  # a finished checkpoint feeds nothing
    again = sweep(lm, corpus, [TopTriggers(5), Failing()], checkpoint=file, tokens_per_batch=100)
    assert all(same(a, b) for a, b in zip(again, whole, strict=True))
    assert [p.name for p in file.parent.iterdir()] == ["sweep.pt"]
    Failing.at = -1


def test_only_the_same_sweep_resumes(tmp_path: Path) -> None:
    lm, file = lettered("opt"), tmp_path / "sweep.pt"
    sweep(lm, ["some text"], [TopTriggers(5)], checkpoint=file)
    for message, attempt in {
        "corpus": lambda: sweep(lm, ["other text"], [TopTriggers(5)], checkpoint=file),
        "reducers": lambda: sweep(lm, ["some text"], [TopTriggers(6)], checkpoint=file),
        "batch size": lambda: sweep(lm, ["some text"], [TopTriggers(5)], checkpoint=file, tokens_per_batch=9),
        "weights|model": lambda: sweep(lettered("gpt2"), ["some text"], [TopTriggers(5)], checkpoint=file),
    }.items():
        with pytest.raises(CheckpointFault, match=f"another sweep: its ({message})"):
            attempt()


def test_a_damaged_checkpoint_is_named_in_the_error(tmp_path: Path) -> None:
    lm, file = lettered("opt"), tmp_path / "sweep.pt"
    sweep(lm, ["some text"], [TopTriggers(5)], checkpoint=file)
    whole = file.read_bytes()
    middle = whole.index(torch.load(file)["states"][0]["0.1.values"].numpy().tobytes()[:64])
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for damage in (
        flipped,
        whole[: len(whole) // 2],
        b"",
        b"nothing of the kind",
        whole[:3000] + bytes(500) + whole[3500:],
    ):
        file.write_bytes(damage)
        with pytest.raises(CheckpointFault, match=r"sweep\.pt"):
            sweep(lm, ["some text"], [TopTriggers(5)], checkpoint=file)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointFault, match="cannot be written"):
        sweep(lettered("opt"), ["some text"], [TopTriggers(5)], checkpoint=tmp_path / "file" / "sweep.pt")


def test_progress_ends_at_the_end() -> None:
    seen: list[Progress] = []
    [found] = sweep(lettered("opt"), texts(5), [ActiveFraction()], tokens_per_batch=100, progress=seen.append)
    assert seen[-1].share == 1.0 and seen[-1].tokens == found.count and seen[-1].left == 0
    assert all(a.share <= b.share for a, b in pairwise(seen))
    assert "100.0 %" in seen[-1].line() and f"{found.count:,} tokens" in seen[-1].line()


def test_meaningless_arguments_are_refused() -> None:
    bad: list[dict[str, Any]] = [{"engine": "mail"}, {"tokens_per_batch": 0}]
    for options in bad:
        with pytest.raises(InvalidInput):
            sweep(lettered("opt"), ["abc"], [TopTriggers(5)], **options)
    with pytest.raises(InvalidInput, match="at least one"):
        sweep(lettered("opt"), ["abc"], [])


def test_what_a_killed_sweep_left_half_written_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".sweep.pt.99999-7.writing"
    left.write_bytes(b"half")
    interrupted.run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.pt"]
