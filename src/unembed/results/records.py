"""A sequence of results of one type, which is displayed as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar, overload

from unembed.results.display import Displayed
from unembed.results.provenance import Provenance
from unembed.results.table import Table

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, eq=False, repr=False)
class Records(Displayed, Sequence[T], Generic[T]):
    """A sequence of results of one type, such as the traces of several prompts.

    Indexing and iteration give single results. Printing, saving and notebooks show a table with a row for each. A
    `Records` equals any sequence of equal results.
    """

    items: tuple[T, ...]
    table: Table
    """A table with one row for each result, in the same order."""

    @classmethod
    def of(
        cls, title: str, items: Sequence[T], columns: Mapping[str, Sequence[Any]], provenance: Provenance
    ) -> "Records[T]":
        """Make a `Records` from results and the columns of its table, which have one value for each result."""
        return cls(tuple(items), Table(title, {name: list(values) for name, values in columns.items()}, provenance))

    @classmethod
    def of_fields(cls, title: str, kind: type[Any], items: Sequence[T], provenance: Provenance) -> "Records[T]":
        """Make a `Records` from instances of the dataclass `kind`; its table has a column for each field."""
        columns = {f.name: [getattr(item, f.name) for item in items] for f in fields(kind)}  # type: ignore[arg-type]
        return cls.of(title, items, columns, provenance)

    def to_table(self) -> Table:
        """Return the table, with one row for each result."""
        return self.table

    @property
    def provenance(self) -> Provenance:
        """The provenance of the results."""
        return self.table.provenance

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, key: int) -> T: ...
    @overload
    def __getitem__(self, key: slice) -> "Records[T]": ...
    def __getitem__(self, key: int | slice) -> Any:
        return Records(self.items[key], self.table[key]) if isinstance(key, slice) else self.items[key]

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return self.items == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # results may hold lists
