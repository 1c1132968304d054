"""The explorer out of the built wheel, not the source tree: its page is inside and it serves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import expect

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, unpacked as pip would."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_serves_its_own_page(browser, installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "unembed", "serve", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            link = re.search(r"http://\S+", line)
            assert link is not None, line
            context = browser.new_context()
            page = context.new_page()
            page.goto(link[0])
            expect(page.get_by_role("grid", name="Most likely next token")).to_be_visible()
            assert "token=" not in page.url
            context.close()
        finally:
            server.terminate()
            server.wait(timeout=20)
    served = subprocess.run(
        [sys.executable, "-P", "-c", "import unembed; print(unembed.__file__)"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert served.stdout.startswith(str(installed))
