"""Which neighbouring parts of a sweep are joined next: always the same tree, whoever is done first.

A part covers shards first to end (exclusive). Parts of 2^k shards that begin at a multiple of 2^(k+1) are joined with
the 2^k shards behind them, or with all that are left where the corpus ends earlier. So the tree, and with it every bit
of the result, depends on the number of shards alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from unembed.sweeps.ray.shards import Seen, States


@dataclass(eq=False)
class Part:
    """What was found in a run of shards.

    Attributes:
        first: its first shard.
        end: the shard behind its last.
        seen: how much that was.
        where: where the cluster holds its states.
        held: the states themselves, where this process keeps a copy.
    """

    first: int
    end: int
    seen: Seen
    where: Any = None
    held: States | None = None

    def __len__(self) -> int:
        """Shards."""
        return self.end - self.first


class MergeTree:
    """Parts that wait for their neighbours."""

    def __init__(self) -> None:
        """Nothing done, the number of shards not known yet."""
        self._waiting: dict[int, Part] = {}
        self.total: int | None = None

    def put(self, part: Part) -> None:
        """A part is there, or there again."""
        self._waiting[part.first] = part

    def pair(self) -> tuple[Part, Part] | None:
        """Two neighbours that can be joined now, taken out; None where there are none."""
        for first in sorted(self._waiting):
            left = self._waiting[first]
            end = self._behind(left)
            right = self._waiting.get(left.end)
            if end is not None and right is not None and right.end == end:
                return self._waiting.pop(first), self._waiting.pop(right.first)
        return None

    def _behind(self, left: Part) -> int | None:
        """Where the part that a left half waits for ends; None for a right half."""
        size = len(left)
        if size & (size - 1) or left.first % (2 * size):
            return None
        end = left.end + size
        return end if self.total is None else min(end, self.total)

    def whole(self) -> Part | None:
        """The part that covers all shards, once there is one."""
        part = self._waiting.get(0)
        return part if part is not None and part.end == self.total else None

    def drop(self, part: Part) -> None:
        """A part proved lost."""
        del self._waiting[part.first]

    def waiting(self) -> Iterable[Part]:
        """All parts that are there."""
        return self._waiting.values()


def unbroken(parts: Iterable[Part]) -> list[Part]:
    """The parts that cover the corpus from its begin without a gap."""
    by_first = {part.first: part for part in parts}
    found: list[Part] = []
    while (part := by_first.get(found[-1].end if found else 0)) is not None:
        found.append(part)
    return found
