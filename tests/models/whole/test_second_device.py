"""Models on a device other than the processor's, and on both, without a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.models.whole.test_kinds import KINDS

ALL = (*KINDS, "glm4_moe", "dbrx", "llama4_text")


@pytest.mark.parametrize(
    "names",
    [(family, *ALL[i::3]) for i, family in enumerate(("gpt2", "gemma2", "mixtral"))],
    ids=lambda names: names[0],
)
def test_a_model_on_a_second_device_gives_the_results_of_the_processor(names: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.whole.second_device", *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == list(names)
