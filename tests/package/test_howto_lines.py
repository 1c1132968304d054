"""Every command line in a block of the how-to pages and of docs/cli.md works as typed, next to the files it names."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.package.test_typed_commands import DOCS
from unembed.cli.commands import app

PAGES = [*sorted((DOCS / "howto").glob("*.md")), DOCS / "cli.md"]
UNTYPED = {
    "meta-llama/": "a model of the hub, which needs the network and a large machine",
    "--engine ray": "starts a Ray cluster; tests/sweeps/ray runs it",
    "build/toxic-wren": "a model that `make toxic-model` fine-tunes on comments that do not ship",
    "unembed report ": "a study of minutes; tests/package/test_readme.py and tests/reports run smaller ones",
    "--what screen": "screens every memory: more than ten seconds of a core",
    "--corpus shipped": "reads the whole shipped text: minutes",
    "--verify": "erases at every reader: more than a minute",
    "circuits induction": "runs a model on many sequences; tests/cli/test_circuits.py runs the command on a tiny model",
    "unembed toxicity": "generates text for minutes; tests/steering/whole/test_commands.py runs a tiny model",
    "unembed early-exit": "tests/package/test_readme.py types fit and evaluate with smaller samples",
    "unembed clusters": "clusters every value; tests/cli/test_clusters.py runs the command on a tiny model",
    "unembed memories": "ranks every memory; tests/package/test_readme.py types it",
    "smollm2.atlas": "an atlas of a fetched model; tests/atlas/whole builds and opens one of the shipped model",
    "--model smollm2": "a model that is fetched; tests/real runs it",
    "my/model": "a name in place of the reader's own",
}
"""Lines that are not typed here, by what they contain, and why."""


MADE_BY = {
    "mine.index": "unembed index build --corpus mine.jsonl --out mine.index",
    "edits.json": "unembed steer The --scale L1H5=0 --save edits.json --new-tokens 2",
}
"""The files that a line reads and another line writes, and how they are made where they are not there yet."""


def lines() -> Iterator[str]:
    """The lines of the blocks; the first block of docs/cli.md lists the commands."""
    for page in PAGES:
        blocks = re.findall(r"^```(?:text|console|bash)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        indented = re.findall(r"^ {4}(unembed .*)$", page.read_text("utf-8"), re.MULTILINE)
        for block in ["\n".join(indented), *blocks[1 if page.name == "cli.md" else 0 :]]:
            yield from re.findall(r"^unembed [a-z].*?(?=\s{2,}#|\s+#|$)", block, re.MULTILINE)


LINES = sorted(set(lines()))


def run(line: str) -> str:
    """What the line prints."""
    words, _, source = line.partition(" > ")[0].partition(" < ")
    done = CliRunner().invoke(app, shlex.split(words)[1:], input=Path(source).read_text("utf-8") if source else None)
    assert done.exit_code == 0, f"{line}: {done.stderr} {done.exception!r}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with every file that the lines name."""
    made = tmp_path_factory.mktemp("pages")
    sentences = ["The king of France died in May.", "She was born on 16 August in the United States, at a lake."] * 8
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setenv("UNEMBED_CACHE", str(made / "cache"))
        for name in ("mine.jsonl", "my.jsonl"):
            Path(name).write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences), encoding="utf-8")
        for name in ("text.txt", "prompts.txt"):
            Path(name).write_text("\n".join(sentences[:2]) + "\n", encoding="utf-8")
        Path("long.txt").write_text(" ".join(sentences * 4), encoding="utf-8")
        Path("banned.txt").write_text("idiot\n", encoding="utf-8")
        Path("comments.csv").write_text(
            "".join(f"Thank you {n}.,0\nYou idiot {n}.,1\n" for n in range(20)), encoding="utf-8"
        )
        Path("prompts.jsonl").write_text(json.dumps({"prompt": {"text": "The man said"}}) + "\n", encoding="utf-8")
        np.save("vector.npy", np.ones(256, dtype=np.float32))
        Path("other.json").write_text(json.dumps([0.5] * 256))
        run("unembed index build --corpus mine.jsonl")
        yield made


def _fill_in_sheets() -> None:
    run("unembed annotate export empty.json --per-layer 1")
    for name in ("ann", "ben"):
        sheet = json.loads(Path("empty.json").read_text("utf-8"))
        Path(f"{name}.json").write_text(json.dumps(sheet | {"annotator": name}), encoding="utf-8")


@pytest.mark.parametrize("line", [line for line in LINES if not any(part in line for part in UNTYPED)])
def test_a_line_of_the_pages_works_as_typed(line: str, folder: Path) -> None:
    for name in MADE_BY.keys() & set(line.split()):
        if not Path(name).exists():
            run(MADE_BY[name])
    if "annotate import" in line or "annotate agreement" in line:
        _fill_in_sheets()
    printed = run(line)
    given = shlex.split(line.partition(" < ")[0])
    written = [Path(given[at + 1]) for at, word in enumerate(given) if word in ("--html", "--out", "--save")]
    assert [path for path in written if not path.exists()] == []
    assert written or printed or "export" in line
    assert [row for row in printed.splitlines() if row != row.rstrip() and "--csv" not in line] == []


def test_many_lines_are_typed_and_few_are_not() -> None:
    untyped = [line for line in LINES if any(part in line for part in UNTYPED)]
    assert len(LINES) - len(untyped) > 35
    assert {part for part in UNTYPED if not any(part in line for line in LINES)} == set()
