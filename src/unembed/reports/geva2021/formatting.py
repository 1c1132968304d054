"""Common code of the sections: lower and upper layers, the table of published numbers, the provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unembed.concepts.token_cleaning import clean
from unembed.concepts.word_lists import STOP_WORDS
from unembed.document.intervals import Measured, mean_of
from unembed.document.model import Exhibit
from unembed.models.decoder import Decoder
from unembed.reports.geva2021.measurements import Measurements
from unembed.results import Provenance, Table

PAPER_LAYERS = 16
FIRST_UPPER = 10
"""Of the paper's 16 layers, the first (from 0) in which values agree with their keys' triggers."""


def first_upper(n_layers: int) -> int:
    """The layer that lies as deep as the paper's eleventh of sixteen: the first of the "upper layers"."""
    return min(max(1, round(FIRST_UPPER * n_layers / PAPER_LAYERS)), n_layers - 1) if n_layers > 1 else 0


def provenance_of(m: Measurements) -> Provenance:
    """Model, corpus, basis, seed, and the options that change numbers."""
    o = m.options
    notes: dict[str, Any] = {
        n: getattr(o, n) for n in ("draw", "triggers", "target", "values_basis", "fraction", "semantic")
    }
    notes["unlearned tokens left out"] = 0 if m.hidden is None else int(m.hidden.sum())
    corpus = f"{m.corpus_name} {m.corpus_fingerprint}"
    return m.lm.provenance(corpus=corpus, basis=o.basis, seed=m.seed, notes=notes)


@dataclass
class ComparisonTable:
    """Rows of a table with measured numbers next to the paper's."""

    name: str
    title: str
    rows: list[tuple[str, str, Measured, float | None, str]] = field(default_factory=list)

    def add(
        self,
        quantity: str,
        measured: Measured,
        published: int | float | None = None,
        source: str = "",
        *,
        unit: str = "%",
    ) -> None:
        """One number; with unit "%" a share as a fraction, its published value in percent."""
        if published is not None:
            published = published / 100 if unit == "%" else float(published)
        self.rows.append((quantity, unit, measured, published, source))

    def exhibits(self, provenance: Provenance, note: str = "") -> tuple[Exhibit, ...]:
        """A table for each unit, the shares first."""
        units = sorted({unit for _, unit, *_ in self.rows}, key=lambda unit: unit != "%")
        return tuple(self._exhibit(unit, provenance, "" if i else note) for i, unit in enumerate(units))

    def _exhibit(self, unit: str, provenance: Provenance, note: str) -> Exhibit:
        rows = [row for row in self.rows if row[1] == unit]
        quantities, _, measured, published, sources = zip(*rows, strict=True)
        table = {
            "quantity_text": list(quantities),
            "here": [float(m.value) for m in measured],
            "here_low": [float(m.low) for m in measured],
            "here_high": [float(m.high) for m in measured],
            "here_n": [int(m.n) for m in measured],
            "here_published": list(published),
            "source_text": list(sources),
        }
        if unit == "%":
            return Exhibit(self.name, Table(self.title, table, provenance), note, percent=("here",))
        return Exhibit(f"{self.name}_{unit}", Table(f"{self.title}, {unit}", table, provenance), note)


def boxes(stem: str, rows: Sequence[np.ndarray]) -> dict[str, list[float]]:
    """Columns of quantiles for a box figure, one row for each array; NaN left out."""
    names = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
    finite = [row[~np.isnan(row.astype(float))] for row in rows]
    return {
        f"{stem}_{name}": [float(np.quantile(row, q)) if len(row) else float("nan") for row in finite]
        for name, q in names.items()
    }


def means(rows: Sequence[np.ndarray], seed: int, *, share: bool = True) -> list[Measured]:
    """The mean of each array with its interval; `share` as in `mean_of`."""
    return [mean_of(np.asarray(row, dtype=np.float64), seed=seed, share=share) for row in rows]


def snippet(text: str, most: int = 160) -> str:
    """The end of a long prefix."""
    return text if len(text) <= most else "… " + text[-most:]


def prefix_text(m: Measurements, position: int, *, example: bool = False) -> str:
    """The text of a trigger (of an `example`), its end where it is long."""
    body = (m.example_text if example else m.text).prefix(position, special=False)
    return snippet(m.lm.decode(body.tolist()))


def stop_words(lm: Decoder) -> np.ndarray:
    """Which tokens are common stop words: (d_vocab,) booleans."""
    return np.array([token.word in STOP_WORDS for token in clean(lm.token_strings(range(lm.d_vocab)))])
