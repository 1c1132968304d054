"""The ready index of the embedded model is built once, with a word; that of any other model only on command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from unembed import load
from unembed.cli.stored_index import VARIABLE
from unembed.corpus import Corpus, open_corpus
from unembed.index.default_index import cached_path, ready_corpus
from unembed.index.lock import build_lock

Run = Callable[..., Result]
SENTENCES = ["The lake is 15 km wide.", "He was born on 16 August."]
PROMPT = "The lake is 15"


@pytest.fixture
def short_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """An empty cache folder, a ready corpus of two sentences, and leave to build."""
    corpus = open_corpus(SENTENCES)
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr("unembed.index.default_index.ready_corpus", lambda: corpus)
    return corpus


def folders(tmp_path: Path) -> list[Path]:
    return [path.parent for path in (tmp_path / "cache").glob("*/manifest.json")]


@pytest.mark.parametrize("command", [("trace", PROMPT), ("value", "L3M950"), ("explain", PROMPT, "--plain")])
def test_the_first_command_builds_the_ready_index_and_says_so_and_the_second_does_not(
    unembed: Run, short_corpus: Corpus, tmp_path: Path, command: tuple[str, ...]
) -> None:
    first = unembed(*command)
    assert first.exit_code == 0, first.stderr
    first_line, *link = first.stderr.splitlines()
    assert first_line.startswith("No index of wren is ready: ")
    assert all(line.startswith(("In the explorer: ", "read by the logit lens")) for line in link)
    assert folders(tmp_path) == [cached_path(load(), short_corpus)]
    second = unembed(*command)
    assert (second.exit_code, second.stderr.splitlines()) == (0, link)
    assert second.stdout == first.stdout


def test_nothing_but_the_result_is_on_stdout_while_the_index_is_built(unembed: Run, short_corpus: Corpus) -> None:
    built = unembed("trace", PROMPT, "--json")
    assert "No index of wren is ready" in built.stderr
    assert built.stdout == unembed("trace", PROMPT, "--json").stdout


@pytest.mark.usefixtures("short_corpus")
def test_a_variable_refuses_the_build(unembed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "never")
    assert "index" not in unembed("trace", PROMPT).stderr
    assert "unembed index build --model wren" in " ".join(unembed("value", "L3M950").stdout.split())
    assert folders(tmp_path) == []


@pytest.mark.usefixtures("short_corpus")
def test_no_index_of_another_model_is_built(unembed: Run, gpt2_folder: Path, tmp_path: Path) -> None:
    assert "index" not in unembed("trace", "The first month", "--model", gpt2_folder).stderr
    assert "unembed index build --model" in " ".join(unembed("value", "L1M5", "--model", gpt2_folder).stdout.split())
    assert (
        "index" not in unembed("trace", PROMPT, "--dtype", "bfloat16").stderr
    )  # other weights than those of the index
    assert folders(tmp_path) == []


def test_a_command_beside_the_build_goes_on_without_the_index(
    unembed: Run, short_corpus: Corpus, tmp_path: Path
) -> None:
    folder = cached_path(load(), short_corpus)
    folder.mkdir(parents=True)
    with build_lock(folder):
        beside = unembed("trace", PROMPT)
    assert beside.exit_code == 0 and "rank of" in beside.stdout
    assert "continuing without it: " in beside.stderr and "is being built" in beside.stderr
    assert folders(tmp_path) == []


@pytest.mark.usefixtures("short_corpus")
def test_a_cache_folder_that_cannot_be_written_does_not_stop_a_trace(
    unembed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a text")
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "file" / "below"))
    beside = unembed("trace", PROMPT)
    assert beside.exit_code == 0, beside.stderr
    assert "continuing without it: " in beside.stderr


def test_the_ready_corpus_is_what_make_run_indexes() -> None:
    line = "unembed index build --detokenize --max-documents 12 "
    assert line in (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    assert ready_corpus().fingerprint == open_corpus(None, detokenize=True, max_documents=12).fingerprint
