"""What importing costs, told by the modules that come along rather than by the clock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "transformers", "numpy", "pyarrow", "duckdb", "pydantic", "jaxtyping", "rich", "typer"}


def modules_after(code: str) -> set[str]:
    """The modules that a fresh process holds after the code has run."""
    command = [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(json.loads(printed.splitlines()[-1]))


def test_importing_the_package_brings_no_heavy_module() -> None:
    came = modules_after("import unembed")
    assert not came & HEAVY
    ours = {name for name in came if name.startswith("unembed")}
    assert ours == {"unembed", "unembed.lazy", "unembed.version"}


def test_the_check_notices_a_heavy_module() -> None:
    assert "torch" in modules_after("import unembed, torch")


def command(arguments: list[str]) -> str:
    """Code that runs `unembed` with these arguments in a fresh process."""
    return f"""
import sys
sys.argv = ["unembed", *{arguments!r}]
from unembed.cli import main
try:
    main()
except SystemExit:
    pass
"""


SHEET = '{"schema": "unembed.annotation/1", "vectors": [{"vector": "L3M17", "tokens": [{"id": 5}], "patterns": []}]}'


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["trace", "--help"], ["models"], ["--version"], ["annotate", "import", "a.json"]],
    ids=" ".join,
)
def test_answers_that_need_no_model_load_no_torch(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(SHEET)
    came = modules_after(command(arguments))
    assert "typer" in came
    assert not came & {"torch", "transformers", "pyarrow", "duckdb"}


def test_a_build_into_a_folder_of_other_files_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a text")
    arguments = ["index", "build", "--out", str(tmp_path), "--corpus", str(tmp_path / "notes.txt")]
    assert not modules_after(command(arguments)) & {"torch", "transformers", "pyarrow"}


def test_an_index_is_built_without_pandas(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("A short text.")
    came = modules_after(command(["index", "build", "--out", str(tmp_path / "index"), "--corpus", str(corpus)]))
    assert "pyarrow" in came and "pandas" not in came


def test_a_trace_loads_only_what_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path))  # no index there
    came = modules_after(command(["trace", "The lake is 15", "--json"]) + "\nimport gc\nassert gc.isenabled()")
    assert "transformers.models.gpt2.modeling_gpt2" in came
    assert not came & {"pyarrow", "duckdb", "pandas", "transformers.models.bloom", "unembed.reports", "unembed.server"}


def test_an_unknown_name_is_refused() -> None:
    import unembed

    with pytest.raises(AttributeError, match="no_such_name"):
        unembed.no_such_name  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
