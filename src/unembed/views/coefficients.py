"""How large one memory's coefficient usually is: statistics over the index's corpus, a histogram of a sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unembed.index import tables

SCHEMA = "unembed.coefficients/1"
_STATISTICS = ("mean", "variance", "least", "largest", "active_fraction")
_MOST, _LEAST, _WORK = 4096, 256, 1e11
"""Tokens of a sample: as many as cost so many multiplications in the blocks, within these bounds."""
_BATCH = 16


@dataclass(frozen=True)
class CoefficientsView:
    """One memory's coefficients over the index's corpus."""

    schema: str
    layer: int
    index: int
    statistics: dict[str, float]
    """Over the whole corpus: mean, variance, least, largest, active_fraction."""
    edges: list[float]
    """Bounds of the histogram's bins, one more than counts."""
    counts: list[int]
    """Of the sampled tokens."""
    sampled: int
    tokens: int
    """Tokens of the corpus."""

    def to_dict(self) -> dict[str, Any]:
        """The view as JSON can hold it."""
        return dataclasses.asdict(self)


def coefficients_view(lm: Any, held: Any, layer: int, index: int, bins: int = 48) -> CoefficientsView:
    """The statistics and a histogram over evenly spaced passages of the corpus.

    Raises:
        OutOfRange: there is no such memory.
        IndexFault: the index's triggers are not built yet.
    """
    layer, index = lm.memory(layer, index)
    held.need("triggers")
    path, row = held.path / "tables/statistics.parquet", held.row(layer, index)
    statistics = {name: float(tables.read_column(path, name)[row]) for name in _STATISTICS}
    found = np.concatenate(list(_sampled(lm, held, layer, index)))
    counts, edges = np.histogram(found, bins=bins)
    return CoefficientsView(
        SCHEMA, layer, index, statistics, edges.tolist(), counts.tolist(), len(found), len(held.passages.token)
    )


def _sampled(lm: Any, held: Any, layer: int, index: int) -> Iterator[np.ndarray]:
    """Coefficients at every token of evenly spaced passages."""
    work = 12 * lm.n_layers * lm.d_model**2
    wanted = int(min(_MOST, max(_LEAST, _WORK / work)))
    start = np.asarray(held.passages.start)
    lengths = np.diff(start)
    n = min(len(lengths), max(1, round(wanted / max(1.0, float(lengths.mean())))))
    chosen = np.unique(np.linspace(0, len(lengths) - 1, n).round().astype(int))
    for at in range(0, len(chosen), _BATCH):
        parts = [
            torch.tensor(np.asarray(held.passages.token[start[s] : start[s + 1]])).long()
            for s in chosen[at : at + _BATCH]
        ]
        # Padded on the right: a causal model's earlier positions do not see it, and it is cut off again.
        ids = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        m = lm.run(ids, "coefficients", layers=[layer], logits=False).at("coefficients", layer)[..., index]
        for row, part in zip(m.float().cpu().numpy(), parts, strict=True):
            yield row[: len(part)]
