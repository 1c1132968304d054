"""Measure by layer, on a sample, whether adding value vectors raises the tokens listed for them; store the result.

The tokens listed for a value vector, with their scores, are its reading (see `unembed.memories.truth_of_values`). The
result is a file in the index's folder, which names the lens that computed the scores. A later measurement replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unembed.errors import InvalidInput
from unembed.results import Provenance, Table, format_cell, format_number, write_whole

if TYPE_CHECKING:  # so that stored results can be read without importing torch
    from unembed.corpus import CorpusSource
    from unembed.models.decoder import Decoder

SCHEMA = "unembed.truth/1"
FILE = "truth.json"
COLUMNS = ("layer", "memories", "correlation", "overlap", "control", "control_99")


@dataclass(frozen=True)
class LayerTruth:
    """The agreement, by layer, of value vectors' token scores with the change of the logits when they are added.

    Attributes:
        rows: one dict for each layer; the keys are the columns of `ReadingTruth.by_layer`.
        lens: the identity of the fitted lens that computed the scores; None for the logit lens.
        provenance: what was measured, and how.
    """

    rows: tuple[dict[str, Any], ...]
    lens: str | None
    provenance: Provenance

    def to_table(self) -> Table:
        """Return a table with one row for each layer."""
        title = f"How true readings of values are ({self.reading})"
        return Table(title, {name: [row[name] for row in self.rows] for name in COLUMNS}, self.provenance)

    @property
    def reading(self) -> str:
        """The basis of the scores, and the lens if there was one, in words."""
        return f"basis {self.provenance.basis}" + (f", lens {self.lens}" if self.lens else "")

    def of(self, layer: int) -> dict[str, Any] | None:
        """Return the row of a layer; None where it was not measured."""
        return next((row for row in self.rows if row["layer"] == layer), None)

    def is_above_control(self, layer: int) -> bool | None:
        """Return whether a layer's median correlation is at least the 99 % quantile of the control's correlations.

        None if the layer was not measured.
        """
        row = self.of(layer)
        return None if row is None else row["correlation"] >= row["control_99"]

    def in_words(self, layer: int) -> str | None:
        """Return the result for a layer as a sentence; None if it was not measured."""
        row = self.of(layer)
        if row is None:
            return None
        meaning = "" if self.is_above_control(layer) else ": what is listed as promoted is not what the value raises"
        return (
            f"Of {row['memories']} values of layer {layer}, the scores listed correlate "
            f"{format_cell(row['correlation'])} (median) with what adding the value does; with other "
            f"values' effects, 99 % stay below {format_cell(row['control_99'])}{meaning}. Of the 20 "
            f"highest-scored tokens, {format_number(20 * row['overlap'])} on average are among the 20 that rise most"
        )

    def line(self) -> str:
        """Summarise all layers in one line."""
        lowest, highest = self.rows[0], self.rows[-1]
        below = [row["layer"] for row in self.rows if row["correlation"] < row["control_99"]]
        ends = f"r {format_cell(lowest['correlation'])} in layer {lowest['layer']}"
        if highest is not lowest:
            ends += f" to {format_cell(highest['correlation'])} in layer {highest['layer']}"
        told = f"; not above other values in layer {_spans(below)}" if below else ""
        return f"{ends}{told} ({self.reading})"


def _spans(numbers: Sequence[int]) -> str:
    """Write sorted numbers as ranges, as in "0-3, 7"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def measured_truth(
    lm: Decoder,
    folder: Path,
    layers: Sequence[int],
    per_layer: int,
    corpus: CorpusSource,
    contexts: int,
    seed: int,
    progress: Callable[[str, int, int], None],
) -> LayerTruth:
    """Measure in each layer whether adding value vectors raises the tokens listed for them; store it in the folder.

    Errors are those of `memories.reading_truth`.
    """
    from unembed.jacobian import lens_identity
    from unembed.memories import reading_truth

    found = reading_truth(
        lm, layers=layers, per_layer=per_layer, corpus=corpus, contexts=contexts, seed=seed, progress=progress
    )
    table = found.by_layer()
    rows = tuple({name: row[name] for name in COLUMNS} for row in table.rows())
    made = LayerTruth(rows, lens_identity(lm) if found.basis == "jacobian" else None, table.provenance)
    stored = {"schema": SCHEMA, "lens": made.lens, "provenance": made.provenance.to_dict(), "layers": list(rows)}
    write_whole(folder / FILE, json.dumps(stored, ensure_ascii=False, indent=1) + "\n")
    return made


def stored_truth(folder: Path) -> LayerTruth | None:
    """Return the result that `measured_truth` stored in a folder; None if there is none.

    Raises:
        InvalidInput: the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["schema"] != SCHEMA:
            raise ValueError(f"its schema is {stored['schema']}, not {SCHEMA}")
        rows = tuple({name: row[name] for name in COLUMNS} for row in stored["layers"])
        return LayerTruth(rows, stored["lens"], Provenance.from_dict(stored["provenance"]))
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise InvalidInput(
            f"{path} is damaged", why=str(fault), instead="Measure again: unembed index truth"
        ) from fault
