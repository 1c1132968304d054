"""The interface of a reducer: a statistic over a corpus that a sweep updates batch by batch."""

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
    """A statistic over a corpus, which a sweep updates batch by batch.

    A sweep calls `start(lm)` once. For every batch it calls `see(...)` with each tensor in `needs`, in the order of the
    forward pass, and then `update(batch)`. At the end it calls `result()`. `merge` adds what another reducer of the
    same settings computed on other batches; it must be associative. `state()` returns everything needed to continue in
    another process, as tensors and plain values; `load_state` restores it after `start`.

    A reducer is made from plain settings only, so that it can be pickled before `start` and copied to a worker.
    """

    @abstractmethod
    def start(self, lm: Decoder) -> None:
        """Read the sizes of the model, and start with no data."""

    @property
    @abstractmethod
    def needs(self) -> Collection[Need]:
        """The tensors that the reducer reads, as (capture point, layer); known after `start`."""

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:  # noqa: B027 - some reducers need no tensor
        """Receive one tensor of the batch: (batch, pos, width), on the model's device.

        It includes padding; `batch.counted` marks the positions to count. The model may change the tensor after this
        call, so copy what is needed later.
        """

    def see_routed(self, layer: int, routed: RoutedCoefficients, batch: Batch) -> None:
        """Receive the coefficients of a layer with experts, only those of chosen experts.

        By default, coefficients of 0 are added for all other experts, and the whole tensor is passed to `see`.
        """
        self.see("coefficients", layer, routed.dense().view(*batch.shape, -1), batch)

    def update(self, batch: Batch) -> None:  # noqa: B027 - `see` may do everything
        """Finish the batch; called after its last tensor."""

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Add what another reducer of the same settings computed on other batches."""

    @abstractmethod
    def result(self) -> Any:
        """Return the statistic; the result shares no memory with this reducer."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state as tensors and plain values, for `load_state`."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned; call this after `start`."""

    def settings(self) -> str:
        """Return, as text, what must be equal for two states to be merged.

        By default this is the class and its public attributes.
        """
        plain = {k: v for k, v in sorted(vars(self).items()) if not k.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in plain.items())})"


class Summed(Reducer):
    """A reducer whose state is a dict of tensors that are summed; a missing tensor counts as zeros."""

    _sums: dict[str, Tensor]

    def merge(self, other: Any) -> None:
        """Add the sums of another reducer."""
        for name, theirs in other._sums.items():
            self._sums[name] = self._sums[name] + theirs if name in self._sums else theirs.clone()

    def state(self) -> dict[str, Any]:
        """Return a dict of the accumulated sums."""
        return dict(self._sums)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the sums that `state` returned."""
        self._sums = {name: tensor.clone() for name, tensor in state.items()}
