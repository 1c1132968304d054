"""Estimate the time and disk space to build an index: tokenise a sample of the corpus and run a few batches."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from unembed.corpus import Corpus, Segment
from unembed.corpus.batches import bucketed
from unembed.index.settings import IndexSettings
from unembed.lens import read_ends
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder
from unembed.sweeps import Fast, FiringShare, MeanVariance, Reducer
from unembed.sweeps.forward import feed_reducers

_SAMPLE, _SWEPT, _VALUES = 20_000, 2_000, 256
"""Sizes of the samples: tokens to tokenise, tokens to run the model on, and value vectors to read."""
# Sizes in bytes. A trigger takes 8 bytes in the arrays and about 8 in the Parquet table; a top token of a value vector
# takes 12 bytes in the arrays and about 5 in the table. The other sizes (of a token of the corpus, of a segment, and of
# a token in the file for text search) were measured on WikiText.
_TRIGGER, _VALUE_TOKEN, _TOKEN, _SEGMENT, _SEARCHED = 16, 17, 4, 36, 4


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of building an index. Counts are extrapolated if the corpus is larger than the sample.

    Attributes:
        tokens: number of tokens of the corpus.
        segments: number of sentences or windows of the corpus.
        keys: number of memories (FFN neurons) of all layers.
        seconds: time of the whole build on this machine, if it is otherwise idle.
        seconds_busy: time of the whole build, if the machine stays as busy as it was during the measurement.
        bytes: size of the finished index on disk, in bytes.
        memory: bytes of RAM for the lists of each memory's largest coefficients.
        is_exact: whether the sample was the whole corpus, so that the counts are exact.
    """

    tokens: int
    segments: int
    keys: int
    seconds: float
    seconds_busy: float
    bytes: int
    memory: int
    is_exact: bool

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name."""
        return asdict(self)


def estimate(lm: Decoder, corpus: Corpus, settings: IndexSettings, tokens_per_batch: int = 2048) -> Estimate:
    """Estimate tokens, time and disk space of an index; see `Index.estimate`."""
    layers = lm.memory_layers if settings.layers is None else [lm.layer(n) for n in settings.layers]
    first = next(iter(layers), 0)
    site = lm.feed_forward(first)
    sample: list[Segment] = []
    tokens, is_exact, began = 0, True, _Stopwatch()
    for segment in corpus.segments(lm):
        if tokens >= _SAMPLE:
            is_exact = False
            break
        sample.append(segment)
        tokens += len(segment) - segment.skip
    cutting = began.spent(1) / max(1, tokens)
    scale = 1.0 if is_exact else _times(corpus, sample[-1])
    reducers = [settings.top_triggers(), MeanVariance(), FiringShare({})]
    a_token, filling = _run(lm, sample, reducers, settings.fast, tokens_per_batch, settings.top, tokens * scale)
    some = written_values(lm, first, slice(0, _VALUES))
    hidden = lm.unlisted
    began = _Stopwatch()
    read_ends(lm, some, settings.top_tokens, hidden=hidden)
    a_value = began.spent(_threads(lm)) / len(some)
    keys = sum(lm.n_memories_of(n) for n in layers)
    both = settings.poles == "both" or (settings.poles == "auto" and site.is_gated)
    slots = keys * settings.top * (2 if both else 1)
    all_tokens, segments = round(tokens * scale), round(len(sample) * scale)
    size = slots * _TRIGGER + keys * settings.top_tokens * _VALUE_TOKEN + segments * _SEGMENT
    size += all_tokens * _TOKEN + min(all_tokens, slots * tokens / max(1, len(sample))) * _SEARCHED
    quiet, busy = all_tokens * (a_token + cutting) + filling + a_value * keys + slots * 2e-6
    return Estimate(all_tokens, segments, keys, float(quiet), float(busy), round(size), slots * 12, is_exact)


def _times(corpus: Corpus, last: Segment) -> float:
    """Return the size of the whole corpus divided by the size of its part up to the segment `last`."""
    by_share = 1 / last.share if last.share > 0 else float("inf")
    by_count = corpus.max_documents / (last.document + 1) if corpus.max_documents else float("inf")
    found = min(by_share, by_count)
    return max(1.0, found) if found < float("inf") else 1.0


def _run(
    lm: Decoder,
    sample: Sequence[Segment],
    reducers: Sequence[Reducer],
    fast: Fast | None,
    tokens_per_batch: int,
    top: int,
    tokens: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds per token of a pass over the corpus, and the seconds to fill lists of largest coefficients.

    Each is an array of two numbers: the seconds on an idle machine, and those measured. Some batches of the sample are
    run twice. In the second pass no coefficient enters the lists, so the difference of the two times is the cost of
    filling the lists. It is extrapolated to the whole corpus: of n positions in random order, about t (1 + ln(n / t))
    enter a list of t entries.
    """
    batches = list(bucketed(iter(sample), tokens_per_batch, 64))
    batches = batches[_spread([batch.tokens.numel() for batch in batches], _SWEPT)]
    # The model takes as long for padding as for real tokens. The batches of this small sample have much padding, those
    # of a build almost none, because a build sorts many more segments by length. So the measured time is divided by the
    # number of all tokens, padding included; otherwise the time per token in a build would be overestimated.
    cells = sum(batch.tokens.numel() for batch in batches)
    for reducer in reducers:
        reducer.start(lm)
    with feed_reducers(lm, reducers, fast) as feed:

        def spent() -> np.ndarray:
            began = _Stopwatch()
            for batch in batches:
                feed(batch)
            return began.spent(_threads(lm))

        first, again = spent(), spent()
    entered, entering = (min(n, top) + top * math.log(max(1.0, n / top)) for n in (cells, tokens))
    return again / max(1, cells), (first - again).clip(min=0) * max(1.0, entering / max(1.0, entered))


def _spread(sizes: Sequence[int], tokens: int) -> slice:
    """Choose evenly spaced batches that together have about `tokens` tokens; return them as a slice."""
    step = min(max(1, sum(sizes) // tokens), max(1, len(sizes)))
    return slice(step // 2, None, step)


def _threads(lm: Decoder) -> int | None:
    """Return the number of CPU threads that run the model; None if it runs on another device."""
    return torch.get_num_threads() if lm.device.type == "cpu" else None


class _Stopwatch:
    """Wall time and processor time since its creation."""

    def __init__(self) -> None:
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def spent(self, threads: int | None) -> np.ndarray:
        """Return the seconds since creation: estimated for an idle machine, and as measured."""
        busy = time.perf_counter() - self._clock
        quiet = busy if threads is None else min(busy, (time.process_time() - self._processor) / threads)
        return np.array([quiet, busy])
