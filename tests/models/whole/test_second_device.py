"""Models on a device other than the processor's, without a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "mixtral"])
def test_a_model_on_a_second_device_gives_the_results_of_the_processor(family: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.whole.second_device", family], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(f"{family}: ")
