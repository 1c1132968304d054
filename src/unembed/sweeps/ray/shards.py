"""Cut a sweep into shards: sequences of neighbouring batches that any worker can process."""

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
from unembed.sweeps.forward import feed_reducers
from unembed.sweeps.reducers.reducer import Reducer

States = tuple[Mapping[str, Any], ...]
"""The states of all reducers, with tensors on the CPU."""


@dataclass(frozen=True)
class Shard:
    """A sequence of neighbouring batches, which one job processes."""

    number: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True)
class Coverage:
    """How much of the corpus was processed.

    Attributes:
        tokens: number of tokens counted.
        share: the share of the corpus, 0 to 1, from its start up to the end of the last batch.
    """

    batches: int
    tokens: int
    share: float

    def then(self, later: Coverage) -> Coverage:
        """Return the coverage of two parts together, where `later` directly follows this one."""
        return Coverage(self.batches + later.batches, self.tokens + later.tokens, later.share)


def cut_shards(batches: Iterator[Batch], size: int, skip: int = 0) -> Iterator[Shard]:
    """Yield shards of `size` batches, leaving out the first `skip` shards."""
    number = 0
    while run := tuple(islice(batches, size)):
        if number >= skip:
            yield Shard(number, run)
        number += 1


def start_reducers(lm: Decoder, reducers: Sequence[Reducer]) -> list[Reducer]:
    """Return copies of the reducers, started for this model; the originals stay as they are."""
    copies = deepcopy(list(reducers))
    for reducer in copies:
        reducer.start(lm)
    return copies


def reduce_shard(
    lm: Decoder, reducers: Sequence[Reducer], shard: Shard, fast: Fast | None = None
) -> tuple[Coverage, States]:
    """Run the model on a shard with newly started reducers; return what was covered, and the reducers' states."""
    started = start_reducers(lm, reducers)
    with feed_reducers(lm, started, fast) as feed:
        for batch in shard.batches:
            feed(batch)
    tokens = sum(batch.n_counted for batch in shard.batches)
    return Coverage(len(shard.batches), tokens, shard.batches[-1].share), _states(started)


def merge_states(lm: Decoder, reducers: Sequence[Reducer], earlier: States, later: States) -> States:
    """Return the merged states of the reducers after two neighbouring sequences of shards."""
    left, right = restore_reducers(lm, reducers, earlier), restore_reducers(lm, reducers, later)
    for one, other in zip(left, right, strict=True):
        one.merge(other)
    return _states(left)


def restore_reducers(lm: Decoder, reducers: Sequence[Reducer], states: States) -> list[Reducer]:
    """Return copies of the reducers that have these states."""
    started = start_reducers(lm, reducers)
    for reducer, state in zip(started, states, strict=True):
        reducer.load_state(state)
    return started


def _states(reducers: Sequence[Reducer]) -> States:
    """Return the states of reducers, with tensors on the CPU, so that a process without a GPU can load them."""
    return tuple(
        {name: value.cpu() if isinstance(value, Tensor) else value for name, value in reducer.state().items()}
        for reducer in reducers
    )
