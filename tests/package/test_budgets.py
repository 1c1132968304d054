"""What must not grow unnoticed: peak memory, and runs of the model. Times are printed (`-s`), never asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import json, sys, time, torch, unembed
torch.set_num_threads(1)
lm = unembed.load()
prompt = "Once upon a time there was a little girl who lived in a house by the sea . " * 4
work = {
    "trace": lambda: lm.trace(prompt).readings(),
    "attribution": lambda: lm.trace(prompt).attribution(" girl", by="memory"),
    "values": lambda: unembed.value_readings(lm, k=30),
    "composition": lambda: unembed.circuits(lm).composition("q"),
    "copying": lambda: unembed.circuits(lm).copying_scores(),
}[sys.argv[1]]
lm.trace("Once")  # what is loaded on first use is no part of the work
runs = []
lm.hf.register_forward_pre_hook(lambda *_: runs.append(1))
def held(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before, start = held("VmRSS"), time.process_time()
work()
print(json.dumps({"peak": held("VmHWM") - before, "runs": len(runs), "seconds": time.process_time() - start}))
"""
BUDGETS = {"trace": (80, 1), "attribution": (60, 1), "values": (110, 0), "composition": (60, 0), "copying": (60, 0)}
"""MB above what the open model takes, and runs of the model; a trace keeps what an attribution by memory needs.

All values' scores at once would be 8 x 1,024 x 16,384 numbers (537 MB); a head's matrix over the vocabulary, 1.1 GB.
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read where Linux keeps it")
@pytest.mark.parametrize("work", BUDGETS)
def test_peak_memory_and_runs_of_the_model(work: str) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, work], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{work}: {found['peak']:.0f} MB, {found['runs']} runs, {found['seconds']:.2f} s")
    megabytes, runs = BUDGETS[work]
    assert found["peak"] <= megabytes
    assert found["runs"] == runs
