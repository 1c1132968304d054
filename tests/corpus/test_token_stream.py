"""A token stream holds every counted token once, and gives back the segments and batches of its corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.sweeps.recorder import lettered, texts
from unembed.corpus import Corpus, open_corpus
from unembed.corpus.token_stream import TokenizedCorpus, TokenStream
from unembed.errors import CorpusUnreadable
from unembed.index import Index
from unembed.language_model import LanguageModel
from unembed.sweeps import TopTriggers, sweep

CUTS = (
    {"segmentation": "sentences"},
    {"segmentation": "sentences", "window": 9, "overlap": 3},
    {"segmentation": "windows", "window": 20},
    {"segmentation": "windows", "window": 8, "overlap": 0},
)


def opened(bos: bool, cut: dict[str, Any]) -> tuple[LanguageModel, Corpus, TokenStream]:
    lm, corpus = lettered("opt", bos=bos), open_corpus(texts(6), **cut)
    return lm, corpus, TokenStream.of(corpus.segments(lm))


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_every_position_has_the_prefix_and_the_next_token_of_its_segment(bos: bool, cut: dict[str, Any]) -> None:
    lm, corpus, stream = opened(bos, cut)
    seen = []
    for segment in corpus.segments(lm):
        for column in range(segment.skip, len(segment)):
            position = segment.start + column
            at = np.array([position])
            assert stream.prefix(position).tolist() == segment.tokens[: column + 1].tolist()
            assert stream.prefix(position, special=False).tolist() == segment.tokens[bos : column + 1].tolist()
            follows = int(segment.tokens[column + 1]) if column + 1 < len(segment) else segment.next_token
            assert stream.next_tokens(at).tolist() == [follows]
            assert stream.tokens_at(at).tolist() == [int(segment.tokens[column])]
            assert stream.segment(at).tolist() == [segment.number]
            if column >= segment.lead:
                seen.append(position)
                assert stream.prefix_lengths(at).tolist() == [column + 1 - segment.lead]
    assert stream.prefix_positions().tolist() == seen
    assert stream.n_special == int(bos)
    below = np.array([-1])
    assert stream.next_tokens(below).tolist() == stream.tokens_at(below).tolist() == [-1]


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_segments_and_batches_are_those_of_the_corpus(bos: bool, cut: dict[str, Any]) -> None:
    lm, corpus, stream = opened(bos, cut)
    segments = list(corpus.segments(lm))
    assert len(list(stream.segments())) == len(segments) == stream.n_segments
    for given, found in zip(segments, stream.segments(), strict=True):
        for name in ("number", "document", "sentence", "start", "skip", "lead", "next_token"):
            assert getattr(found, name) == getattr(given, name), name
        assert torch.equal(found.tokens, given.tokens)
    assert stream.lengths.tolist() == [len(segment) for segment in segments]
    tokenized = TokenizedCorpus(corpus.name, corpus.fingerprint, stream)
    for given, found in zip(corpus.batches(lm, 60), tokenized.batches(lm, 60), strict=True):
        for name in ("tokens", "lengths", "starts", "skips", "leads", "after", "documents", "sentences"):
            assert torch.equal(getattr(found, name), getattr(given, name)), name


@pytest.mark.parametrize("cut", CUTS)
def test_segments_cut_off_after_a_position_end_there(cut: dict[str, Any]) -> None:
    _, _, stream = opened(True, cut)
    positions, whole = stream.prefix_positions()[::7], list(stream.segments())
    last = {}
    for position, number in zip(positions.tolist(), stream.segment(positions).tolist(), strict=True):
        last[number] = position
    for segment in stream.segments_up_to(positions):
        given = whole[segment.number]
        assert segment.start + len(segment) - 1 == last.pop(segment.number)
        assert segment.tokens.tolist() == given.tokens[: len(segment)].tolist()
        after = [*given.tokens.tolist(), given.next_token][len(segment)]
        assert segment.next_token == after
    assert not last


@pytest.mark.parametrize("cut", CUTS)
def test_an_index_stores_the_stream_of_its_corpus(tmp_path: Path, cut: dict[str, Any]) -> None:
    lm, corpus, stream = opened(True, cut)
    stored = Index.build(lm, corpus, tmp_path / "index", top=3).passages
    for name in ("token", "start", "first", "origin", "document", "sentence", "after"):
        assert getattr(stored, name).tolist() == getattr(stream, name).tolist(), name


def test_a_sweep_of_the_stream_finds_what_a_sweep_of_the_corpus_finds() -> None:
    lm, corpus, stream = opened(True, CUTS[1])
    (given,) = sweep(lm, corpus, TopTriggers(4), tokens_per_batch=50)
    tokenized = TokenizedCorpus(corpus.name, corpus.fingerprint, stream)
    (found,) = sweep(lm, tokenized, TopTriggers(4), tokens_per_batch=50)
    for layer in range(lm.n_layers):
        assert torch.equal(found.values[layer], given.values[layer])
        assert torch.equal(found.positions[layer], given.positions[layer])


def test_a_stream_without_tokens_is_refused() -> None:
    with pytest.raises(CorpusUnreadable, match="no tokens"):
        TokenStream.of([])
