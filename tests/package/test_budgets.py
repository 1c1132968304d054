"""What must not grow unnoticed: peak memory, and runs of the model. Times are printed (`-s`), never asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import json, os, sys, time, torch, unembed
torch.set_num_threads(1)
lm = unembed.load()
prompt = "Once upon a time there was a little girl who lived in a house by the sea . " * 4
WORK = {
    "trace": lambda: lm.trace(prompt).readings(),
    "attribution": lambda: lm.trace(prompt).attribution(" girl", by="memory"),
    "values": lambda: unembed.value_readings(lm, k=30),
    "composition": lambda: unembed.circuits(lm).composition("q"),
    "copying": lambda: unembed.circuits(lm).copying_scores(),
}
runs = []
lm.hf.register_forward_pre_hook(lambda *_: runs.append(1))
def held(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))
def measure(work):
    lm.trace("Once")  # what is loaded on first use is no part of the work
    runs.clear()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before, start = held("VmRSS"), time.process_time()
    work()
    return {"peak": held("VmHWM") - before, "runs": len(runs), "seconds": time.process_time() - start}
for name, work in WORK.items():  # each in a process of its own, which begins with the open model
    if os.fork() == 0:
        print(json.dumps({"work": name, **measure(work)}), flush=True)
        os._exit(0)
    os.wait()
"""
BUDGETS = {"trace": (80, 1), "attribution": (60, 1), "values": (110, 0), "composition": (60, 0), "copying": (60, 0)}
"""MB above what the open model takes, and runs of the model; a trace keeps what an attribution by memory needs.

All values' scores at once would be 8 x 1,024 x 16,384 numbers (537 MB); a head's matrix over the vocabulary, 1.1 GB.
"""


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, float]]:
    """The peak memory, runs and seconds of each piece of work."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    return {found["work"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read where Linux keeps it")
@pytest.mark.parametrize("work", BUDGETS)
def test_peak_memory_and_runs_of_the_model(work: str, measured: dict[str, dict[str, float]]) -> None:
    found = measured[work]
    print(f"{work}: {found['peak']:.0f} MB, {found['runs']} runs, {found['seconds']:.2f} s")
    megabytes, runs = BUDGETS[work]
    assert found["peak"] <= megabytes
    assert found["runs"] == runs
