"""Make the tables and figures of reports from columns of numbers, such as columns with intervals, or by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unembed.document.intervals import Measured, columns, mean_of
from unembed.document.model import QUANTILES, Exhibit, Figure
from unembed.results import Provenance, Table


def exhibit(
    name: str, title: str, cells: Mapping[str, Sequence[Any]], provenance: Provenance, note: str = "", **shown: Any
) -> Exhibit:
    """Make an `Exhibit` from columns of cells.

    Args:
        cells: the columns by name. A column of `Measured` becomes columns of values, interval ends and sample sizes.
        shown: further attributes of `Exhibit`.
    """
    flat: dict[str, list[Any]] = {}
    for column, values in cells.items():
        flat |= columns(column, values) if len(values) and isinstance(values[0], Measured) else {column: list(values)}
    return Exhibit(name, Table(title, flat, provenance), note, **shown)


def drawing(
    kind: str, name: str, title: str, x: str, y: str | Mapping[str, str] | Sequence[str], table: str = "", **more: Any
) -> Figure:
    """Make a `Figure` whose axes are labelled with the names of their columns, unless `more` has labels.

    Args:
        y: the columns to draw; a mapping gives each column's name in the legend.
        table: the name of the table; the name of the figure when empty.
        more: further attributes of `Figure`.
    """
    series = (y,) if isinstance(y, str) else tuple(y)
    labels = tuple(y.values()) if isinstance(y, Mapping) else ()
    if kind != "text":
        axes = {"x_label": x, "y_label": more.get("rows", series[0])}
        more = {axis: column.replace("_", " ") for axis, column in axes.items()} | more
    return Figure(name, title, kind, table or name, x, series, labels, **more)


def by_layer(
    name: str,
    title: str,
    table: str,
    series: Mapping[str, str] | Sequence[str],
    y_label: str,
    kind: str = "line",
    *,
    percent: bool = True,
    **more: Any,
) -> Figure:
    """Make a `Figure` with the layer as x axis.

    Args:
        series: the columns to draw, as the argument `y` of `drawing`.
        percent: True if the y values are shares, to be shown in percent.
        more: further attributes of `Figure`.
    """
    return drawing(kind, name, title, "layer", series, table, y_label=y_label, percent=percent, **more)


def boxes(stem: str, rows: Sequence[np.ndarray] | np.ndarray) -> dict[str, list[float]]:
    """Return the columns of quantiles that a box plot needs, one row for each array; NaN values are ignored."""
    finite = [row[~np.isnan(row.astype(float))] for row in rows]
    return {
        f"{stem}_{name}": [float(np.quantile(row, int(name[1:]) / 100)) if len(row) else float("nan") for row in finite]
        for name in QUANTILES
    }


def plain_mean(values: np.ndarray) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def plain_median(values: np.ndarray) -> float:
    """Return the median of the values that are not NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def means(rows: Sequence[np.ndarray] | np.ndarray, seed: int, *, share: bool = True) -> list[Measured]:
    """Return the mean of each array with its confidence interval; the argument `share` is that of `mean_of`."""
    return [mean_of(np.asarray(row, dtype=np.float64), seed=seed, share=share) for row in rows]
