"""Counts of next tokens against a count over all positions."""

from __future__ import annotations

import pytest
import torch

from tests.sweeps.recorder import Everything, lettered, texts
from unembed.corpus import open_corpus
from unembed.errors import InvalidInput, OutOfRange
from unembed.sweeps import NextTokenCounts, sweep

CORPUS = {"segmentation": "windows", "window": 24}


@pytest.mark.parametrize("family", ["opt", "llama"])
def test_next_token_counts_and_lifts_are_those_of_all_positions(family: str) -> None:
    lm = lettered(family)
    memories = [(0, 3), (1, 5), (0, 70)]
    corpus = open_corpus(texts(20), **CORPUS)
    found, (values, facts) = sweep(lm, corpus, [NextTokenCounts(memories), Everything()], tokens_per_batch=200)
    following = facts["next"]
    known = following >= 0
    assert 0 < int((~known).sum()) == 20  # only a document's last token has no next one
    for row, (layer, index) in enumerate(memories):
        x = values[layer][:, index].double()
        active = known & ((x.abs() if family == "llama" else x) > 0)
        assert torch.equal(found.counts[row], torch.bincount(following[active], minlength=lm.d_vocab))
        weights = torch.zeros(lm.d_vocab, dtype=torch.float64).index_add_(0, following[active], x[active])
        torch.testing.assert_close(found.weights[row], weights, rtol=1e-12, atol=1e-12)
        token, count = found.top(layer, index, 1)[0]
        assert count == int(found.counts[row].max())
        share = count / int(found.counts[row].sum()) / (int((following == token).sum()) / int(known.sum()))
        assert float(found.lift(layer, index)[token]) == pytest.approx(share, rel=1e-12)
    with pytest.raises(OutOfRange):
        found.top(1, 1)


def test_an_empty_list_of_memories_is_refused() -> None:
    with pytest.raises(InvalidInput):
        NextTokenCounts([])
