"""Shards of a sweep: runs of batches done anywhere in any order, joined in one fixed order.

Shards are joined like the digits of a binary counter: two neighbours of equal size become one. So the tree, and with it
every bit of the result, depends on the corpus alone, never on who finished first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

from unembed.corpus.segments import Batch
from unembed.models.decoder import Decoder
from unembed.sweeps.passing import feeding
from unembed.sweeps.reducer import Reducer


@dataclass(frozen=True)
class Shard:
    """Neighbouring batches."""

    number: int
    batches: tuple[Batch, ...]

    @property
    def n_counted(self) -> int:
        """Positions that count."""
        return sum(batch.n_counted for batch in self.batches)


@dataclass(frozen=True)
class Done:
    """What a shard's reducers hold after it."""

    number: int
    batches: int
    tokens: int
    share: float
    states: tuple[Mapping[str, Any], ...]


def shards(batches: Iterator[Batch], size: int, skip: int = 0) -> Iterator[Shard]:
    """Runs of `size` batches, the first `skip` runs left out."""
    number = 0
    while held := tuple(islice(batches, size)):
        if number >= skip:
            yield Shard(number, held)
        number += 1


def reduce_shard(lm: Decoder, reducers: Sequence[Reducer], shard: Shard) -> Done:
    """Feed a shard to fresh copies of reducers that never started."""
    fresh = deepcopy(list(reducers))
    for reducer in fresh:
        reducer.start(lm)
    with feeding(lm, fresh) as feed:
        for batch in shard.batches:
            feed(batch)
    states = tuple(reducer.state() for reducer in fresh)
    return Done(shard.number, len(shard.batches), shard.n_counted, shard.batches[-1].share, states)


class Joining:
    """Takes shards as they come and joins them in order.

    Args:
        begin: makes started, empty reducers.
    """

    def __init__(self, begin: Callable[[], list[Reducer]]) -> None:
        """Nothing joined."""
        self._begin = begin
        self._tree: list[tuple[int, list[Reducer]]] = []
        self._early: dict[int, Done] = {}
        self.shards = self.batches = self.tokens = 0
        self.share = 0.0

    def take(self, done: Done) -> None:
        """One more shard; it waits until all before it are there."""
        self._early[done.number] = done
        while (following := self._early.pop(self.shards, None)) is not None:
            part = self._begin()
            for reducer, state in zip(part, following.states, strict=True):
                reducer.load_state(state)
            self._tree.append((0, part))
            while len(self._tree) > 1 and self._tree[-1][0] == self._tree[-2][0]:
                self._join_last()
            self.shards += 1
            self.batches += following.batches
            self.tokens += following.tokens
            self.share = following.share

    def _join_last(self) -> None:
        size, later = self._tree.pop()
        _, earlier = self._tree[-1]
        for mine, theirs in zip(earlier, later, strict=True):
            mine.merge(theirs)
        self._tree[-1] = (size + 1, earlier)

    def state(self) -> tuple[Mapping[str, Any], ...]:
        """The tree as it stands: its sizes, then every part's states."""
        sizes = {"sizes": [size for size, _ in self._tree], "shards": self.shards}
        return (sizes, *(reducer.state() for _, part in self._tree for reducer in part))

    def load_state(self, states: Sequence[Mapping[str, Any]], batches: int, tokens: int) -> None:
        """Go on from a saved tree."""
        sizes, *rest = states
        self.shards, self.batches, self.tokens = int(sizes["shards"]), batches, tokens
        for size in sizes["sizes"]:
            part = self._begin()
            for reducer in part:
                reducer.load_state(rest.pop(0))
            self._tree.append((size, part))

    def results(self) -> list[Any]:
        """All parts joined; nothing can be taken afterwards."""
        while len(self._tree) > 1:
            self._join_last()
        whole = self._tree[0][1] if self._tree else self._begin()
        return [reducer.result() for reducer in whole]
