"""The tutorial as a notebook runs from top to bottom with nothing but the installed package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples/tutorial.ipynb"


def test_it_needs_nothing_of_the_repository_and_runs(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = [line for code in codes for line in code.splitlines()]
    imported = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert imported <= {"unembed"}
    (tmp_path / "tutorial.ipy").write_text("\n".join(codes), "utf-8")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "IPYTHONDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--colors=NoColor", "tutorial.ipy"],
        capture_output=True, text=True, env=environment, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    assert "with     ' until'" in done.stdout and "without  ' to'" in done.stdout
