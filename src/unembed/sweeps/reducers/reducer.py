"""The interface of a running statistic, which a sweep can feed, save, resume and merge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.models.decoder import Decoder
from unembed.models.structure.experts import RoutedCoefficients

Need = tuple[str, int]
"""A capture point and a layer, such as ("coefficients", 3). ("logits", 0) means the model's logits."""
LOGITS: Need = ("logits", 0)


class Reducer(ABC):
    """A running statistic over a corpus.

    A sweep calls `start(lm)` once. For every batch it calls `see(...)` for each need, in the order of the forward pass,
    then `update(batch)`. At the end it calls `result()`. `merge` adds what another reducer of the same settings saw in
    other batches; it must be associative. `state()` gives everything needed to continue elsewhere, as tensors and plain
    values; `load_state` restores it after `start`.

    A reducer is built from plain settings only, so that it can be pickled before `start` and copied to a worker.
    """

    @abstractmethod
    def start(self, lm: Decoder) -> None:
        """Read the sizes of the model and start without data."""

    @property
    @abstractmethod
    def needs(self) -> Collection[Need]:
        """Return the tensors it needs; known after `start`."""

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:  # noqa: B027 - some reducers need no tensor
        """Receive one needed tensor of the batch, live: (batch, pos, width) on the model's device.

        It contains padding; `batch.counted` marks the positions to count. Copy what must outlive the call.
        """

    def see_routed(self, layer: int, routed: RoutedCoefficients, batch: Batch) -> None:
        """Receive the coefficients of a layer of experts without the zeros of those that were not chosen.

        By default they are made dense and passed to `see`.
        """
        self.see("coefficients", layer, routed.dense().view(*batch.shape, -1), batch)

    def update(self, batch: Batch) -> None:  # noqa: B027 - `see` may do everything
        """Complete the batch; called after its last tensor."""

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Add what another reducer of the same settings saw."""

    @abstractmethod
    def result(self) -> Any:
        """Return the statistic as a frozen value that shares no memory with this reducer."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return tensors and plain values that `load_state` understands."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state; call after `start`."""

    def settings(self) -> str:
        """Return what must be equal for two states to be merged: by default the class and its public attributes."""
        plain = {k: v for k, v in sorted(vars(self).items()) if not k.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in plain.items())})"


class Summed(Reducer):
    """A reducer whose whole state is named tensors that are summed; `start` may leave out tensors of zeros."""

    _sums: dict[str, Tensor]

    def merge(self, other: Any) -> None:
        """Add the sums of another part."""
        for name, theirs in other._sums.items():
            self._sums[name] = self._sums[name] + theirs if name in self._sums else theirs.clone()

    def state(self) -> dict[str, Any]:
        """Return the sums."""
        return dict(self._sums)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore saved sums."""
        self._sums = {name: tensor.clone() for name, tensor in state.items()}
