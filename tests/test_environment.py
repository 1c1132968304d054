"""What `check_environment` says agrees with what is installed, and says how to get what is not."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from unembed import environment
from unembed.environment import check_environment


def test_versions_are_those_installed() -> None:
    found = {finding.what: finding for finding in check_environment()}
    for package in ("torch", "transformers", "numpy"):
        assert found[package].found == metadata.version(package)
        assert found[package].state == "ok"
        assert found[package].command == ""


def test_a_missing_requirement_comes_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without(name: str) -> str:
        if name in ("duckdb", "ray"):
            raise metadata.PackageNotFoundError(name)
        return "1.0" if name == "rich" else version(name)

    monkeypatch.setattr(environment.metadata, "version", without)
    found = {finding.what: finding for finding in check_environment()}
    assert (found["duckdb"].state, found["ray"].state) == ("missing", "absent")
    assert found["duckdb"].command.startswith("pip install 'duckdb")
    assert found["ray"].command == "pip install 'unembed[ray]'"
    assert found["rich"].state == "too old or new"
    assert "rich" in found["rich"].command


EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - {"all", "test", "lint"}))
def test_every_extra_that_is_missing_comes_with_its_command(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`all`, `test` and `lint` are parts or sums of others."""
    requirements_ = [f'{line}; extra == "{name}"' for name, lines in EXTRAS.items() for line in lines]
    monkeypatch.setattr(environment.metadata, "requires", lambda _: requirements_)

    def without(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(environment.metadata, "version", without)
    assert f"pip install 'unembed[{extra}]'" in {finding.command for finding in check_environment()}


def test_an_extra_holds_what_the_extras_it_names_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements_ = [
        'unembed[a]; extra == "dev"',
        'torch>=2; extra == "dev"',
        'numpy; extra == "a"',
        'absent; extra == "a"',
    ]
    monkeypatch.setattr(environment.metadata, "requires", lambda _: requirements_)
    found = {finding.what: finding for finding in check_environment()}
    assert (found["[dev]"].found, found["[dev]"].state) == ("2 of 3 packages", "absent")
    requirements_.remove(requirements_[-1])
    assert {finding.what: finding for finding in check_environment()}["[dev]"].state == "ok"


def test_missing_weights_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("unembed.models.shipped_models.shipped_folder", lambda name: tmp_path / name)
    found = {finding.what: finding for finding in check_environment()}
    assert found["wren"].state == "missing"
    assert found["wren"].command
