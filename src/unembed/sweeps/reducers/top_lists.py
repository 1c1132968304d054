"""The t largest values of every key in a stream of activations, exactly, at about the cost of reading them once.

What a batch must beat is each key's t-th value so far. Maxima over eight columns each, and over eight of those, tell
which cells hold anything at all; only those are looked into, and what survives waits until a merge pays. After
N positions a batch of T leaves about t T / N survivors a key, so the merging vanishes and one read remains.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.errors import NotFinite
from unembed.sweeps.reducers.batch_columns import Columns
from unembed.sweeps.reducers.block_maxima import entries, maxima, members, under
from unembed.sweeps.reducers.tie_order import EMPTY, limited, nth_largest, ordered

CELLS = 1 << 15
"""Cells looked into at once."""
WAITING_SHARE = 0.07
"""Survivors wait, 16 bytes each, up to this share of the slots, 12 bytes each: less than a tenth of the lists."""


class TopLists:
    """For every key the largest positive values seen, best first, equal values by earlier position.

    Args:
        keys: how many lists.
        top: slots of a list.
        dtype: float32, or float64 for a float64 model.
        device: where the activations appear.
        per_group: at most so many of a list from one group; None for no limit. Exact too: the best t under such a limit
            are the best t of any parts' best t (a truncated partition matroid).
    """

    def __init__(
        self, keys: int, top: int, dtype: torch.dtype, device: torch.device, per_group: int | None = None
    ) -> None:
        """Empty lists."""
        self.top, self.per_group = top, per_group
        self.values = torch.full((keys, top), -torch.inf, dtype=dtype, device=device)
        self.positions = torch.full((keys, top), EMPTY, device=device)
        self.groups = torch.full((keys, top), -1, device=device) if per_group else None
        self._waiting: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []
        self._n_waiting = 0
        self._offered = 0
        self._filling = True
        self._last: tuple[Tensor, Tensor, Tensor, int] | None = None
        self._least = torch.nextafter(torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)).item()

    def offer(self, x: Float[Tensor, "column key"], sign: int, columns: Columns) -> None:
        """Take what belongs into the lists out of `sign * x`.

        Raises:
            NotFinite: an activation is NaN or infinite.
        """
        fine = maxima(x, sign)
        coarse = maxima(fine, 1)
        if not bool(torch.isfinite(coarse.sum())) and not bool(torch.isfinite(coarse).all()):
            raise NotFinite(
                "coefficients", why="they hold NaN or infinity", instead="Check the weights, or load in float32"
            )
        threshold = self._threshold(columns.first)
        in_group = None
        if self._filling and columns.within is not None:
            in_group = self._bounds_in_groups(x, sign, columns)
        elif self._filling:
            threshold = torch.maximum(threshold, self._bound(x, sign, columns))
        row, key = (coarse >= threshold).nonzero(as_tuple=True)
        for at in range(0, len(key), CELLS):
            cells = under(row[at : at + CELLS], key[at : at + CELLS], fine, threshold, 1)
            self._look(x, sign, columns, cells, threshold, in_group)
        self._offered += columns.n
        if self._filling or self._n_waiting > WAITING_SHARE * self.values.numel():
            self.settle()

    def _threshold(self, first: int) -> Float[Tensor, " key"]:
        """The least value that may enter: the t-th, or just above it where no earlier place can come any more."""
        if self._last is None:
            last = self.values[:, -1].clamp_min(self._least)
            above = torch.nextafter(last, torch.full_like(last, torch.inf))
            above = torch.where(self.positions[:, -1] == EMPTY, last, above)
            places = self.positions[:, -1].masked_fill(self.positions[:, -1] == EMPTY, -1)
            self._last = last, above, places, int(places.max())
        last, above, places, latest = self._last
        return above if latest < first else torch.where(places < first, above, last)

    def _bound(self, x: Tensor, sign: int, columns: Columns) -> Float[Tensor, " key"]:
        """While lists are not full: the value that t allowed columns of this batch reach."""
        allowed = x[columns.allowed]
        if len(allowed) < self.top:
            return self.values.new_full((x.shape[1],), -torch.inf)
        return nth_largest(allowed, self.top, sign).to(self.values.dtype)

    def _bounds_in_groups(self, x: Tensor, sign: int, columns: Columns) -> Float[Tensor, "column key"]:
        """While lists are not full: what a column must reach to be among the best of its own group, seen so far."""
        assert columns.within is not None and self.groups is not None and self.per_group is not None
        bounds = x.new_full(x.shape, -torch.inf, dtype=self.values.dtype)
        for group, places in columns.within:
            held = self.values.masked_fill(self.groups != group, -torch.inf)
            bound = held.topk(min(self.per_group, self.top), dim=1).values[:, -1]
            if len(places) >= self.per_group:
                bound = torch.maximum(bound, nth_largest(x[places], self.per_group, sign).to(bound))
            bounds[places] = bound
        return bounds

    def _look(
        self,
        x: Tensor,
        sign: int,
        columns: Columns,
        cells: tuple[Tensor, Tensor],
        threshold: Tensor,
        in_group: Tensor | None,
    ) -> None:
        """Look into cells (row of the finer maxima, key) and let wait what survives."""
        row, key = cells
        column, inside = members(row, len(x))
        values = entries(x, column, key) * sign
        enters = (values >= threshold[key][:, None]) & inside & columns.allowed[column]
        if in_group is not None:
            enters &= values >= in_group[column, key[:, None]]
        cell, place = enters.nonzero(as_tuple=True)
        column = column[cell, place]
        groups = None if columns.groups is None or self.groups is None else columns.groups[column]
        self.add(key[cell], values[cell, place], columns.positions[column], groups)

    def add(
        self,
        keys: Int[Tensor, " n"],
        values: Float[Tensor, " n"],
        positions: Int[Tensor, " n"],
        groups: Int[Tensor, " n"] | None,
    ) -> None:
        """Let values wait for the next merge."""
        self._waiting.append((keys.to(torch.int32), values.to(self.values.dtype), positions, groups))
        self._n_waiting += len(keys)

    def join(self, other: TopLists) -> None:
        """Take in all that another holds."""
        other.settle()
        key, slot = (other.positions != EMPTY).nonzero(as_tuple=True)
        if len(key):
            groups = None if other.groups is None else other.groups[key, slot]
            self.add(key, other.values[key, slot], other.positions[key, slot], groups)
        self._offered += other._offered
        self.settle()

    def emptied(self) -> TopLists:
        """Lists of the same sizes that hold nothing."""
        return TopLists(len(self.values), self.top, self.values.dtype, self.values.device, self.per_group)

    def waiting_bytes(self) -> int:
        """Memory of what waits for the next merge."""
        return sum(t.numel() * t.element_size() for waiting in self._waiting for t in waiting if t is not None)

    def state(self) -> dict[str, Tensor]:
        """All that is held, merged."""
        self.settle()
        held = {"values": self.values, "positions": self.positions, "offered": torch.tensor(self._offered)}
        return held if self.groups is None else held | {"groups": self.groups}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave."""
        self.values = state["values"].to(self.values).clone()
        self.positions = state["positions"].to(self.positions).clone()
        if self.groups is not None:
            self.groups = state["groups"].to(self.groups).clone()
        self._waiting, self._n_waiting, self._offered = [], 0, int(state["offered"])
        self._last = None
        self._set_filling()

    def _set_filling(self) -> None:
        """Lists fill for a while.

        Keys that fire so rarely that theirs stay open do no harm, unless groups limit them.
        """
        self._filling = bool((self.values[:, -1] == -torch.inf).float().mean() > 0.05) and (
            self._offered < 64 * self.top or self.per_group is not None
        )

    def settle(self) -> None:
        """Merge all that waits."""
        if self._n_waiting:
            keys = torch.cat([w[0] for w in self._waiting]).long()
            values = torch.cat([w[1] for w in self._waiting])
            positions = torch.cat([w[2] for w in self._waiting])
            groups = None if self.groups is None else torch.cat([w[3] for w in self._waiting if w[3] is not None])
            self._merge(keys, values, positions, groups)
            self._last = None
        self._waiting, self._n_waiting = [], 0
        if self._filling:
            self._set_filling()

    def _merge(self, keys: Tensor, values: Tensor, positions: Tensor, groups: Tensor | None) -> None:
        """Rows of the keys that got something, widened, sorted and cut again."""
        touched, row, counts = torch.unique(keys, return_inverse=True, return_counts=True)
        order = row.argsort(stable=True)
        row, values, positions = row[order], values[order], positions[order]
        starts = counts.cumsum(0) - counts
        column = torch.arange(len(row), device=row.device) - starts[row] + self.top
        width = self.top + int(counts.max())
        v = self.values.new_full((len(touched), width), -torch.inf)
        p = self.positions.new_full((len(touched), width), EMPTY)
        v[:, : self.top] = self.values.index_select(0, touched)
        p[:, : self.top] = self.positions.index_select(0, touched)
        v[row, column], p[row, column] = values, positions
        g = None
        if self.groups is not None and groups is not None:
            g = self.groups.new_full((len(touched), width), -1)
            g[:, : self.top] = self.groups[touched]
            g[row, column] = groups[order]
        v, p, g = ordered(v, p, g)
        if g is not None and self.per_group is not None:
            v, p, g = limited(v, p, g, self.per_group)
            assert g is not None and self.groups is not None
            self.groups[touched] = g[:, : self.top]
        self.values[touched], self.positions[touched] = v[:, : self.top], p[:, : self.top]
