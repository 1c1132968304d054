"""Labels: appended, never changed, several writers, seen by SQL, no part of what a build makes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.index.conftest import corpus_of
from unembed.errors import InvalidInput, OutOfRange
from unembed.index import Index, IndexSettings, Label
from unembed.index.labels import Labels
from unembed.language_model import LanguageModel


@pytest.fixture
def index(built: Index, tmp_path: Path) -> Index:
    return Index.open(shutil.copytree(built.path, tmp_path / "copy"))


def test_labels_are_stored_with_their_annotator(index: Index, lm: LanguageModel) -> None:
    first = index.add_label(1, 3, "months of the year", author="ann", kind="key", notes={"prefixes": [0, 2, 5]})
    index.add_label(-1, 3, "time", author="bob")
    index.add_label(0, 3, "no pattern", author="ann")
    rows = list(Index.open(index.path).labels(1, 3).rows())
    assert [(r["label"], r["author"], r["kind"], r["layer"]) for r in rows] == [
        ("months of the year", "ann", "key", 1),
        ("time", "bob", "memory", 1),
    ]
    assert rows[0]["notes"] == {"prefixes": [0, 2, 5]}
    assert len(index.labels()) == 3 and len(index.labels(0)) == 1
    found = list(
        index.sql("SELECT label, count(*) AS n FROM labels JOIN values USING (layer, index) GROUP BY 1").rows()
    )
    assert {row["label"]: row["n"] for row in found} == {"months of the year": 6, "time": 6, "no pattern": 6}
    index.withdraw_label(first, author="ann")
    assert [row["label"] for row in index.labels(1, 3).rows()] == ["time"]
    with pytest.raises(InvalidInput, match="withdrawn before"):
        index.withdraw_label(first)
    Index.build(lm, corpus_of(), index.path, top=5, settings=IndexSettings(top_tokens=6))
    assert len(index.labels()) == 2


def test_nothing_is_changed_or_deleted(index: Index) -> None:
    index.add_label(0, 0, "a", author="ann")
    with sqlite3.connect(Labels(index.path).path) as connection:
        for statement in ("UPDATE labels SET label = 'b'", "DELETE FROM labels"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)
    connection.close()
    assert [row["label"] for row in index.labels().rows()] == ["a"]


def _write(folder: Path, author: str) -> None:
    for i in range(25):
        Labels(folder).add([Label(0, i, f"{author} {i}", author, "key")])


def test_several_processes_write_at_once(index: Index) -> None:
    writers = [multiprocessing.get_context("fork").Process(target=_write, args=(index.path, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert sorted(row["label"] for row in index.labels().rows()) == sorted(f"{n} {i}" for n in "abc" for i in range(25))


def test_many_labels_are_stored_all_or_none(index: Index) -> None:
    numbers = index.add_labels(Label(-1, i, f"name {i}", "ann") for i in range(3))
    rows = list(index.labels().rows())
    assert [row["id"] for row in rows] == numbers
    assert [(row["layer"], row["index"], row["label"]) for row in rows] == [(1, i, f"name {i}") for i in range(3)]
    for bad, kind in ((Label(0, 999, "x"), OutOfRange), (Label(0, 0, " "), InvalidInput)):
        with pytest.raises(kind):
            index.add_labels([Label(0, 0, "first"), bad])
    assert index.add_labels([]) == []
    assert list(index.labels().rows()) == rows


def _die_writing(folder: Path) -> None:
    connection = sqlite3.connect(Labels(folder).path, isolation_level=None)
    connection.executescript("PRAGMA cache_size = 1; BEGIN")
    for i in range(200):  # more than the cache holds: pages of the file are written before the end
        row = (0, i, "key", "lost" * 500, "zoe", "", "{}")
        connection.execute(
            'INSERT INTO labels (layer, "index", kind, label, author, made, notes) VALUES (?, ?, ?, ?, ?, ?, ?)', row
        )
    os._exit(0)


def test_a_writer_that_dies_leaves_what_was_there(index: Index) -> None:
    index.add_label(0, 1, "here before", author="ann")
    writer = multiprocessing.get_context("fork").Process(target=_die_writing, args=(index.path,))
    writer.start()
    writer.join()
    assert (index.path / "labels.sqlite-journal").exists()
    assert [row["label"] for row in index.labels().rows()] == ["here before"]


def test_reading_labels_creates_no_file(index: Index) -> None:
    index.add_label(0, 1, "a", author="ann")
    before = sorted(index.path.iterdir())
    with Labels(index.path)._open(reading=True) as connection:
        assert connection.execute("SELECT count(*) FROM labels").fetchone() == (1,)
        assert sorted(index.path.iterdir()) == before


def test_bad_labels_are_refused(index: Index) -> None:
    for call, kind in (
        (lambda: index.add_label(0, 0, "  "), InvalidInput),
        (lambda: index.add_label(0, 0, "x" * 10_001), InvalidInput),
        (lambda: index.add_label(0, 0, "x", notes={"a": object()}), InvalidInput),
        (lambda: index.add_label(0, 0, "x", notes={"a": float("nan")}), InvalidInput),
        (lambda: index.add_label(0, 999, "x"), OutOfRange),
        (lambda: index.labels(7, 0), OutOfRange),
        (lambda: index.withdraw_label(99), InvalidInput),
    ):
        with pytest.raises(kind):
            call()
    assert len(index.labels()) == 0
