"""Decide which neighbouring parts of a sweep are merged next, independently of which worker finishes first.

A part covers the shards from `first` to `end` (exclusive). A part of 2^k shards that begins at a multiple of 2^(k+1) is
merged with the 2^k shards after it, or with all remaining shards if the corpus ends earlier. So the order of merges,
and with it every bit of the result, depends only on the number of shards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from unembed.sweeps.ray.shards import Coverage, States


@dataclass(eq=False)
class Part:
    """The states of the reducers (statistics) after a sequence of neighbouring shards.

    Attributes:
        first: the number of the first shard.
        end: the number of the last shard plus 1.
        coverage: the number of batches and tokens in these shards.
        ref: the Ray reference to the states.
        states: the states themselves, if this process has a copy; else None.
    """

    first: int
    end: int
    coverage: Coverage
    ref: Any = None
    states: States | None = None

    def __len__(self) -> int:
        """Return the number of shards."""
        return self.end - self.first


class MergeTree:
    """The parts that wait to be merged with a neighbour."""

    def __init__(self) -> None:
        self._parts: dict[int, Part] = {}
        self.n_shards: int | None = None

    def put(self, part: Part) -> None:
        """Add a part."""
        self._parts[part.first] = part

    def pair(self) -> tuple[Part, Part] | None:
        """Remove and return two neighbouring parts that can be merged now; None if there are none."""
        for first in sorted(self._parts):
            left = self._parts[first]
            end = self._end_of_right(left)
            right = self._parts.get(left.end)
            if end is not None and right is not None and right.end == end:
                return self._parts.pop(first), self._parts.pop(right.first)
        return None

    def _end_of_right(self, left: Part) -> int | None:
        """Return the `end` of the right neighbour with which `left` will be merged.

        None if `left` is itself the right one of two parts that will be merged.
        """
        size = len(left)
        if size & (size - 1) or left.first % (2 * size):
            return None
        end = left.end + size
        return end if self.n_shards is None else min(end, self.n_shards)

    def root(self) -> Part | None:
        """Return the part that covers all shards; None if there is none yet."""
        part = self._parts.get(0)
        return part if part is not None and part.end == self.n_shards else None

    def drop(self, part: Part) -> None:
        """Remove a part whose states are lost."""
        del self._parts[part.first]

    def parts(self) -> Iterable[Part]:
        """Return all parts that wait to be merged."""
        return self._parts.values()


def contiguous_parts(parts: Iterable[Part]) -> list[Part]:
    """Return the parts from the start of the corpus up to the first gap, in order."""
    by_first = {part.first: part for part in parts}
    run: list[Part] = []
    while (part := by_first.get(run[-1].end if run else 0)) is not None:
        run.append(part)
    return run
