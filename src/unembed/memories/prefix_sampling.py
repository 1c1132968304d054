"""A random sample of prefixes of a corpus: what the paper calls examples.

Each example is a segment drawn at random and cut at a random place, so that at least one token of text is in the prefix
and the token after it is known; only the prefix is run. Source: Geva et al. 2022, section 5 (2,000 validation examples,
prefix length uniform in 1 to n - 1).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unembed.corpus import Batch, Corpus, Segment, open_corpus
from unembed.corpus.batches import bucketed
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.validation import positive_int, valid_seed

_AHEAD = 32


def draw_examples(lm: Decoder, corpus: Corpus | str | Path | Any, n: int, seed: int = 0) -> list[Segment]:
    """Up to `n` prefixes, in corpus order; `next_token` of each is the token that follows it.

    Args:
        lm: the model whose tokens count.
        corpus: what `unembed.open_corpus` takes.
        n: how many; all segments that are long enough if there are fewer.
        seed: of both draws.

    Raises:
        InvalidInput: fewer than one is asked for, or no segment has two tokens.
        CorpusUnreadable: the corpus cannot be read.
    """
    n = positive_int("examples", n)
    seed = valid_seed(seed)
    draw = random.Random(seed)
    kept: list[Segment] = []
    seen = 0
    for segment in open_corpus(corpus).segments(lm):
        first = max(segment.lead, segment.skip)
        if len(segment) - first < 2:
            continue
        seen += 1
        place = len(kept) if len(kept) < n else draw.randrange(seen)
        if place < n:
            # The cut comes from the segment's own number, so it does not depend on what else is drawn.
            length = first + random.Random(seed * 1_000_003 + segment.number).randrange(1, len(segment) - first)
            kept[place : place + 1] = [_cut(segment, length)]
    if not kept:
        raise InvalidInput("the corpus", why="no segment of it has two tokens, a prefix and what follows")
    return sorted(kept, key=lambda s: s.number)


def _cut(segment: Segment, length: int) -> Segment:
    following = int(segment.tokens[length])
    tokens = segment.tokens[:length]
    return Segment(
        segment.number,
        segment.document,
        segment.sentence,
        segment.start,
        min(segment.skip, length - 1),
        segment.lead,
        tokens,
        following,
    )


def example_batches(examples: list[Segment], tokens_per_batch: int = 2048) -> Iterator[Batch]:
    """The examples in batches of about one length."""
    return bucketed(iter(examples), tokens_per_batch, _AHEAD)
