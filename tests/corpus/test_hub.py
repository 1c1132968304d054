"""Data sets of the hub, with a stand-in for the library."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from unembed.corpus import open_corpus
from unembed.errors import CorpusUnreadable, ExtraMissing


def read(source, **options) -> list[tuple[str, str]]:
    return [(d.name, d.text) for d in open_corpus(source, **options).documents()]


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
