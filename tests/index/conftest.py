"""Tiny models with words, a small corpus, and an index of them that the tests only read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.cli.conftest import save_model
from unembed.corpus import Corpus, open_corpus
from unembed.index import Index, IndexSettings
from unembed.language_model import LanguageModel, load

TEXTS = [
    "The first month of the year is January . The year is the first of the month . January is the year",
    "The month of January is a b c of the first year . the the is of the year is January first",
    "a b c d e f g h . is the first month of the year January . The d of the e is the f",
    "January of the first year . The The first . month is month is z",
]


def corpus_of(segmentation: str = "sentences") -> Corpus:
    window = 12 if segmentation == "windows" else None
    return open_corpus(TEXTS, segmentation=segmentation, window=window)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved tiny models by family."""
    base = tmp_path_factory.mktemp("models")
    return {family: save_model(base / family, family) for family in ("gpt2", "llama")}


@pytest.fixture(scope="session")
def lm(folders: dict[str, Path]) -> LanguageModel:
    return load(folders["gpt2"])


@pytest.fixture(scope="session")
def gated(folders: dict[str, Path]) -> LanguageModel:
    return load(folders["llama"])


@pytest.fixture(scope="session")
def built(lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build(
        lm, corpus_of(), tmp_path_factory.mktemp("index") / "gpt2", top=5, settings=IndexSettings(top_tokens=6)
    )


@pytest.fixture(scope="session")
def gated_index(gated: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build(
        gated,
        corpus_of("windows"),
        tmp_path_factory.mktemp("index") / "llama",
        top=4,
        settings=IndexSettings(top_tokens=6),
    )


@cache
def token_text(lm: LanguageModel) -> list[str]:
    return lm.token_strings(list(range(lm.d_vocab)))
