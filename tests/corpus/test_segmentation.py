"""Every token of the corpus stands at one place, is counted once, and can be shown again with what follows."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from unembed.corpus import Segment, open_corpus
from unembed.corpus.batches import bucketed
from unembed.corpus.sentences import sentences
from unembed.errors import InvalidInput


class Letters:
    """One token a letter."""

    def __init__(self, n_ctx: int | None = None, lead: tuple[int, ...] = ()) -> None:
        self.n_ctx, self.lead = n_ctx, lead

    def encode_all(self, texts) -> list[Tensor]:
        return [torch.tensor([*self.lead, *map(ord, text)]) for text in texts]


TEXTS = [
    "Abc d. Efgh ij! Kl\n\nmnopqrstuvwxyz\n",
    "x",
    " = Title = \nAlpha beta gamma delta epsilon zeta. Eta theta.\n",
]


@pytest.mark.parametrize("lead", [(), (1,), (1, 2)])
@pytest.mark.parametrize("segmentation", ["sentences", "windows"])
@pytest.mark.parametrize(("n_ctx", "overlap"), [(8, None), (9, 3), (9, 0), (500, 7)])
def test_segments_tile_the_axis_of_tokens_without_gaps(
    lead: tuple[int, ...], segmentation: str, n_ctx: int, overlap: int | None
) -> None:
    letters = Letters(n_ctx, lead)
    found = list(open_corpus(TEXTS, segmentation=segmentation, overlap=overlap).segments(letters))
    whole = [s for text in TEXTS for s in (sentences(text) if segmentation == "sentences" else [text])]
    axis = torch.cat(letters.encode_all(whole)).tolist()
    starts, ends = [s.start + s.skip for s in found], [s.start + len(s) for s in found]
    assert starts[0] == 0 and ends[-1] == len(axis) and starts[1:] == ends[:-1]
    assert [s.number for s in found] == list(range(len(found)))
    assert max(map(len, found)) <= n_ctx
    for segment in found:
        assert segment.tokens[: segment.lead].tolist() == list(lead)
        assert segment.lead == len(lead) and (segment.skip == 0 or segment.skip > segment.lead or overlap == 0)
        text = range(max(segment.lead, 0), len(segment))
        assert [int(segment.tokens[c]) for c in text] == [axis[segment.start + c] for c in text]
    pieces, place = [], 0
    for tokens in letters.encode_all(whole):
        pieces.append((place, place + len(tokens)))
        place += len(tokens)
    for batch in bucketed(iter(found), 30, 4):
        for row, column in batch.counted.nonzero().tolist():
            p = int(batch.positions[row, column])
            assert axis[p] == batch.tokens[row, column]
            begin, end = pieces[bisect_right(pieces, (p, len(axis))) - 1]
            assert begin <= p < end
            assert int(batch.next_tokens[row, column]) == (axis[p + 1] if p + 1 < end else -1)
            segment = found[bisect_right(starts, p) - 1]
            assert segment.number == batch.segments[row] and segment.sentence == batch.sentences[row]
            assert batch.prefix_lengths[row, column] == max(0, column + 1 - len(lead))


segments = st.lists(st.integers(1, 40), min_size=1, max_size=80).map(
    lambda lengths: [Segment(i, 0, i, 0, 0, 0, torch.zeros(n, dtype=torch.long)) for i, n in enumerate(lengths)]
)


def test_windows_that_cannot_be() -> None:
    with pytest.raises(InvalidInput, match="context"):
        list(open_corpus(["abc"], window=20).segments(Letters(10)))
    with pytest.raises(InvalidInput, match="no room for new tokens"):
        list(open_corpus(["abc"], overlap=9).segments(Letters(10, (1,))))
    bad: list[dict[str, Any]] = [{"window": 1}, {"overlap": -1}, {"window": 5, "overlap": 5}, {"segmentation": "words"}]
    for options in bad:
        with pytest.raises(InvalidInput):
            open_corpus(["abc"], **options)
