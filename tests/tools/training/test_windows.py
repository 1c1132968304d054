"""Windows of a text: each once a pass, in an order that depends on the seed alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tools.training.windows import EncodedCorpus, Windows, repeated


@pytest.fixture(scope="module")
def corpus() -> EncodedCorpus:
    rng = np.random.default_rng(0)
    lengths = rng.integers(200, 900, size=12)
    tokens = np.minimum(rng.geometric(0.2, size=lengths.sum()), 49).astype(np.uint16)
    tokens[np.cumsum(lengths) - 1] = 0
    return EncodedCorpus(tokens, lengths, np.array(["letters"] * 6 + ["recipes"] * 6), lengths * 3)


def test_a_pass_reads_every_window_once_and_the_next_pass_in_another_order(corpus):
    plain = replace(corpus, sources=np.array(["letters"] * 12))
    windows = Windows(plain, rows=1, width=64, seed=0)
    n = (len(plain.tokens) - 1) // 64
    first = torch.cat([windows.next() for _ in range(n)])
    assert windows.pass_ == 0
    expected = np.bincount(plain.tokens, minlength=50)
    got = np.bincount(first[:, :-1].flatten().numpy(), minlength=50)
    assert 0 <= (expected - got).sum() <= 64
    windows.next()
    assert (windows.pass_, windows.place) == (1, 1)


def test_a_source_read_twice_a_pass_comes_twice(corpus):
    windows = Windows(corpus, rows=1, width=64, seed=0)
    assert len(windows._line) == corpus.lengths[:6].sum() + 2 * corpus.lengths[6:].sum()


def test_repeated_windows_repeat_and_the_others_stay():
    windows = torch.arange(3 * 129).view(3, 129)
    drawn = set()
    for step in range(40):
        made = repeated(windows, 1, (5, 300), [0, step])
        period = int((made[0] == made[0, 0]).nonzero()[1])
        assert torch.equal(made[0, period:], made[0, :-period])
        assert torch.equal(made[1:], windows[1:])
        drawn.add(period)
    assert 5 <= min(drawn) < 10
    assert 50 < max(drawn) <= 64
    assert torch.equal(repeated(windows, 0, (5, 300), [0, 7]), windows)
