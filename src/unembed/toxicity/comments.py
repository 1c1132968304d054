"""Read labelled comments from a CSV of comment and label (1 = toxic, 0 = not), without a header."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from unembed.errors import InvalidInput, reading_fault

Labelled = tuple[list[str], list[int]]


def read_comments(path: str | Path) -> Labelled:
    """Return the distinct comments of a CSV file and their labels.

    Raises:
        InvalidInput: the file cannot be read, or a row is not a comment and a label 0 or 1.
    """
    try:
        rows = list(csv.reader(io.StringIO(Path(path).read_text(encoding="utf-8"))))
    except (OSError, ValueError, csv.Error) as error:
        raise InvalidInput(
            f"cannot read {path}", why=reading_fault(error), instead="Give a CSV file of comments and labels"
        ) from error
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or row[1] not in ("0", "1"):
            raise InvalidInput(
                f"{path} row {number}", why="a row must have a comment and a label, 0 or 1", instead="Correct the row"
            )
    labels = {row[0]: int(row[1]) for row in rows}
    return list(labels), list(labels.values())
