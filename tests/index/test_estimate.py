"""What a build will cost is told from a sample, and comes near what it does cost."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.index.conftest import TEXTS, corpus_of
from unembed.cli.index_build import in_words
from unembed.corpus import open_corpus
from unembed.errors import CorpusUnreadable, Unsupported
from unembed.index import Index
from unembed.index import estimate as estimating
from unembed.language_model import LanguageModel


def test_a_small_corpus_is_counted_completely(lm: LanguageModel, gated: LanguageModel) -> None:
    cost = Index.estimate(lm, corpus_of(), 5)
    segments = list(corpus_of().segments(lm))
    assert cost.is_exact
    assert (cost.tokens, cost.segments) == (sum(map(len, segments)), len(segments))
    assert cost.keys == 2 * lm.d_mlp
    assert cost.memory == 2 * lm.d_mlp * 5 * 12
    assert Index.estimate(gated, corpus_of(), 5).memory == 2 * gated.d_mlp * 5 * 12 * 2  # both poles


def test_a_large_corpus_is_extrapolated(lm: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_text("\n\n".join(TEXTS * 300))
    corpus = open_corpus(path, markup="plain")
    cost = Index.estimate(lm, corpus, 25)
    assert not cost.is_exact
    assert cost.tokens == pytest.approx(sum(len(s) - s.skip for s in corpus.segments(lm)), rel=0.03)
    built = Index.build(lm, corpus, tmp_path / "index")
    assert cost.bytes == pytest.approx(built.status()["bytes"], rel=0.5)


def test_a_busy_machine_has_another_estimate_than_an_idle_one(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()
    clocks = SimpleNamespace(perf_counter=lambda: 4.0 * next(seconds), process_time=time.process_time)
    monkeypatch.setattr(estimating, "time", clocks)
    cost = Index.estimate(lm, corpus_of(), 5)
    assert cost.seconds_busy > 2 * cost.seconds > 0
    assert "if the machine stays as busy as now" in in_words(cost, "m")
    assert "busy" not in in_words(replace(cost, seconds_busy=cost.seconds), "m")


def test_what_cannot_be_estimated(lm: LanguageModel) -> None:
    from tests.conftest import tiny

    with pytest.raises(CorpusUnreadable):
        Index.estimate(lm, [" "])
    with pytest.raises(Unsupported):
        Index.estimate(tiny("attention-only"), corpus_of())


def test_batches_of_a_sample_are_of_all_lengths() -> None:
    sizes = [100 * n for n in range(1, 41)]  # 82,000 in all
    chosen = sizes[estimating._spread(sizes, 8_200)]
    assert chosen[0] < 1_000 and chosen[-1] > 3_000
    assert 4_000 < sum(chosen) < 16_000
    for tokens in (1, 100, 8_200):
        assert sizes[:1][estimating._spread(sizes[:1], tokens)] == sizes[:1]
