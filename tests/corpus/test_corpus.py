"""Options of a corpus, and what its fingerprint depends on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

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


class Counting:
    """An encoder of one token per letter that counts the texts it is given."""

    def __init__(self, n_ctx: int = 8) -> None:
        self.n_ctx, self.texts = n_ctx, 0

    def encode_all(self, texts: Sequence[str]) -> list[torch.Tensor]:
        self.texts += len(texts)
        return [torch.tensor([1, *map(ord, text)]) for text in texts]


@pytest.mark.parametrize("segmentation", ["sentences", "windows"])
def test_a_corpus_that_stores_tokens_tokenises_a_text_once(segmentation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["A first sentence. A second one, longer than a window of this encoder.", "Another text."]
    plain = open_corpus(texts, segmentation=segmentation)
    storing, encoder = replace(plain, tokenized={}), Counting()
    first = list(storing.segments(encoder))
    read = encoder.texts
    again = list(replace(storing, name="renamed").segments(encoder))  # a copy shares what was stored
    assert encoder.texts - read <= 2  # what finds the special tokens in front of every text
    for other in (again, list(plain.segments(Counting()))):
        for a, b in zip(first, other, strict=True):
            assert torch.equal(a.tokens, b.tokens) and replace(a, tokens=b.tokens, share=b.share) == b
    assert len(list(storing.segments(Counting(5)))) > len(first)  # another context is cut anew
    assert len(storing.tokenized or {}) == 2
    next(iter(storing.segments(Counting(6))))  # read in part, so that nothing is stored
    monkeypatch.setattr("unembed.corpus.corpus.MOST_TOKENIZED", 20)
    assert len(list(storing.segments(Counting(7)))) and len(storing.tokenized or {}) == 2
