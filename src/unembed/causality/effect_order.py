"""Make tables of effects, with one row for each effect, largest first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from unembed.results import Provenance, Table


def ranked(
    title: str, columns: Mapping[str, Sequence[Any] | Tensor | None], by: Float[Tensor, "..."], provenance: Provenance
) -> Table:
    """Return a table whose rows are sorted by the absolute value of `by`, largest first, without rows where it is NaN.

    Args:
        columns: the columns of the table, each in the order of `by` with its axes flattened. A column that is None is
            left out; a NaN becomes an empty cell.
    """
    sizes = by.flatten()
    order = [i for i in sizes.nan_to_num(0).abs().argsort(descending=True).tolist() if bool(sizes[i].isfinite())]
    found: dict[str, list[Any]] = {}
    for name, values in columns.items():
        if values is not None:
            column = values.flatten().tolist() if isinstance(values, Tensor) else values
            found[name] = [None if isinstance(v := column[i], float) and math.isnan(v) else v for i in order]
    return Table(title, found, provenance)
