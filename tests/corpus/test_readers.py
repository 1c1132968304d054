"""Files of every kind give their documents, and bad ones are named with the place where they are bad."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unembed.corpus import open_corpus
from unembed.errors import CorpusUnreadable


def read(source, **options) -> list[tuple[str, str]]:
    return [(d.name, d.text) for d in open_corpus(source, **options).documents()]


def test_the_shipped_corpus_is_wikitexts_sixty_articles() -> None:
    found = list(open_corpus().documents())
    assert len(found) == 60 and found[0].name == "Homarus gammarus" and found[3].name == "Shikamaru Nara"
    words = sum(len(d.text.split()) for d in found)
    assert words == 213_886
    assert [d.number for d in found] == list(range(60))
    assert found[-1].span[1] == 1.0 and all(a.span[1] == b.span[0] for a, b in pairwise(found))


def test_plain_text_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo = three =\n")
    assert read(tmp_path / "a.txt") == [("a.txt", "one\n\ntwo = three =\n")]


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"body": "eins", "id": 7}, {"body": "zwei\nx"}, {"body": "  "}, {"body": "drei", "title": "T"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert read(tmp_path / "a.jsonl", column="body") == [("7", "eins"), ("a.jsonl:2", "zwei\nx"), ("T", "drei")]
    with pytest.raises(CorpusUnreadable, match=r"a\.jsonl, line 1: it has no text under 'text', only body, id"):
        read(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(CorpusUnreadable, match=r"b\.jsonl, line 2: it is not JSON"):
        read(tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl").write_text("[1]\n")
    with pytest.raises(CorpusUnreadable, match=r"c\.jsonl, line 1"):
        read(tmp_path / "c.jsonl")


def test_parquet(tmp_path: Path) -> None:
    table = pa.table({"text": ["eins", None, "zwei"] * 300, "n": list(range(900))})
    pq.write_table(table, tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet")
    assert len(found) == 600 and found[1] == ("a.parquet:2", "zwei")
    with pytest.raises(CorpusUnreadable, match="no column 'body', only text, n"):
        read(tmp_path / "a.parquet", column="body")
    with pytest.raises(CorpusUnreadable, match="is not text"):
        read(tmp_path / "a.parquet", column="n")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[:-20])
    with pytest.raises(CorpusUnreadable, match=r"b\.parquet: it is not a readable Parquet file"):
        read(tmp_path / "b.parquet")


def test_folders_and_patterns_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(name)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "d.txt").write_text("d.txt")
    assert [n for n, _ in read(tmp_path)] == ["a.txt", "b.txt", "d.txt"]
    assert [n for n, _ in read(str(tmp_path / "*.txt"))] == ["a.txt", "b.txt"]
    assert [n for n, _ in read(str(tmp_path / "**" / "d.*"))] == ["d.txt"]
    for missing in (tmp_path / "z.txt", tmp_path / "*.csv"):
        with pytest.raises(CorpusUnreadable, match="no file has this name"):
            open_corpus(missing)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusUnreadable, match="contains no file"):
        open_corpus(tmp_path / "empty")


def test_bytes_that_are_not_utf8_are_placed(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("grün\n".encode() + b"caf\xe9 noir\n")
    with pytest.raises(CorpusUnreadable, match=re.escape("a.txt, byte 9: 0xe9 is not UTF-8")):
        read(file)
    assert read(file, errors="replace") == [("a.txt", "grün\ncaf\ufffd noir\n")]
    assert read(file, errors="ignore") == [("a.txt", "grün\ncaf noir\n")]


@pytest.mark.parametrize("content", ["", " \n\n "])
def test_text_that_is_empty_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(CorpusUnreadable, match="no text"):
        read(tmp_path / "a.txt")
    with pytest.raises(CorpusUnreadable, match="no text"):
        open_corpus([content])


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_file_that_windows_wrote_is_the_same_text(name: str, tmp_path: Path) -> None:
    text = (
        "First line.\nSecond line.\n\nAnother.\n"
        if name == "a.txt"
        else '{"text": "One.\\r\\nTwo."}\n{"text": "Three."}\n'
    )
    for folder, content in {"unix": text, "windows": "\ufeff" + text.replace("\n", "\r\n")}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(content.encode())
    assert read(tmp_path / "windows" / name) == read(tmp_path / "unix" / name)
    assert "First" in str(read(tmp_path / "unix" / name)) or "One.\\r\\nTwo." in str(read(tmp_path / "unix" / name))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_is_refused_by_its_name(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffHello.\n".encode(encoding))
    with pytest.raises(CorpusUnreadable, match="it is UTF-16, not UTF-8 text"):
        read(tmp_path / "a.txt")
