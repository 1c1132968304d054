"""The clusters of all value vectors: read from the index's folder, or computed once.

Only one thread at a time may call `find_or_compute`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from unembed.index import made_clusters, stored_clusters

if TYPE_CHECKING:
    from unembed.index.index import Index
    from unembed.language_model import LanguageModel
    from unembed.memories.clustering.value_clusters import ValueClusters


class ClusterStore:
    """Stores the clusters of a model's value vectors once they have been read or computed."""

    def __init__(self, lm: LanguageModel, index: Index | None) -> None:
        self._lm, self._index = lm, index
        self._clusters: ValueClusters | None = None

    @property
    def is_known(self) -> bool:
        """True if the clusters have been read or computed."""
        return self._clusters is not None

    def find(self) -> ValueClusters | None:
        """Return the clusters if they are in memory or in the index's folder, else None."""
        if self._clusters is None and self._index is not None:
            self._clusters = stored_clusters(self._lm, self._index)
        return self._clusters

    def find_or_compute(self, progress: Callable[[int, int], None]) -> ValueClusters:
        """Return the clusters; compute them if `find` finds none."""
        found = self.find()
        if found is None:
            found = self._clusters = made_clusters(self._lm, self._index, progress)
        return found
