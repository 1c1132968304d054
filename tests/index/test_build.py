"""Builds that are interrupted, repeated, damaged, refused: nothing lost, nothing overwritten, the same bytes."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import tiny
from tests.index.conftest import TEXTS, corpus_of
from unembed.corpus import Corpus, open_corpus
from unembed.corpus.segments import Document
from unembed.errors import CorpusUnreadable, IndexFault, InvalidInput, UnembedError, Unsupported
from unembed.index import Index, IndexSettings, lock
from unembed.index import build as building
from unembed.index import manifest as manifests
from unembed.index.analyses import status
from unembed.language_model import LanguageModel, load

_OPTIONS: dict[str, Any] = {"top": 5, "settings": IndexSettings(top_tokens=6)}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture
def copy(built: Index, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built.path, tmp_path / "copy"))


class Stopped(Exception):
    """Stands for whatever ends a process."""


def test_stopped_after_any_part_and_resumed_the_bytes_are_the_same(
    built: Index, lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = manifests.write_file
    writes = limit = 0

    def counting(*args: object) -> manifests.FileEntry:
        nonlocal writes
        writes += 1
        if writes == limit:
            (tmp_path / "again").joinpath("tables").mkdir(exist_ok=True)
            (tmp_path / "again/tables/.half.parquet.writing").write_text("left by a killed process")
            raise Stopped
        return write(*args)  # pyright: ignore[reportArgumentType]

    for module in ("manifest", "build", "stream_files"):
        monkeypatch.setattr(f"unembed.index.{module}.write_file", counting)
    stops = 0
    for limit in range(2, 40, 3):  # noqa: B007 - read by `counting`
        writes = 0
        try:
            Index.build(lm, corpus_of(), tmp_path / "again", **_OPTIONS)
        except Stopped:
            stops += 1
            with pytest.raises(IndexFault, match="not complete"):
                Index.open(tmp_path / "again")
    assert stops >= 4
    assert contents(tmp_path / "again") == contents(built.path)


def test_a_second_build_changes_nothing(built: Index, lm: LanguageModel) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.path.rglob("*") if path.name != ".lock"}
    Index.build(lm, corpus_of(), built.path, **_OPTIONS)
    assert {path: path.stat().st_mtime_ns for path in built.path.rglob("*") if path.name != ".lock"} == before


def test_a_build_reads_and_tokenises_the_corpus_once(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, encoded = 0, list[str]()
    read, encode = Corpus.documents, type(lm.vocabulary).encode_all

    def documents(self: Corpus) -> Iterator[Document]:
        nonlocal passes
        passes += 1
        return read(self)

    def encode_all(self: Any, texts: list[str]) -> list[Any]:
        encoded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(Corpus, "documents", documents)
    monkeypatch.setattr(type(lm.vocabulary), "encode_all", encode_all)
    Index.build(lm, corpus_of(), tmp_path / "index", **_OPTIONS)
    assert passes == 1
    sentences = [text for text in encoded if any(text in document for document in TEXTS) and len(text) > 5]
    assert sum(len(text.split()) for text in sentences) == sum(len(text.split()) for text in TEXTS)


def test_a_half_built_index_answers_from_its_finished_parts_on_request(copy: Path) -> None:
    stored = json.loads((copy / "manifest.json").read_text())
    del stored["checksum"]
    stored["state"] = "building"
    stored["files"] = [entry for entry in stored["files"] if entry["part"] in ("vocabulary", "tokens", "values")]
    (copy / "manifest.json").write_text(json.dumps(stored))
    with pytest.raises(IndexFault, match="is not complete: its build has finished vocabulary, tokens, values"):
        Index.open(copy)
    index = Index.open(copy, partial=True)
    assert len(index.promoting(" January")) > 0
    with pytest.raises(IndexFault, match="has no triggers yet"):
        index.triggers(0, 0)
    with pytest.raises(IndexFault, match="has no search yet"):
        index.search("year")
    with pytest.raises(InvalidInput, match="triggers"):
        index.sql("SELECT * FROM triggers")


@pytest.mark.parametrize("damage", ["edited", "cut", "gone"])
def test_every_damaged_file_is_named_and_repaired(built: Index, lm: LanguageModel, copy: Path, damage: str) -> None:
    for number, entry in enumerate(built.manifest.files):
        if number % 3 != ("edited", "cut", "gone").index(damage):
            continue
        path = copy / entry.path
        data = bytearray(path.read_bytes())
        if damage == "edited":
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        elif damage == "cut":
            path.write_bytes(data[:-1])
        else:
            path.unlink()
        rows = {row["file"]: row["fault"] for row in Index.open(copy).verify().rows()}
        assert {name for name, fault in rows.items() if fault} == {entry.path}
        Index.build(lm, corpus_of(), copy, **_OPTIONS)
        assert all(fault is None for fault in Index.open(copy).verify().columns["fault"])
    assert contents(copy) == contents(built.path)


def test_the_same_build_adds_what_an_index_of_an_earlier_version_lacks(
    built: Index, lm: LanguageModel, copy: Path
) -> None:
    files = tuple(entry for entry in built.manifest.files if not entry.path.startswith("values/suppressed"))
    manifests.write_manifest(copy, replace(built.manifest, files=files))
    shutil.rmtree(copy / "values/suppressed")
    assert Index.open(copy).suppressed is None
    Index.build(lm, corpus_of(), copy, **_OPTIONS)
    assert contents(copy) == contents(built.path)


def test_an_index_of_something_else_is_refused(built: Index, lm: LanguageModel, gated: LanguageModel) -> None:
    before = contents(built.path)
    for build, what in (
        (lambda: Index.build(gated, corpus_of(), built.path, **_OPTIONS), "model"),
        (lambda: Index.build(lm, corpus_of("windows"), built.path, **_OPTIONS), "corpus"),
        (lambda: Index.build(lm, corpus_of(), built.path, top=6, settings=IndexSettings(top_tokens=6)), "top"),
        (
            lambda: Index.build(
                lm, corpus_of(), built.path, top=5, settings=IndexSettings(top_tokens=6, skip_first=True)
            ),
            "skip_first",
        ),
    ):
        with pytest.raises(IndexFault, match=f"index with another {what}:"):
            build()
    with pytest.raises(IndexFault, match="already contains an index"):
        Index.build(lm, corpus_of(), built.path, resume=False, **_OPTIONS)
    with pytest.raises(IndexFault, match="was not built for llama"):
        Index.open(built.path, gated)
    assert contents(built.path) == before


def test_a_changed_weight_makes_another_model(built: Index, folders: dict[str, Path]) -> None:
    changed = load(folders["gpt2"])
    assert Index.open(built.path, changed).model is changed
    changed.hf.get_parameter("transformer.h.1.mlp.c_proj.weight").data[3, 2] += 1e-3
    changed = load(changed.hf, tokenizer=changed.tokenizer)
    with pytest.raises(IndexFault, match="the weights are not those"):
        Index.open(built.path, load(changed.hf, tokenizer=changed.tokenizer))


def test_other_folders_are_left_alone(lm: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    with pytest.raises(InvalidInput, match="contains other files"):
        Index.build(lm, corpus_of(), tmp_path / "mine", **_OPTIONS)
    with pytest.raises(InvalidInput, match="it is a file"):
        Index.build(lm, corpus_of(), tmp_path / "mine/notes.txt", **_OPTIONS)
    assert os.listdir(tmp_path / "mine") == ["notes.txt"]


def test_two_builders_of_one_folder(lm: LanguageModel, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    holding = (
        "import runpy, sys; from pathlib import Path\n"
        "build_lock = runpy.run_path(sys.argv[2])['build_lock']\n"  # the module alone starts in a moment
        "with build_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(folder), lock.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(IndexFault, match=f"process {other.pid} holds its lock"):
            Index.build(lm, corpus_of(), folder, **_OPTIONS)
        other.kill()  # no chance to clean up: the system lets go of the lock
    with lock.build_lock(folder):
        pass


def test_a_full_disk_is_one_line_and_the_build_resumes_later(
    built: Index, lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(building, "write_array", full)
        with pytest.raises(UnembedError, match=r"No space left on device\. Make room"):
            Index.build(lm, corpus_of(), tmp_path / "index", **_OPTIONS)
    assert not list((tmp_path / "index").rglob("*.writing"))
    Index.build(lm, corpus_of(), tmp_path / "index", **_OPTIONS)
    assert contents(tmp_path / "index") == contents(built.path)


def test_a_fast_index_records_what_it_changed(lm: LanguageModel, built: Index, tmp_path: Path) -> None:
    index = Index.build(lm, corpus_of(), tmp_path / "fast", 5, settings=IndexSettings(top_tokens=6, fast="float32"))
    notes = index.provenance.notes
    assert notes["fast"] == "float32" and 0 < notes["largest_change"] < 1e-5
    assert f"largest change {notes['largest_change']:g}".replace("-", "−") in index.triggers(0, 0).provenance.line()
    assert "fast (float32)" in status(index).sections[0].exhibits[0].table["pass"][0]
    assert "pass" not in status(built).sections[0].exhibits[0].table
    assert np.allclose(index.trigger_lists["positive"][0], built.trigger_lists["positive"][0], rtol=1e-4)
    with pytest.raises(IndexFault, match="index with another fast: it has float32, and this build has None"):
        Index.build(lm, corpus_of(), tmp_path / "fast", **_OPTIONS)


def test_manifests_that_cannot_be_used(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(IndexFault, match="there is no such folder"):
        Index.open(tmp_path / "nowhere")
    with pytest.raises(IndexFault, match=r"contains no manifest\.json"):
        Index.open(tmp_path)
    stored = json.loads((copy / "manifest.json").read_text())
    del stored["checksum"]
    for change, match in (
        ({"schema": 99}, "schema 99"),
        ({"format": "other"}, "not the manifest of an index"),
        ({"layers": "x"}, "is damaged"),
        ({"provenance": {}}, "is damaged"),
    ):
        (copy / "manifest.json").write_text(json.dumps(stored | change))
        with pytest.raises(IndexFault, match=match):
            Index.open(copy)
    (copy / "manifest.json").write_text('{"format": "unem')
    with pytest.raises(IndexFault, match="cannot read"):
        Index.open(copy)


def test_what_cannot_be_indexed(lm: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(Unsupported):
        Index.build(tiny("attention-only"), corpus_of(), tmp_path / "a")
    with pytest.raises(CorpusUnreadable):
        Index.build(lm, open_corpus([" "]), tmp_path / "b")
    with pytest.raises(InvalidInput, match="at least 1"):
        Index.build(lm, corpus_of(), tmp_path / "c", top=0)
    assert not list(tmp_path.iterdir())


def test_killed_at_any_moment_and_resumed_the_bytes_are_the_same(
    built: Index, lm: LanguageModel, tmp_path: Path
) -> None:
    folder, kills = tmp_path / "index", 0
    for delay in (0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3):
        # A fork is warm: it is killed while it builds, not while it imports.
        builder = multiprocessing.get_context("fork").Process(
            target=Index.build, args=(lm, corpus_of(), folder), kwargs=_OPTIONS
        )
        builder.start()
        time.sleep(delay)
        if builder.is_alive():
            builder.kill()
        builder.join()
        kills += builder.exitcode == -signal.SIGKILL
        if (folder / "manifest.json").exists() and json.loads((folder / "manifest.json").read_text())["files"]:
            assert all(fault is None for fault in Index.open(folder, partial=True).verify().columns["fault"])
    assert kills >= 3
    Index.build(lm, corpus_of(), folder, **_OPTIONS)
    assert contents(folder) == contents(built.path)
