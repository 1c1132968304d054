"""What a user installs: the package with its weights, its text and their licences, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_MB = 45


def test_the_wheel_holds_weights_text_and_licences(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "unembed/py.typed",
        "unembed/models/shipped/wren/model.safetensors",
        "unembed/models/shipped/wren/config.json",
        "unembed/models/shipped/wren/tokenizer.json",
        "unembed/models/shipped/tokenizer/tokenizer.json",
        "unembed/corpus/shipped/wikitext/valid.txt",
        "unembed/corpus/shipped/wikitext/README.md",
    ):
        assert name in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("licenses/NOTICE") for name in names)


def test_the_wheel_holds_nothing_else_and_stays_small(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert all(name.startswith("unembed/") for name in names)
    kinds = {Path(name).suffix for name in names}
    assert kinds <= {
        ".py",
        ".typed",
        ".safetensors",
        ".json",
        ".jsonl",
        ".txt",
        ".md",
        ".svg",
        ".npz",
        ".css",
        ".html",
        ".js",
    }
    assert wheel.stat().st_size < LIMIT_MB * 1e6


def test_the_wheel_names_its_requirements_and_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    read = {name.rsplit("/", 1)[1]: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    about = message_from_string(read["METADATA"])
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.11"
    assert "unembed = unembed.cli:main" in read["entry_points.txt"]
    core = {re.split("[<>=]", line)[0] for line in about.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert core == {
        *(
            "torch",
            "fastapi",
            "uvicorn",
            "transformers",
            "numpy",
            "packaging",
            "safetensors",
            "regex",
            "pyarrow",
            "duckdb",
            "jaxtyping",
            "typer",
            "rich",
            "pydantic",
            "scipy",
        )
    }


def test_constraints_pin_every_core_requirement_without_local_versions() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {name.split(">")[0] for name in project["dependencies"]} <= set(pins)
    assert not any("+" in version for version in pins.values())


def test_everything_shipped_has_a_licence_in_the_notice() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    shipped = [*(ROOT / "src/unembed/corpus/shipped").iterdir(), *(ROOT / "src/unembed/models/shipped").iterdir()]
    for path in shipped:
        if path.is_dir() and path.name != "tokenizer":
            assert path.name in notice


def test_no_weights_are_pickled() -> None:
    """A pickle can run code when it is opened; safetensors cannot."""
    for path in (ROOT / "src/unembed/models/shipped").rglob("*"):
        assert path.suffix not in (".bin", ".pt", ".pkl", ".pickle")
    for path in (ROOT / "src/unembed/models/shipped").rglob("config.json"):
        assert "auto_map" not in json.loads(path.read_text())


def test_the_python_in_use_is_one_the_project_supports() -> None:
    assert sys.version_info >= (3, 11)


def test_installed_by_itself_and_offline_it_traces(wheel: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(tmp_path / "there"), str(wheel)], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "there"), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", "import unembed; print(unembed.__file__); from unembed.cli import main; main()"]
    done = subprocess.run(
        [*command, "trace", "Once upon a time", "--json"],
        capture_output=True, text=True, check=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    where, _, answer = done.stdout.partition("\n")
    assert Path(where).is_relative_to(tmp_path)
    assert json.loads(answer)["model"] == "wren"


def test_the_source_holds_all_that_a_build_and_its_tests_need_and_nothing_else(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    if not any(tracked):
        pytest.skip("not a checkout: there is no list of files to compare with")
    wanted = {name for name in tracked if name and not name.startswith(".") and (ROOT / name).exists()}
    assert wanted - set(names) == set()
    tops = {name.split("/")[0] for name in wanted} | {"PKG-INFO", ".gitignore"}
    assert {name.split("/")[0] for name in names} <= tops
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".part", ".log"))]
