"""Files of every kind give their documents, and bad ones are named with the place where they are bad."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unembed.corpus import open_corpus
from unembed.corpus.markup import articles, detokenized, title, tokenized
from unembed.errors import CorpusUnreadable, ExtraMissing, InvalidInput


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


def test_inconsistent_options_are_refused() -> None:
    bad: list[dict[str, Any]] = [{"errors": "hide"}, {"markup": "html"}, {"max_documents": 0}]
    for options in bad:
        with pytest.raises(InvalidInput):
            open_corpus(["abc"], **options)


def test_wikitext_markup() -> None:
    assert title(" = Homarus gammarus = \n") == "Homarus gammarus"
    assert title(" = = Description = = \n") is None and title("a = b = c") is None
    lines = [" \n", " = A = \n", " \n", " text \n", " = = B = = \n", " \n", " = C = \n", " \n", " y \n"]
    assert [name for name, _ in articles(lines)] == ["A", "C"]
    assert "".join(text for _, text in articles(lines)) == "".join(lines[1:])
    raw = " a 0 @.@ 7 kg – 5 @,@ 000 well @-@ known ( 24 in ) , called \" red \" ; it 's <unk> do n't . "
    assert detokenized(raw) == "a 0.7 kg – 5,000 well-known (24 in), called \"red\"; it's <unk> don't."


def test_tokenized_is_the_way_back_on_real_wikitext() -> None:
    text = "He said: \"It isn't a well-known 3.5 kg (1,400 oz) lobster's claw... is it?\" U.S. Navy, $5. I left."
    assert tokenized(text) == (
        "He said : \" It isn 't a well @-@ known 3 @.@ 5 kg ( 1 @,@ 400 oz ) lobster 's claw ... is it ? \" "
        "U.S. Navy , $ 5 . I left ."
    )
    lines = [line for d in open_corpus(None, max_documents=12).documents() for line in d.text.split("\n")]
    paragraphs = [line.strip() for line in lines if line.strip() and not re.match(r" ?= ", line)]
    words = sum(len(line.split()) for line in paragraphs)
    lost = sum((Counter(line.split()) - Counter(tokenized(detokenized(line)).split())).total() for line in paragraphs)
    assert words > 10_000 and lost < 0.002 * words


def test_max_documents_and_detokenized() -> None:
    found = list(open_corpus(max_documents=2, detokenize=True).documents())
    assert len(found) == 2 and " @-@ " not in found[0].text and " , " not in found[0].text


def test_the_fingerprint_depends_on_content_and_segmentation(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    same = open_corpus(tmp_path / "a.txt").fingerprint
    assert open_corpus(tmp_path / "a.txt").fingerprint == same
    (tmp_path / "b.txt").write_text("some text")
    assert open_corpus(tmp_path / "b.txt").fingerprint == same  # the content counts, not where it lies
    others = [
        open_corpus(tmp_path / "a.txt", segmentation="windows"),
        open_corpus(tmp_path / "a.txt", window=5),
        open_corpus(tmp_path / "a.txt", detokenize=True),
        open_corpus(["some text"]),
        open_corpus(["some", " text"]),
    ]
    (tmp_path / "a.txt").write_text("Some text")
    assert len({same, open_corpus(tmp_path / "a.txt").fingerprint, *(c.fingerprint for c in others)}) == 7
    assert json.dumps(others[0].describe())


class FakeRows(list[dict[str, Any]]):
    """Rows as `datasets` streams them."""

    info = None


def test_data_sets_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(name: str, config: str | None, split: str, streaming: bool) -> FakeRows:
        if name == "nobody/nothing":
            raise FileNotFoundError("no such data set\nmore")
        calls.append((name, config, split, streaming))
        return FakeRows([{"text": "eins"}, {"text": " "}, {"text": "zwei"}])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert read("datasets:a/b:c:test") == [("a/b:0", "eins"), ("a/b:2", "zwei")]
    assert read("datasets:a/b:valid", max_documents=1) == [("a/b:0", "eins")]
    assert read("datasets:a/b") == read("datasets:a/b:train")
    assert calls[:3] == [("a/b", "c", "test", True), ("a/b", None, "valid", True), ("a/b", None, "train", True)]
    assert open_corpus("datasets:a/b").fingerprint != open_corpus("datasets:a/b:test").fingerprint
    with pytest.raises(CorpusUnreadable, match="row 0: it has no text under 'body', only text"):
        read("datasets:a/b", column="body")
    with pytest.raises(CorpusUnreadable, match="FileNotFoundError: no such data set"):
        read("datasets:nobody/nothing")
    with pytest.raises(CorpusUnreadable, match="not the name of a data set"):
        open_corpus("datasets:a:b:c:d")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ExtraMissing, match=r"unembed\[data\]"):
        read("datasets:a/b")
