"""A model of the hub without a network: found out in one request; what the cache holds is opened all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import save_model
from unembed.errors import ModelUnavailable
from unembed.models import hub

NOWHERE = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
"""An address of this machine where nothing listens: a connection is refused at once."""


class Session:
    """Stands for the session of huggingface_hub; counts what it is used for."""

    def __init__(self, error: Exception | None) -> None:
        self.requests, self.error = 0, error

    def head(self, address: str, *, timeout: float) -> Any:
        self.requests += 1
        assert timeout <= 2
        if self.error is not None:
            raise self.error


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    made = Session(None)
    monkeypatch.setattr("huggingface_hub.utils.get_session", lambda: made)
    return made


def test_a_reachable_hub_is_used_after_one_request(session: Session) -> None:
    assert not hub.is_local_only("no/such-model")
    assert session.requests == 1


def test_a_model_that_is_neither_cached_nor_within_reach_is_refused_with_the_reason(session: Session) -> None:
    session.error = OSError("Name or service not known")
    with pytest.raises(ModelUnavailable, match=r"no/such-model.*cannot be reached \(Name or service not known\).*wren"):
        hub.is_local_only("no/such-model")
    assert session.requests == 1


def in_cache(home: Path, name: str) -> None:
    """A model as huggingface_hub stores it."""
    folder = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    shutil.copytree(save_model(home / "made"), snapshot)


def command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **NOWHERE, "HF_HOME": str(home)}
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('torch' if 'torch' in sys.modules else 'light'))\n"
        "from unembed.cli import main\n"
        "main()"
    )
    line = [sys.executable, "-c", code, *arguments]
    return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=120)


def test_a_cached_model_opens_without_a_network(tmp_path: Path) -> None:
    in_cache(tmp_path, "some/tiny")
    done = command(tmp_path, "trace", "The first month of the year is", "--model", "some/tiny")
    assert done.returncode == 0, done.stderr
    assert "some/tiny" in done.stdout


@pytest.mark.parametrize("words", [["trace", "a"], ["value", "0", "0"], ["circuits", "heads"], ["serve"]])
def test_without_a_network_a_command_fails_in_one_line_before_torch_is_imported(
    words: list[str], tmp_path: Path
) -> None:
    done = command(tmp_path, *words, "--model", "no/such")
    assert done.returncode == 1
    assert done.stdout == "light\n" or words[0] == "value"  # which opens a model only where the index does not answer
    assert done.stderr.startswith("unembed: model no/such: ") and done.stderr.count("\n") == 1


def test_offline_asks_no_hub_for_a_model_or_its_adapter(tmp_path: Path) -> None:
    done = command(tmp_path, "trace", "a", "--model", "no/such", "--offline")
    assert done.returncode == 1
    assert done.stderr.startswith("unembed: model no/such: ") and done.stderr.count("\n") == 1
