"""Shards of a sweep: runs of neighbouring batches, done anywhere, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.models.decoder import Decoder
from unembed.sweeps.fast_kernels import Fast
from unembed.sweeps.forward import feeding
from unembed.sweeps.reducers.reducer import Reducer

States = tuple[Mapping[str, Any], ...]
"""Every reducer's state, its tensors on the CPU."""


@dataclass(frozen=True)
class Shard:
    """Neighbouring batches."""

    number: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True)
class Seen:
    """How much was read.

    Attributes:
        batches: how many.
        tokens: positions counted.
        share: of the corpus, up to the end of the last batch.
    """

    batches: int
    tokens: int
    share: float

    def then(self, later: Seen) -> Seen:
        """Both, the later one right behind this."""
        return Seen(self.batches + later.batches, self.tokens + later.tokens, later.share)


def shards(batches: Iterator[Batch], size: int, skip: int = 0) -> Iterator[Shard]:
    """Runs of `size` batches, the first `skip` runs left out."""
    number = 0
    while held := tuple(islice(batches, size)):
        if number >= skip:
            yield Shard(number, held)
        number += 1


def begun(lm: Decoder, reducers: Sequence[Reducer]) -> list[Reducer]:
    """Started copies of reducers that never started."""
    fresh = deepcopy(list(reducers))
    for reducer in fresh:
        reducer.start(lm)
    return fresh


def reduce_shard(
    lm: Decoder, reducers: Sequence[Reducer], shard: Shard, fast: Fast | None = None
) -> tuple[Seen, States]:
    """Feed a shard to fresh reducers."""
    fresh = begun(lm, reducers)
    with feeding(lm, fresh, fast) as feed:
        for batch in shard.batches:
            feed(batch)
    tokens = sum(batch.n_counted for batch in shard.batches)
    return Seen(len(shard.batches), tokens, shard.batches[-1].share), _states(fresh)


def joined(lm: Decoder, reducers: Sequence[Reducer], earlier: States, later: States) -> States:
    """The states after both of two neighbouring runs of shards."""
    mine, theirs = restored(lm, reducers, earlier), restored(lm, reducers, later)
    for one, other in zip(mine, theirs, strict=True):
        one.merge(other)
    return _states(mine)


def restored(lm: Decoder, reducers: Sequence[Reducer], states: States) -> list[Reducer]:
    """Fresh reducers that hold these states."""
    fresh = begun(lm, reducers)
    for reducer, state in zip(fresh, states, strict=True):
        reducer.load_state(state)
    return fresh


def _states(reducers: Sequence[Reducer]) -> States:
    """On the CPU, so that a process without the worker's device can hold them."""
    return tuple(
        {name: value.cpu() if isinstance(value, Tensor) else value for name, value in reducer.state().items()}
        for reducer in reducers
    )
