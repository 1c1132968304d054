"""Malformed command lines and requests: a line that says what is wrong, never a traceback, never a 500."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import unembed
from tests.faults import odd_arguments, odd_requests
from tests.faults.made import World
from unembed.cli.commands import app
from unembed.errors import InvalidInput


def test_malformed_command_lines(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    tally = odd_arguments.run(world, 100, seed=11)
    assert tally.broken == []
    assert tally.ended[2] > 20 and tally.ended[1] > 5  # both usage and what only the work finds out


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["index", "build", "--corpus", "The " * 3000, "--out", "o"], 1, "no file has this name"),
        (["index", "build", "--out", "The " * 3000], 1, "File name too long"),
        (["circuits", "skip-trigrams", "0", "0", "--source", "\udcff"], 1, "it is not UTF-8: byte 0xFF"),
        (["annotate", "export", "a" * 5000, "--per-layer", "1"], 1, "too long"),
        (["circuits", "heads", "--html", "a" * 5000], 1, "too long"),
        (["explain", "\udcff", "--token", " of"], 1, "it is not UTF-8: byte 0xFF"),
        (["train", "wren"], 1, "python -m tools.train_wikilm"),
    ],
)
def test_impossible_files_and_texts_are_one_line(
    line: list[str], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, line)
    assert ended.exit_code == code and says in ended.stderr
    assert isinstance(ended.exception, SystemExit) and list(tmp_path.iterdir()) == []


def test_malformed_requests(world: World) -> None:
    tally = odd_requests.run(world, 200, seed=1)
    assert tally.broken == []
    assert tally.answer_counts[422] > 50 and tally.answer_counts[200] > 10


@pytest.mark.parametrize("content", [b"text", b"PK\x03\x04 cut short", b""])
def test_a_file_that_is_not_an_exit_rule_is_refused(world: World, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rule").write_bytes(content)
    with pytest.raises(InvalidInput, match="it is not a saved rule, or it is damaged"):
        unembed.early_exit.load(tmp_path / "rule", world.lm)


def test_an_error_message_is_one_sentence_with_the_names_as_given() -> None:
    assert str(InvalidInput("no index at .", why="[Errno 2] No such file.")) == "no index at .: No such file."
    assert str(InvalidInput("a thing.", instead="Give another.")) == "a thing. Give another."
