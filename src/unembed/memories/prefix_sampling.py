"""Draw a random sample of text prefixes from a corpus: the "examples" of the paper.

Each example is a segment drawn at random and cut at a random position, so that the prefix has at least one token of
text and its next token is known. The model runs on the prefix only. Source: Geva et al. 2022, section 5 (2,000
validation examples, prefix length uniform in 1 to n - 1).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from unembed.corpus import Batch, CorpusSource, Segment, open_corpus
from unembed.corpus.batches import bucketed
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.validation import positive_int, valid_seed

_AHEAD = 32


def draw_examples(lm: Decoder, corpus: CorpusSource, n: int, seed: int = 0) -> list[Segment]:
    """Draw up to `n` prefixes, in the order of the corpus; `next_token` is the token that follows a prefix.

    Args:
        corpus: what `unembed.open_corpus` takes.
        n: number of prefixes; if fewer segments are long enough, one from each of them.

    Raises:
        InvalidInput: `n` is less than 1, or no segment has two tokens.
        CorpusUnreadable: the corpus cannot be read.
    """
    n = positive_int("examples", n)
    seed = valid_seed(seed)
    rng = random.Random(seed)
    chosen: list[Segment] = []
    n_seen = 0
    for segment in open_corpus(corpus).segments(lm):
        first = max(segment.lead, segment.skip)
        if len(segment) - first < 2:
            continue
        n_seen += 1
        slot = len(chosen) if len(chosen) < n else rng.randrange(n_seen)
        if slot < n:
            # The cut depends only on the seed and the segment's number, so that samples of different sizes cut a
            # segment that they share at the same place.
            length = first + random.Random(seed * 1_000_003 + segment.number).randrange(1, len(segment) - first)
            chosen[slot : slot + 1] = [_cut(segment, length)]
    if not chosen:
        raise InvalidInput(
            "the corpus", why="no segment has two tokens, a prefix and the token after it", instead="Give longer text"
        )
    return sorted(chosen, key=lambda s: s.number)


def _cut(segment: Segment, length: int) -> Segment:
    tokens, following = segment.tokens[:length], int(segment.tokens[length])
    return replace(segment, skip=min(segment.skip, length - 1), tokens=tokens, next_token=following, share=0.0)


def example_batches(examples: list[Segment], tokens_per_batch: int = 2048) -> Iterator[Batch]:
    """Yield the examples in batches of similar length."""
    return bucketed(iter(examples), tokens_per_batch, _AHEAD)
