"""Read data sets from the Hugging Face hub, row by row, through the `datasets` library."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from unembed.errors import CorpusUnreadable, ExtraMissing

PREFIX = "datasets:"
_FINGERPRINT_ROWS = 64


@dataclass(frozen=True)
class HubData:
    """One split of a data set, which `datasets:NAME[:CONFIG][:SPLIT]` names.

    Attributes:
        name: the name of the data set on the hub, or a folder that `datasets` can load.
        config: the name of its configuration; None for the default.
        split: the name of the split, such as "train".
        column: the name of the column that contains the text.
    """

    name: str
    config: str | None
    split: str
    column: str

    @classmethod
    def parse(cls, source: str, column: str) -> HubData:
        """Parse a string such as "datasets:NAME:CONFIG:SPLIT"; the default split is "train".

        Raises:
            CorpusUnreadable: the string has no name, or too many colons.
        """
        name, *rest = source.removeprefix(PREFIX).split(":")
        if not name or len(rest) > 2:
            raise CorpusUnreadable(
                f"corpus {source!r}", why="it is not the name of a data set", instead=f"Write {PREFIX}NAME:CONFIG:SPLIT"
            )
        config = rest[0] if len(rest) == 2 else None
        return cls(name, config or None, (rest[-1] if rest else "") or "train", column)

    @cached_property
    def _rows(self) -> Any:
        try:
            import datasets  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ExtraMissing(
                f"data set {self.name}", why="datasets is not installed", instead="pip install 'unembed[data]'"
            ) from error
        try:
            return datasets.load_dataset(self.name, self.config, split=self.split, streaming=True)
        except Exception as error:  # `datasets` raises errors of many other libraries
            why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
            raise CorpusUnreadable(
                f"data set {self.name}", why=why, instead="Check its name, configuration and split, and the network"
            ) from error

    @property
    def _n_rows(self) -> int | None:
        splits = getattr(getattr(self._rows, "info", None), "splits", None)
        return splits[self.split].num_examples if splits and self.split in splits else None

    def documents(self) -> Iterator[tuple[str, str, float]]:
        """Yield name, text and the share of the split read so far; the share is 0 if the number of rows is unknown.

        Raises:
            CorpusUnreadable: there is no such data set or column.
            ExtraMissing: `datasets` is not installed.
        """
        n = self._n_rows
        for number, row in enumerate(self._rows):
            text = row.get(self.column)
            if not isinstance(text, str):
                raise CorpusUnreadable(
                    f"data set {self.name}, row {number}",
                    why=f"it has no text under {self.column!r}, only {', '.join(row)}",
                    instead="Name the column with column= (index build --column)",
                )
            yield f"{self.name}:{number}", text, (number + 1) / n if n else 0.0

    def fingerprint(self) -> bytes:
        """Return a SHA-256 hash of the data set's name, configuration, split, column, row count and first 64 texts."""
        digest = hashlib.sha256(repr((self.name, self.config, self.split, self.column, self._n_rows)).encode())
        for _, text, _ in islice(self.documents(), _FINGERPRINT_ROWS):
            digest.update(text.encode(errors="surrogatepass") + b"\0")
        return digest.digest()
