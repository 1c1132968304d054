"""Every command line of README.md does what its row says, typed into an empty folder after `make run`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.conftest import save_model
from tests.package.shown import README
from unembed.cli.commands import app

ROWS = [
    row.rpartition("|")[0].rpartition("|")[2].strip()
    for row in re.findall(r"^\| to see \| type \|\n(?:\|.*\n)+", README.read_text("utf-8"), re.MULTILINE)[
        0
    ].splitlines()[2:]
]
LIGHTER = {
    "report": "--option examples=20 --option perturbed_keys=2 --option pattern_keys=2 --option control=false",
    "early-exit fit": "--examples 60 --clusters 20",
    "early-exit evaluate": "--examples 40",
    "serve": "--no-browser --port 0",
}
"""What a test adds to the line, so that it takes seconds: smaller samples, and no browser."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a user's text, and a model under the name of the one that the rows take from the hub."""
    made = tmp_path_factory.mktemp("readme")
    save_model(made / "gpt2")
    sentences = ["The king of France died in May.", "She was born on 16 August in the United States, at a lake."]
    (made / "my.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setenv("UNEMBED_CACHE", str(made / "cache"))
        patch.setattr("unembed.server.serve.serve", lambda lm, *_, **options: print(lm.name, options["port"]))
        yield made


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_readme_works_as_typed(row: str, folder: Path) -> None:
    lines = re.findall(r"`([^`]+)`", row)
    assert lines
    for line in lines:
        program, *given = shlex.split(line)
        assert program == "unembed"
        added = next((more for words, more in LIGHTER.items() if line.startswith(f"unembed {words}")), "")
        done = CliRunner().invoke(app, [*given, *shlex.split(added)])
        assert done.exit_code == 0, f"{line}: {done.stderr} {done.exception!r}"
        written = [Path(given[at + 1]) for at, word in enumerate(given) if word in ("--html", "--out")]
        assert [path for path in written if not path.exists()] == []
        assert written or done.stdout
