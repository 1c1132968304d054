"""Find the t largest values of every key in a stream of activations, exactly, at little more than the cost of reading.

A key is one channel of the activations, such as a memory (FFN neuron), and a column is one token position. To enter a
key's list, a value must exceed the t-th value in it. Maxima over blocks of eight columns, and over eight such blocks,
show which blocks can contain such a value. Only these blocks are searched. The values found are collected as candidates
in a buffer, which is merged into the lists when it is full enough. After N positions, a batch of T positions has about
t T / N candidates for each key, so merging becomes negligible and only reading remains. A list is sorted when it is
read.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.errors import NotFinite
from unembed.sweeps.reducers.batch_columns import BatchColumns
from unembed.sweeps.reducers.block_maxima import entries, maxima, members, rows_above
from unembed.sweeps.reducers.tie_order import (
    EMPTY,
    at_least,
    best_of_rows,
    flat_nonzero,
    limit_per_group,
    nth_largest,
    sort_rows,
    sort_stable,
)

CELLS = 1 << 15
"""Number of cells that are searched at once. A cell is eight blocks of one key; it is searched if its maximum reaches
the key's threshold.
"""
KEYS = 1 << 12
"""Number of keys whose lists are merged at once."""
BUFFER_SHARE = 0.07
"""Size of the buffer in candidates (16 bytes each), as a share of the number of list entries (12 bytes each)."""
SMALL_BUFFER = 1 << 17
"""Smallest size of the buffer in candidates (2 MB); half the number of list entries, if that is less."""


class TopLists:
    """The largest positive values of every key so far, largest first; of equal values, the earlier position is first.

    Args:
        keys: the number of lists.
        top: the number of values in a list.
        dtype: the dtype of the values: float32, or float64 for a float64 model.
        device: the device of the activations.
        per_group: the largest number of values of one group in a list; None for no limit. The result is exact with a
            limit too: the best t can be computed from the best t of each part of the data (the allowed lists form a
            truncated partition matroid).
    """

    def __init__(
        self, keys: int, top: int, dtype: torch.dtype, device: torch.device, per_group: int | None = None
    ) -> None:
        self.top, self.per_group = top, per_group
        self.values = torch.full((keys, top), -torch.inf, dtype=dtype, device=device)
        self.positions = torch.full((keys, top), EMPTY, device=device)
        self.groups = torch.full((keys, top), -1, device=device) if per_group else None
        self._buffer: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []
        self._n_buffered = 0
        self._buffer_size = max(BUFFER_SHARE * keys * top, min(keys * top / 2, SMALL_BUFFER))
        self._offered = 0
        self._filling = True
        self._last: tuple[Tensor, Tensor] | None = None
        self._latest_of_last: Tensor | None = None
        self._latest = -1
        self._least = torch.nextafter(torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)).item()

    def offer(self, x: Float[Tensor, "column key"], sign: int, columns: BatchColumns) -> None:
        """Add the entries of `sign * x` that are large enough to the lists.

        Raises:
            NotFinite: an activation is NaN or infinite.
        """
        fine = maxima(x, sign)
        coarse = maxima(fine, 1)
        require_finite(coarse)
        threshold = self._threshold(columns.first)
        group_bounds = None
        if self._filling and columns.within is not None:
            group_bounds = self._bounds_in_groups(x, sign, columns)
        elif self._filling:
            threshold = torch.maximum(threshold, self._bound(x, sign, columns))
        row, key = (coarse >= threshold).nonzero(as_tuple=True)
        for at in range(0, len(key), CELLS):
            cells = rows_above(row[at : at + CELLS], key[at : at + CELLS], fine, threshold, 1)
            self._scan(x, sign, columns, cells, threshold, group_bounds)
        self.offered(columns.n)

    def offer_rows(
        self,
        x: Float[Tensor, "row key"],
        first_key: Int[Tensor, " row"],
        sign: int,
        column: Int[Tensor, " row"],
        columns: BatchColumns,
    ) -> None:
        """Add entries of `sign * x` to the lists, where each row has the values of neighbouring keys.

        Check `x` with `require_finite` first, and call `offered` after all rows of the batch.

        Args:
            first_key: the number of the first key of each row; rows with the same keys must be adjacent.
            sign: 1 for the largest values, or -1 for the smallest.
            column: the column of the batch that each row belongs to.
        """
        if len(x) == 0:
            return
        starts, counts = first_key.unique_consecutive(return_counts=True)
        threshold = self._threshold(columns.first)
        width = x.shape[1]
        enters = []
        for first, own in zip(starts.tolist(), x.split(counts.tolist()), strict=True):
            bound = threshold[first : first + width]
            if self._filling and self.groups is None and len(own) >= self.top:
                bound = torch.maximum(bound, nth_largest(own, self.top, sign).to(bound))
            enters.append(at_least(own, bound, sign))
        at = flat_nonzero(torch.cat(enters))
        row = at // width
        found = x.reshape(-1).index_select(0, at)
        keys = at + (first_key - torch.arange(0, x.numel(), width, device=x.device)).index_select(0, row)
        positions = columns.positions.index_select(0, column).index_select(0, row)
        groups = None if columns.groups is None or self.groups is None else columns.groups[column[row]]
        self.add(keys, found if sign > 0 else found.neg_(), positions, groups)

    def offered(self, n: int) -> None:
        """Count the positions of a batch, and merge the buffer into the lists if it is large enough."""
        self._offered += n
        if self._filling or self._n_buffered > self._buffer_size:
            self.flush()

    def _threshold(self, first: int) -> Float[Tensor, " key"]:
        """Return, for each key, the smallest value that may enter its list.

        Of equal values, the one at the earlier position wins. So if a new value may be at an earlier position than the
        t-th value of the list, it may enter if it equals that value. Otherwise it must be at least the next larger
        floating-point number.
        """
        if self._last is None:
            smallest = self.values.amin(dim=1)
            is_open = smallest == -torch.inf
            last = smallest.clamp_min(self._least)
            above = torch.where(is_open, last, torch.nextafter(last, torch.full_like(last, torch.inf)))
            self._last, self._latest_of_last = (last, above), None
        last, above = self._last
        if self._latest < first:
            return above
        if self._latest_of_last is None:
            self._latest_of_last = self.positions.masked_fill(self.values > last[:, None], -1).amax(dim=1)
        return torch.where(self._latest_of_last < first, above, last)

    def _bound(self, x: Tensor, sign: int, columns: BatchColumns) -> Float[Tensor, " key"]:
        """Return, for each key, a value that at least t columns of this batch reach; -inf if the batch is too short.

        Values below it cannot enter the list of t values, because the batch has t larger ones. It is
        used while lists are not full, because these alone would exclude no positive value.
        """
        allowed = x[columns.allowed]
        if len(allowed) < self.top:
            return self.values.new_full((x.shape[1],), -torch.inf)
        return nth_largest(allowed, self.top, sign).to(self.values.dtype)

    def _bounds_in_groups(self, x: Tensor, sign: int, columns: BatchColumns) -> Float[Tensor, "column key"]:
        """Return the value that each entry of `x` must reach to be among the `per_group` best of its group and key.

        This is used while lists are not full.
        """
        assert columns.within is not None and self.groups is not None and self.per_group is not None
        bounds = x.new_full(x.shape, -torch.inf, dtype=self.values.dtype)
        for group, members_of_group in columns.within:
            of_group = self.values.masked_fill(self.groups != group, -torch.inf)
            bound = of_group.topk(min(self.per_group, self.top), dim=1).values[:, -1]
            if len(members_of_group) >= self.per_group:
                bound = torch.maximum(bound, nth_largest(x[members_of_group], self.per_group, sign).to(bound))
            bounds[members_of_group] = bound
        return bounds

    def _scan(
        self,
        x: Tensor,
        sign: int,
        columns: BatchColumns,
        cells: tuple[Tensor, Tensor],
        threshold: Tensor,
        group_bounds: Tensor | None,
    ) -> None:
        """Search blocks of eight columns for values that may enter the lists, and put these into the buffer.

        `cells` has, for each block, its row in the maxima over blocks of eight columns, and its key.
        """
        row, key = cells
        column, inside = members(row, len(x))
        values = entries(x, column, key) * sign
        enters = (values >= threshold[key][:, None]) & inside & columns.allowed[column]
        if group_bounds is not None:
            enters &= values >= group_bounds[column, key[:, None]]
        cell, entry = enters.nonzero(as_tuple=True)
        column = column[cell, entry]
        groups = None if columns.groups is None or self.groups is None else columns.groups[column]
        self.add(key[cell], values[cell, entry], columns.positions[column], groups)

    def add(
        self,
        keys: Int[Tensor, " n"],
        values: Float[Tensor, " n"],
        positions: Int[Tensor, " n"],
        groups: Int[Tensor, " n"] | None,
    ) -> None:
        """Put values into the buffer for the next merge."""
        self._buffer.append((keys.to(torch.int32), values.to(self.values.dtype), positions, groups))
        self._n_buffered += len(keys)

    def merge(self, other: TopLists) -> None:
        """Add all values of other lists for the same keys."""
        other.flush()
        key, slot = (other.positions != EMPTY).nonzero(as_tuple=True)
        if len(key):
            groups = None if other.groups is None else other.groups[key, slot]
            self.add(key, other.values[key, slot], other.positions[key, slot], groups)
        self._offered += other._offered
        self.flush()

    def empty_copy(self) -> TopLists:
        """Return empty lists of the same sizes."""
        return TopLists(len(self.values), self.top, self.values.dtype, self.values.device, self.per_group)

    def result(self) -> tuple[Float[Tensor, "key t"], Int[Tensor, "key t"]]:
        """Return copies of values and positions on the CPU; unused entries have value -inf and position -1."""
        self._order()
        return self.values.to("cpu", copy=True), torch.where(self.positions == EMPTY, -1, self.positions).cpu()

    def state(self) -> dict[str, Tensor]:
        """Return the state as tensors, after the buffer is merged."""
        self._order()
        state = {"values": self.values, "positions": self.positions, "offered": torch.tensor(self._offered)}
        return state if self.groups is None else state | {"groups": self.groups}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state that `state` returned."""
        self.values = state["values"].to(self.values).clone()
        self.positions = state["positions"].to(self.positions).clone()
        if self.groups is not None:
            self.groups = state["groups"].to(self.groups).clone()
        self._buffer, self._n_buffered, self._offered = [], 0, int(state["offered"])
        self._last = None
        self._latest = int(self.positions.masked_fill(self.positions == EMPTY, -1).max())
        self._set_filling()

    def _order(self) -> None:
        """Merge the buffer, and sort every list."""
        self.flush()
        self.values, self.positions, self.groups = sort_rows(self.values, self.positions, self.groups)

    def _set_filling(self) -> None:
        """Record whether many lists are not full yet.

        Some keys are rarely positive, so their lists may never become full. So after 64 t positions the answer is
        always no, unless there is a limit per group.
        """
        self._filling = bool((self.values.amin(dim=1) == -torch.inf).float().mean() > 0.05) and (
            self._offered < 64 * self.top or self.per_group is not None
        )

    def flush(self) -> None:
        """Merge the buffer into the lists."""
        if self._n_buffered:
            keys = torch.cat([w[0] for w in self._buffer])
            values = torch.cat([w[1] for w in self._buffer])
            positions = torch.cat([w[2] for w in self._buffer])
            groups = None if self.groups is None else torch.cat([w[3] for w in self._buffer if w[3] is not None])
            self._merge(keys, values, positions, groups)
            self._last = None
        self._buffer, self._n_buffered = [], 0
        if self._filling:
            self._set_filling()

    def _merge(self, keys: Tensor, values: Tensor, positions: Tensor, groups: Tensor | None) -> None:
        """Merge candidates into the lists of their keys, a few thousand keys at a time."""
        are_empty, self._latest = self._latest < 0, max(self._latest, int(positions.max()))
        keys, order = sort_stable(keys)
        touched, counts = keys.unique_consecutive(return_counts=True)
        # Each chunk of keys is merged in one table with a row for each key, padded to the longest row. Sorting the keys
        # by their number of candidates puts rows of similar length into the same table, which keeps padding short.
        counts, by_count = sort_stable(counts)
        touched, starts = touched.index_select(0, by_count), _starts(counts, by_count)
        for some, of_each, start in zip(touched.split(KEYS), counts.split(KEYS), starts.split(KEYS), strict=True):
            row = torch.repeat_interleave(of_each)
            column = torch.arange(len(row), device=row.device) - (of_each.cumsum(0) - of_each).index_select(0, row)
            part = order.index_select(0, start.index_select(0, row) + column)
            own = None if groups is None else groups[part]
            if are_empty and own is None and int(of_each[-1]) <= self.top:
                at = some.index_select(0, row) * self.top + column
                self.values.view(-1)[at], self.positions.view(-1)[at] = values[part], positions[part]
            else:
                self._merge_keys(some, (row, column + self.top), values[part], positions[part], own)

    def _merge_keys(
        self, touched: Tensor, at: tuple[Tensor, Tensor], values: Tensor, positions: Tensor, groups: Tensor | None
    ) -> None:
        """Merge candidates into the lists of the keys `touched`, and cut each list to its length.

        `at` has, for each candidate, the row (an index into `touched`) and the column at which it is put into a table
        whose first columns are the lists.
        """
        row, column = at
        width = int(column.max()) + 1
        v = self.values.new_full((len(touched), width), -torch.inf)
        p = self.positions.new_full((len(touched), width), EMPTY)
        v[:, : self.top] = self.values.index_select(0, touched)
        p[:, : self.top] = self.positions.index_select(0, touched)
        v[row, column], p[row, column] = values, positions
        if self.groups is None or groups is None or self.per_group is None:
            self.values[touched], self.positions[touched] = best_of_rows(v, p, self.top)
            return
        g = self.groups.new_full((len(touched), width), -1)
        g[:, : self.top] = self.groups[touched]
        g[row, column] = groups
        v, p, g = sort_rows(v, p, g)
        assert g is not None
        v, p, g = limit_per_group(v, p, g, self.per_group)
        self.groups[touched] = g[:, : self.top]
        self.values[touched], self.positions[touched] = v[:, : self.top], p[:, : self.top]


def _starts(counts: Tensor, order: Tensor) -> Tensor:
    """Return the index at which each run begins, in a sequence of runs without gaps.

    Run i has `counts[i]` elements, and `order[i]` runs come before it.
    """
    lengths = torch.empty_like(counts).scatter_(0, order, counts)
    return (lengths.cumsum(0) - lengths).index_select(0, order)


def require_finite(x: Tensor) -> None:
    """Refuse activations, or maxima of their blocks, that contain NaN or infinity.

    Raises:
        NotFinite: there is a NaN or an infinity.
    """
    if not bool(torch.isfinite(x.sum())) and not bool(torch.isfinite(x).all()):
        raise NotFinite(
            "coefficients", why="they hold NaN or infinity", instead="Check the weights, or load in float32"
        )
