"""Flatten a batch into columns, one for each token position, for a search for the largest activations."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.corpus.segments import Batch


class BatchColumns:
    """The token positions of a batch as columns, prepared once for all layers.

    A column has a position in the corpus, and is marked if it may enter a list of largest activations.

    Args:
        counted: marks the positions that may enter a list of largest activations.
        device: the device of the activations.
        per_document: whether to group columns by document.
        distinct: whether to group columns by prefix; of equal prefixes in the batch only the earliest counts.
        copies: whether to copy the activations of counted positions first, instead of filtering afterwards. A copy is
            faster if many positions are not counted, or if activations at uncounted positions are often large.
    """

    def __init__(
        self,
        batch: Batch,
        counted: Bool[Tensor, "batch pos"],
        device: torch.device,
        *,
        per_document: bool = False,
        distinct: bool = False,
        copies: bool = False,
    ) -> None:
        self.batch, self.device = batch, device
        groups = None
        if distinct:
            groups = prefix_hashes(batch.tokens)
            counted = counted & _earliest(groups, batch.positions, counted)
        elif per_document:
            groups = batch.documents[:, None].expand(*batch.shape)
        self.n = int(counted.sum())
        if self.n == 0:
            return
        copies = copies or self.n < 0.75 * counted.numel()
        self._selected = counted.to(device) if copies else None

        def as_columns(t: Tensor) -> Tensor:
            return (t[counted] if copies else t.flatten()).to(device)

        self.positions: Int[Tensor, " column"] = as_columns(batch.positions)
        self.allowed: Bool[Tensor, " column"] = as_columns(counted)
        self.groups: Int[Tensor, " column"] | None = None if groups is None else as_columns(groups)
        self.first = int(batch.positions[counted].min())
        """The smallest position of a column that may enter a list."""
        self.within: list[tuple[int, Int[Tensor, " some"]]] | None = None
        """With `per_document`: for each document, its number and the columns that may enter a list."""
        if per_document and self.groups is not None:
            documents = batch.documents.unique().tolist()
            by_document = [(d, (self.allowed & (self.groups == d)).nonzero()[:, 0]) for d in documents]
            self.within = [(d, columns) for d, columns in by_document if len(columns)]

    def at(self, position: Int[Tensor, " some"]) -> tuple[Int[Tensor, " chosen"], Int[Tensor, " chosen"] | None]:
        """Return the columns of those positions that may enter a list, and their indices in `position`.

        The second value is None if all positions may enter.
        """
        if self._selected is None:
            column = position
        else:
            chosen = self._selected.flatten()
            rows = chosen[position].nonzero()[:, 0]
            column = (chosen.cumsum(0) - 1)[position[rows]]
            allowed = self.allowed[column].nonzero()[:, 0]
            return column[allowed], rows[allowed]
        rows = self.allowed[column].nonzero()[:, 0]
        return (column, None) if len(rows) == len(column) else (column[rows], rows)

    def of(self, tensor: Float[Tensor, "batch pos key"]) -> Float[Tensor, "column key"]:
        """Return the activations with one row for each column; a view if no copy is needed."""
        return tensor.reshape(-1, tensor.shape[-1]) if self._selected is None else tensor[self._selected]


def prefix_hashes(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """Return a 64-bit hash of every prefix of every row.

    Two different prefixes have the same hash with a probability of about 2^-63. The hash is a sum of mixed token ids
    times powers of an odd number, modulo 2^64.
    """
    mixed = (tokens + 1) * -7046029254386353131
    mixed = (mixed ^ ((mixed >> 29) & 0x7FFFFFFFF)) * -4658895280553007687
    mixed = mixed ^ ((mixed >> 32) & 0xFFFFFFFF)
    powers = torch.full((tokens.shape[1],), 6364136223846793005).cumprod(0)
    return (mixed * powers).cumsum(dim=1)


def _earliest(groups: Tensor, positions: Tensor, counted: Tensor) -> Bool[Tensor, "batch pos"]:
    """Mark the counted column with the smallest position in each group."""
    _, group = torch.unique(groups, return_inverse=True)
    candidates = torch.where(counted, positions, torch.iinfo(torch.int64).max)
    earliest = torch.full((int(group.max()) + 1,), torch.iinfo(torch.int64).max)
    earliest.scatter_reduce_(0, group.flatten(), candidates.flatten(), "amin")
    return candidates == earliest[group]
