"""Batches hold every segment once, with little padding."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unembed.corpus import Segment, open_corpus
from unembed.corpus.batches import bucketed


class Letters:
    """One token a letter."""

    def __init__(self, n_ctx: int | None = None, lead: tuple[int, ...] = ()) -> None:
        self.n_ctx, self.lead = n_ctx, lead

    def encode_all(self, texts) -> list[Tensor]:
        return [torch.tensor([*self.lead, *map(ord, text)]) for text in texts]


segments = st.lists(st.integers(1, 40), min_size=1, max_size=80).map(
    lambda lengths: [Segment(i, 0, i, 0, 0, 0, torch.zeros(n, dtype=torch.long)) for i, n in enumerate(lengths)]
)


class Words(Letters):
    """One token a word."""

    def encode_all(self, texts) -> list[Tensor]:
        return [torch.ones(len(text.split()), dtype=torch.long) for text in texts]


@given(segments, st.integers(1, 200), st.integers(1, 8))
@settings(max_examples=60)
def test_batches_hold_every_segment_once_and_stay_within_their_size(
    found: list[Segment], tokens: int, ahead: int
) -> None:
    batches = list(bucketed(iter(found), tokens, ahead))
    assert [b.number for b in batches] == list(range(len(batches)))
    seen = torch.cat([b.segments for b in batches]).tolist()
    assert sorted(seen) == list(range(len(found)))
    for batch in batches:
        assert batch.tokens.numel() <= tokens or batch.shape[0] == 1
        assert torch.equal(batch.lengths, batch.mask.sum(dim=1)) and int(batch.lengths.max()) == batch.shape[1]


def test_padding_is_small() -> None:
    real = places = 0
    for batch in open_corpus().batches(Words(1024)):
        real, places = real + int(batch.lengths.sum()), places + batch.tokens.numel()
    assert real == 213_886 and real / places > 0.99
