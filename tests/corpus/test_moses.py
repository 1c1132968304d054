"""Words are split as Moses splits them only where that is chosen."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from unembed.corpus import open_corpus
from unembed.corpus.moses import _tokenizer
from unembed.errors import ExtraMissing, InvalidInput

TEXT = "The <unk> is well @-@ known .\n\nA second line .\n"


@pytest.fixture
def sacremoses(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in that notes how it was called, and marks each word."""
    module, calls = ModuleType("sacremoses"), []

    class MosesTokenizer:
        def __init__(self, lang: str) -> None:
            assert lang == "en"

        def tokenize(self, line: str, **options: Any) -> str:
            calls.append((line, options))
            return " ".join(f"{word}|" for word in line.split())

    module.MosesTokenizer = MosesTokenizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sacremoses", module)
    _tokenizer.cache_clear()
    yield calls
    _tokenizer.cache_clear()


def test_each_line_is_split_as_the_released_code_did(sacremoses: Any) -> None:
    corpus = open_corpus([TEXT], moses=True, markup="plain")
    (document,) = corpus.documents()
    assert document.text == "The| <unk>| is| well| @-@| known| .|\n\nA| second| line| .|\n"
    assert [line for line, _ in sacremoses] == ["The <unk> is well @-@ known .", "A second line ."]
    assert all(o == {"aggressive_dash_splits": True, "return_str": True, "escape": True} for _, o in sacremoses)


def test_text_split_so_is_another_corpus() -> None:
    plain, moses = open_corpus([TEXT]), open_corpus([TEXT], moses=True)
    assert plain.fingerprint != moses.fingerprint
    assert moses.describe()["moses"] is True


def test_what_is_missing_or_contradicts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="one reverses the other"):
        open_corpus([TEXT], moses=True, detokenize=True)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    _tokenizer.cache_clear()
    with pytest.raises(ExtraMissing, match="pip install sacremoses"):
        next(open_corpus([TEXT], moses=True).documents())
