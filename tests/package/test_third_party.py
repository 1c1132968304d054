"""Another package's analysis, found by its entry point, has a command, a route, and its function in Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "attention_entropy"
PROMPT = "The first month of the year is"
ALL_WAYS = f"""
import json
from starlette.testclient import TestClient
from typer.testing import CliRunner
import attention_entropy
import unembed
from unembed.cli.commands import app
from unembed.server.app import create
from unembed.server.state import ServerState

lm = unembed.load("attn-2l")
printed = CliRunner().invoke(app, ["circuits", "entropy", {PROMPT!r}, "--top", "3", "--json"])
state = ServerState(lm)
page = TestClient(create(state, token="t", port=7333), base_url="http://127.0.0.1:7333",
                  headers={{"authorization": "Bearer t"}})
answered = page.post("/api/v1/analyses/circuits-entropy", json={{"prompt": {PROMPT!r}, "top": 3}})
state.close()
called = attention_entropy.entropy(lm, {PROMPT!r}, top=3).to_dict()
print(json.dumps([json.loads(printed.stdout), answered.json(), called]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the example installed."""
    folder = tmp_path_factory.mktemp("installed")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", str(folder), str(EXAMPLE)]
    subprocess.run(command, check=True, capture_output=True)
    ours = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(ours), "COLUMNS": "80"}


def printed(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(
        [sys.executable, *command], env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_the_three_ways_to_ask_give_one_answer(installed: dict[str, str]) -> None:
    command, route, python = json.loads(printed(installed, "-c", ALL_WAYS).splitlines()[-1])
    assert command == route == python
    assert len(command["rows"]) == 3 and command["rows"][0]["entropy"] < command["rows"][2]["entropy"]


def test_its_help_is_that_of_the_packages_own_commands_and_loads_no_torch(installed: dict[str, str]) -> None:
    code = "import sys; sys.argv = ['unembed', 'circuits', 'entropy', '--help']\nfrom unembed.cli import main\n"
    code += "try:\n    main()\nexcept SystemExit:\n    print('torch' in sys.modules)"
    shown = printed(installed, "-c", code)
    assert "List the heads that spread" in shown and "Number of rows to list." in shown and "--html" in shown
    assert shown.splitlines()[-1] == "False"


def test_without_it_the_command_does_not_exist() -> None:
    done = subprocess.run([sys.executable, "-m", "unembed", "circuits", "entropy"], capture_output=True, text=True)
    assert done.returncode == 2 and "No such command" in done.stderr
