"""Find the largest activations of every feature of a dictionary over a corpus."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.dictionaries.dictionary import Dictionary
from unembed.models.decoder import Decoder
from unembed.sweeps.reducers.batch_columns import BatchColumns
from unembed.sweeps.reducers.reducer import Need, Reducer
from unembed.sweeps.reducers.top_lists import TopLists
from unembed.validation import positive_int


class TopFeatures(Reducer):
    """A reducer that finds, for every feature of one layer, the corpus positions with its largest activations.

    Activations of 0 are ignored. Memory: 12 bytes for each position that is stored, and the features of one batch.
    """

    def __init__(self, dictionary: Dictionary, layer: int, top: int = 10) -> None:
        self.top, self.layer = positive_int("top", top), layer
        self._dictionary = dictionary

    def start(self, lm: Decoder) -> None:
        """Create empty lists."""
        W_enc = self._dictionary.W_enc
        dtype = torch.float64 if W_enc.dtype == torch.float64 else torch.float32
        self._lists = TopLists(self._dictionary.n_features, self.top, dtype, W_enc.device)

    @property
    def needs(self) -> Collection[Need]:
        """The activations to capture: the encoder's input."""
        return [(self._dictionary.reads, self.layer)]

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Add the activations of a batch to the lists of largest activations."""
        columns = BatchColumns(batch, batch.counted, tensor.device)
        if columns.n:
            self._lists.offer(self._dictionary.encode(columns.of(tensor)), 1, columns)

    def merge(self, other: TopFeatures) -> None:
        """Add the results of a reducer that read another part of the corpus."""
        self._lists.merge(other._lists)

    def result(self) -> tuple[Tensor, Tensor]:
        """Return the largest activations and their positions, both (feature, t)."""
        return self._lists.result()

    def state(self) -> dict[str, Any]:
        """Return the lists, to save them in a checkpoint."""
        return dict(self._lists.state())

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the lists from a checkpoint."""
        self._lists.load_state(state)
