"""What an index will cost, told before it is built: a sample of the corpus is cut and a few batches are run."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unembed.corpus import Corpus
from unembed.index.plan import Settings
from unembed.memories.values import value_readings
from unembed.models.decoder import Decoder
from unembed.sweeps import ActiveFraction, MeanVariance, TopTriggers, sweep

_SAMPLE, _SWEPT = 100_000, 15_000
"""Characters that are cut, and that are run."""
# Bytes: a trigger is 8 in arrays and about 8 in Parquet, a value token 12 and about 5; the rest as on WikiText.
_TRIGGER, _VALUE_TOKEN, _TOKEN, _SEGMENT, _SEARCHED = 16, 17, 4, 36, 4


@dataclass(frozen=True)
class Estimate:
    """What a build will cost. Counts of a corpus larger than the sample are extrapolated.

    Attributes:
        tokens: of the corpus.
        segments: sentences or windows.
        keys: of all layers.
        seconds: of the whole build, on this machine as busy as it is now.
        bytes: of the finished index, the corpus's tokens and the search file included.
        memory: bytes of the sweep's state.
        is_exact: whether the corpus was counted whole.
    """

    tokens: int
    segments: int
    keys: int
    seconds: float
    bytes: int
    memory: int
    is_exact: bool

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)


def estimate(lm: Decoder, corpus: Corpus, settings: Settings) -> Estimate:
    """Tokens, time and disk of an index.

    Raises:
        CorpusUnreadable: the corpus is empty or cannot be read.
        Unsupported: the model has no memories.
    """
    lm.feed_forward(0)
    sample, is_exact = _beginning(corpus, _SAMPLE)
    began = time.perf_counter()
    lengths = [(len(segment) - segment.skip) for segment in sample.segments(lm)]
    tokens = max(1, sum(lengths))
    cutting = (time.perf_counter() - began) / tokens
    scale = 1.0 if is_exact else max(1.0, _size(corpus) / _size(sample))
    swept, _ = _beginning(sample, _SWEPT)
    seen = max(1, sum(len(segment) - segment.skip for segment in swept.segments(lm)))
    reducers = [TopTriggers(settings.top, poles=settings.poles, by=settings.by), MeanVariance(), ActiveFraction()]
    began = time.perf_counter()
    sweep(lm, swept, reducers, tokens_per_batch=settings.tokens_per_batch)
    a_token = (time.perf_counter() - began) / seen
    began = time.perf_counter()
    value_readings(lm, settings.top_tokens, layers=[0])
    a_layer = time.perf_counter() - began
    keys = sum(int(lm.weights.W_out[n].shape[0]) for n in range(lm.n_layers))
    both = settings.poles == "both" or (settings.poles == "auto" and lm.feed_forward(0).is_gated)
    slots = keys * settings.top * (2 if both else 1)
    all_tokens, segments = round(tokens * scale), round(len(lengths) * scale)
    size = slots * _TRIGGER + keys * settings.top_tokens * _VALUE_TOKEN + segments * _SEGMENT
    size += all_tokens * _TOKEN + min(all_tokens, slots * tokens / max(1, len(lengths))) * _SEARCHED
    seconds = all_tokens * (a_token + 2 * cutting) + a_layer * lm.n_layers + slots * 2e-6
    return Estimate(all_tokens, segments, keys, seconds, round(size), slots * 12, is_exact)


def _beginning(corpus: Corpus, characters: int) -> tuple[Corpus, bool]:
    """The first texts of a corpus, at most so long, as a corpus in memory; and whether that is all of it."""
    texts: list[str] = []
    room = characters
    for document in corpus.documents():
        if room <= 0:
            return _of_texts(corpus, texts), False
        texts.append(document.text[:room])
        room -= len(document.text)
    return _of_texts(corpus, texts), room >= 0


def _of_texts(corpus: Corpus, texts: list[str]) -> Corpus:
    return replace(corpus, files=(), texts=tuple(texts), max_documents=None)


def _size(corpus: Corpus) -> int:
    """Bytes of text in a corpus: file sizes where files are text as they are, else counted."""
    is_plain = all(Path(path).suffix == ".txt" for path in corpus.files)
    if corpus.files and not corpus.texts and corpus.max_documents is None and is_plain:
        return sum(path.stat().st_size for path in corpus.files)
    return sum(len(document.text.encode("utf-8", "surrogatepass")) for document in corpus.documents())
