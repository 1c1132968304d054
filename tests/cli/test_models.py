"""`unembed models get` fits the lens of a model that it fetched, once, and not with --without-lens."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import unembed
from tests.cli.conftest import save_model
from unembed.jacobian import cached_lens
from unembed.jacobian.sums import JacobianSums


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model where the fetched SmolLM2 would be."""
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    return save_model(tmp_path / "cache" / "models" / "smollm2")


def got(*words: str) -> Result:
    from unembed.cli.commands import app

    return CliRunner().invoke(app, ["models", "get", "smollm2", *words])


def test_the_lens_is_fitted_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = unembed.load(folder)
    skipped = got("--without-lens")
    assert skipped.exit_code == 0 and "lens" not in skipped.stderr and cached_lens(lm) is None
    first = got()
    assert first.exit_code == 0 and "Fitting the Jacobian lens of smollm2" in first.stderr
    lens = cached_lens(lm)
    assert lens is not None and lens.contexts == 64 and lens.check is not None
    monkeypatch.setattr(JacobianSums, "update", None)  # nothing is fitted again
    again = got()
    assert again.exit_code == 0 and "Fitting" not in again.stderr
