"""The explorer opens the ready index of its model, as a trace does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unembed.index import Index
from unembed.index.default_index import cached_index
from unembed.language_model import LanguageModel

pytest.importorskip("uvicorn")
from unembed.server import serve as running


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `unembed serve` hands to the server."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(
        running, "serve", lambda lm, index, **options: seen.append({"lm": lm, "index": index, **options})
    )
    return seen


def test_serve_opens_the_ready_index(
    built: Index,
    lm: LanguageModel,
    folders: dict[str, Path],
    served: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from unembed.cli.commands import app

    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))

    def serve(*options: object) -> dict[str, Any]:
        result = CliRunner().invoke(app, ["serve", "--no-browser", *map(str, options)])
        assert result.exit_code == 0, result.stderr
        return served[-1]

    assert serve("--model", folders["gpt2"])["index"] is None
    ready = Path(shutil.copytree(built.path, tmp_path / "cache" / "ready"))
    assert cached_index(lm) is not None
    found = serve("--model", folders["gpt2"])
    assert found["index"].path == ready and found["index_name"] == built.provenance.notes["corpus_name"]
    assert found["index"].model is found["lm"]
    assert serve("--model", folders["llama"])["index"] is None
    named = serve("--model", folders["gpt2"], "--index", built.path)
    assert (named["index"].path, named["index_name"]) == (built.path, "gpt2")
