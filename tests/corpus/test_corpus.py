"""Options of a corpus, and what its fingerprint depends on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unembed.corpus import open_corpus
from unembed.errors import InvalidInput


def test_inconsistent_options_are_refused() -> None:
    bad: list[dict[str, Any]] = [{"errors": "hide"}, {"markup": "html"}, {"max_documents": 0}]
    for options in bad:
        with pytest.raises(InvalidInput):
            open_corpus(["abc"], **options)


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
