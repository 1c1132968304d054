"""Describe the distribution of one memory's coefficient: statistics over the corpus, and a histogram of a sample."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from unembed.index.contexts import Context, context, read
from unembed.index.index_files import IndexFiles
from unembed.index.passages import Sample
from unembed.models.decoder import Decoder

SCHEMA = "unembed.coefficients/1"
STATISTICS_SCHEMA = "unembed.coefficient_statistics/1"
_STATISTICS = ("mean", "variance", "least", "largest", "active_fraction")
_MOST, _LEAST, _WORK = 4096, 256, 1e11
"""A sample has as many tokens as the model's blocks can process with `_WORK` multiplications, but at least `_LEAST` and
at most `_MOST`."""
_BANDS = (1.0, 0.5, 0.25, 0.1, 0.0)
"""Bounds of the bands, the ranges of the coefficient by which sampled tokens are grouped, as shares of the largest
coefficient on the corpus."""
_CACHE_BYTES = 2**27
"""Largest number of bytes of an index's cached samples, one sample for each layer; two are always cached. For a
small model, the samples of all layers fit, so that the model is run only once per layer."""
_SHOWN = 4
"""Number of contexts shown for a band."""


@dataclass(frozen=True)
class Band:
    """The sampled tokens whose coefficient lies between two bounds, and contexts of some, largest coefficient first."""

    above: float
    up_to: float
    tokens: int
    contexts: list[Context]


@dataclass(frozen=True)
class StatisticsView:
    """Statistics of one memory's (FFN neuron's) coefficient over the index's corpus, as the index stores them."""

    schema: str
    layer: int
    index: int
    statistics: dict[str, float]
    """The statistics mean, variance, least, largest and active_fraction, over the whole corpus.

    In gated layers also positive_share and negative_share.
    """
    layer_largest: float
    """The largest coefficient that any memory of the layer has on the corpus."""
    tokens: int
    """Number of tokens of the corpus."""


@dataclass(frozen=True)
class CoefficientsView(StatisticsView):
    """The distribution of one memory's (FFN neuron's) coefficient over the index's corpus."""

    edges: list[float]
    """The edges of the histogram's bins, one more than there are bins."""
    counts: list[int]
    """Number of sampled tokens in each bin."""
    high: float
    """The 99th percentile of the coefficient over the sampled tokens."""
    bands: list[Band]
    """The bands of sampled tokens, largest coefficients first; bands without a token are left out."""
    sampled: int


def statistics_view(lm: Decoder, files: IndexFiles, layer: int, index: int) -> StatisticsView:
    """Return statistics of a memory's coefficient over the whole corpus; the model is not run.

    Raises:
        OutOfRange: there is no such memory.
        IndexFault: the index's triggers are not built yet.
    """
    layer, index = lm.memory(layer, index)
    columns, row = files.statistics, files.row(layer, index)
    statistics = {name: float(columns[name][row]) for name in _STATISTICS}
    if files.has_signs and files.firing_shares is not None:
        statistics |= {f"{pole}_share": float(share[row]) for pole, share in files.firing_shares.items()}
    of_layer = columns["largest"][files.bounds[layer] : files.bounds[layer + 1]]
    tokens = len(files.passages.token)
    return StatisticsView(STATISTICS_SCHEMA, layer, index, statistics, float(np.max(of_layer)), tokens)


def coefficients_view(lm: Decoder, files: IndexFiles, layer: int, index: int, bins: int = 48) -> CoefficientsView:
    """Return statistics of a memory's coefficient, a histogram, and example texts by the size of the coefficient.

    The histogram and the examples are from evenly spaced passages of the corpus.

    Raises:
        OutOfRange: there is no such memory.
        IndexFault: the index's triggers are not built yet.
    """
    stored = statistics_view(lm, files, layer, index)
    sample = _sampled(lm, files, stored.layer)
    m = sample.coefficients[:, stored.index]
    found = m[sample.is_own]
    counts, edges = np.histogram(found, bins=bins)
    return CoefficientsView(
        SCHEMA,
        stored.layer,
        stored.index,
        stored.statistics,
        stored.layer_largest,
        stored.tokens,
        edges.tolist(),
        counts.tolist(),
        float(np.quantile(found, 0.99)),
        _bands(files, sample, m, stored.statistics),
        len(found),
    )


def _sampled(lm: Decoder, files: IndexFiles, layer: int) -> Sample:
    """Return the coefficients of a layer's memories on the sample; the layers used last are cached."""
    cached = files.samples
    if layer not in cached:  # the layer is enough as a key: an index belongs to one model
        cached[layer] = _read(lm, files, layer)
        while len(cached) > 2 and sum(one.coefficients.nbytes for one in cached.values()) > _CACHE_BYTES:
            cached.popitem(last=False)
    return cached[layer]


def _read(lm: Decoder, files: IndexFiles, layer: int) -> Sample:
    work = 12 * lm.n_layers * lm.d_model**2
    wanted = int(min(_MOST, max(_LEAST, _WORK / work)))
    start = np.asarray(files.passages.start)
    lengths = np.diff(start)
    n = min(len(lengths), max(1, round(wanted / max(1.0, float(lengths.mean())))))
    chosen = np.unique(np.linspace(0, len(lengths) - 1, n).round().astype(int))
    ends = [int(start[s + 1]) - 1 for s in chosen]
    passages = list(read(lm, files, layer, slice(None), ends))
    at = [np.arange(end + 1 - len(m), end + 1) for end, m in zip(ends, passages, strict=True)]
    return Sample(
        np.concatenate(passages),
        np.concatenate(at),
        np.cumsum([0] + [len(m) for m in passages]),
        np.concatenate([places >= start[s] for places, s in zip(at, chosen, strict=True)]),
    )


def _bands(files: IndexFiles, sample: Sample, m: np.ndarray, statistics: dict[str, float]) -> list[Band]:
    """Group the sampled tokens by their coefficient into `Band`s.

    Four bands have bounds that are fractions of the largest coefficient; the last has all negative coefficients.
    """
    top = max(statistics["largest"], float(m.max()), 0.0)
    bounds = [share * top for share in _BANDS] + [min(statistics["least"], float(m.min()))]
    bands = []
    for up_to, above in itertools.pairwise(bounds):
        inside = (m > above) & (m <= up_to) if up_to > 0 else m < 0
        members = np.flatnonzero(inside & sample.is_own)
        members = members[np.argsort(-m[members], kind="stable")]
        shown = np.unique(np.linspace(0, len(members) - 1, min(_SHOWN, len(members))).round().astype(int))
        contexts = []
        for i in members[shown]:
            begin = sample.begins[np.searchsorted(sample.begins, i, side="right") - 1]
            contexts.append(context(files, int(sample.at[i]), m[begin : i + 1], float(m[i])))
        if contexts:
            bands.append(Band(float(above), float(up_to), len(members), contexts))
    return bands
