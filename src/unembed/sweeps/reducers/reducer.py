"""What a running statistic promises, so that a sweep can feed it, save it, resume it and join its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.models.decoder import Decoder

Need = tuple[str, int]
"""A capture point and a layer, such as ("coefficients", 3). ("logits", 0) asks for the model's logits."""
LOGITS: Need = ("logits", 0)


class Reducer(ABC):
    """A running statistic over a corpus.

    A sweep calls, in this order: `start(lm)` once; for every batch `see(...)` for each need, in the order of the
    forward
    pass, then `update(batch)`; at the end `result()`. Parts made from different batches are joined by `merge`, which
    must be associative. `state()` is all that is needed to go on elsewhere, as tensors and plain values; `load_state`
    takes it back after `start`.

    A reducer is built from plain settings only, so that it can be pickled before `start` and built again by a worker.
    """

    @abstractmethod
    def start(self, lm: Decoder) -> None:
        """Take sizes from the model and begin empty."""

    @property
    @abstractmethod
    def needs(self) -> Collection[Need]:
        """What it wants to see, known after `start`."""

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:  # noqa: B027 - not all reducers look
        """One needed tensor of the batch, live: (batch, pos, width) on the model's device.

        Padding is in it; `batch.counted` says which positions to count. Copy what must outlive the call.
        """

    def update(self, batch: Batch) -> None:  # noqa: B027 - what `see` did may be all
        """The batch has been seen whole."""

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Take in what another of the same settings saw."""

    @abstractmethod
    def result(self) -> Any:
        """The statistic, a frozen value that keeps no hold on this reducer."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Tensors and plain values that `load_state` understands."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; call after `start`."""

    def settings(self) -> str:
        """What must be equal for two states to be joined; by default the class and its plain attributes at birth."""
        plain = {k: v for k, v in sorted(vars(self).items()) if not k.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in plain.items())})"
