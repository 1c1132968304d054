"""Choose how a result is drawn from its table: as bars, or as squares for each layer and position or head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from unembed.names import head_named
from unembed.results import Displayed, Table, format_number, numbers

if TYPE_CHECKING:
    from unembed.causality import Ablation
    from unembed.trace import Readings

MAX_BARS = 40
_LISTED = 5
"""Number of tokens to list for a cell."""
_IDENTITY = ("layer", "index")
"""Columns of the table whose values a widget's `selection` contains, in addition to the label of the selected bar."""


@dataclass(frozen=True)
class Bars:
    """A bar for each of the first rows of a table that have a value.

    Attributes:
        label: the column with the bar's name; for several columns, the name is their values joined by " to ".
        value: the column with the bar's length.
        more: columns whose values are shown in the bar's tooltip.
    """

    label: str | tuple[str, ...]
    value: str
    more: tuple[str, ...] = ()

    def draw(self, table: Table) -> dict[str, Any]:
        """Return the data of the drawing."""
        known = [i for i, value in enumerate(table[self.value]) if value is not None]
        shown = (
            table[: known[:MAX_BARS][-1] + 1] if known else table
        )  # a table with a row for each memory has tens of thousands of rows
        labels = (self.label,) if isinstance(self.label, str) else self.label
        rows = [
            {
                "label": " to ".join(str(row[name]) for name in labels),
                "value": row[self.value],
                "title": ", ".join(_named(name, row[name]) for name in self.more if row[name] not in (None, "")),
                **{name: row[name] for name in _IDENTITY if name in row},
            }
            for row in shown
            if row[self.value] is not None
        ]
        more = f"; {len(known) - len(rows):,} more in the table" if len(known) > len(rows) else ""
        return {"schema": "unembed.bars/1", "rows": rows, "note": _note(table, self.value) + more}


@dataclass(frozen=True)
class Squares:
    """A square for each layer and position, or layer and head. If a square has several rows, the first is drawn.

    Attributes:
        value: the column whose values are drawn as shades.
        most: the value with the strongest shade; the largest value in the table when None.
    """

    value: str
    most: float | None = None

    def draw(self, table: Table) -> dict[str, Any]:
        """Return the data of the drawing."""
        across = "head" if "head" in table else "position"
        cells: dict[int, dict[int, Any]] = {}
        names: dict[int, str] = {}
        for row in table:
            cells.setdefault(row["layer"], {}).setdefault(row[across], row[self.value])
            names.setdefault(row[across], str(row.get("token", row[across])))
        columns, note = sorted(names), _note(table, self.value)
        if len(table) > sum(map(len, cells.values())):
            note += ", of the strongest in each square"
        if across == "head":
            scores = [[cells.get(n, {}).get(i) for i in range(columns[-1] + 1)] for n in range(max(cells) + 1)]
            return {
                "schema": "unembed.heads/2",
                "scores": scores,
                "definition": self.value.replace("_", " "),
                "note": note,
            }
        shown = [[cells[layer][at] for at in columns] for layer in sorted(cells)]
        rows = [f"layer {layer}" for layer in sorted(cells)]
        return heat(rows, [names[at] for at in columns], shown, self.value, note, self.most)


def heat(
    rows: Sequence[str],
    columns: Sequence[str],
    shown: Sequence[Sequence[float]],
    unit: str,
    note: str,
    most: float | None = None,
) -> dict[str, Any]:
    """Return the data of a heat map.

    Args:
        shown: the values, by row and column.
        unit: what the values measure, for the legend.
        note: the caption.
        most: the value with the strongest shade; the largest absolute value when None.
    """
    most = most or max((abs(x) for row in shown for x in row), default=0.0) or 1.0
    values = [[x / most for x in row] for row in shown]
    found = {"rows": list(rows), "columns": list(columns), "values": values, "shown": shown}
    return {"schema": "unembed.heat/1", **found, "unit": unit, "note": note}


def drawing(result: Displayed, table: Table) -> dict[str, Any] | None:
    """Return the data of the drawing of a result; None if results of its class have no drawing.

    Args:
        table: the result as a table.
    """
    kind = type(result).__name__
    if kind == "Readings":
        return _readings(cast("Readings", result))
    if (chart := CHARTS.get(kind)) is None:
        return None
    of_layers = kind == "Ablation" and cast("Ablation", result).values.dim() == 2
    heads = [head_named(label) for label in table["ablated"]] if of_layers else [None]
    if None not in heads:  # all rows are heads: draw a square for each
        columns = {"layer": [h.layer for h in heads if h], "head": [h.head for h in heads if h]}
        table, chart = Table(table.title, {**columns, "effect": table["effect"]}, table.provenance), Squares("effect")
    return chart.draw(table)


def _readings(result: Readings) -> dict[str, Any]:
    """Return the data of a drawing with the top token of every layer and position, shaded by its probability."""
    k = min(_LISTED, result.ids.shape[-1])
    return {
        "schema": "unembed.readings/1",
        "tokens": list(result.prompt),
        "texts": [[texts[:k] for texts in layer] for layer in result.tokens],
        "probabilities": numbers(result.probabilities[..., :k]),
        "label": f"Top token of {result.point} by layer and position",
        "note": f"{result.point}, basis {result.basis}",
    }


def _note(table: Table, value: str) -> str:
    """Return a caption: the title of a table, and the name of the column that is drawn."""
    return f"{table.title}; shown: {value.replace('_', ' ')}"


def _named(name: str, value: object) -> str:
    return f"{name.replace('_', ' ')} {format_number(value) if isinstance(value, float) else value}"


CHARTS: dict[str, Bars | Squares] = {
    "Ablation": Bars("ablated", "effect"),
    "Attribution": Bars("writer", "contribution"),
    "CorpusAblation": Bars("ablated", "loss_change", ("low", "high")),
    "Effects": Bars("writer", "total_effect", ("direct_effect", "note")),
    "EntropyAndKL": Squares("entropy"),
    "EstimatedEffects": Bars("writer", "exact_effect", ("estimated_effect", "relevance")),
    "HeadScores": Squares("induction"),
    "MemoryEffects": Bars("memory", "effect", ("coefficient",)),
    "Patching": Squares("recovered", 1.0),
    "PatchingPairs": Squares("recovered", 1.0),
    "Paths": Bars(("sender", "receiver"), "recovered", ("metric",)),
}
"""The drawing of each class of results, by the name of the class. `Trace` and `Readings` are drawn by other code."""
