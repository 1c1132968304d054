"""A report section on verdicts that change if a fitted lens decodes value vectors and the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unembed.document.model import Exhibit, Section
from unembed.reports.quantities import Judgement, Quantity
from unembed.results import Provenance, Table

_COLUMNS = ("quantity", "verdict", "measured", "verdict_by_the_lens", "measured_by_the_lens")


def changed_verdicts(
    quantities: Sequence[Quantity[Any]],
    by_paper: Sequence[Judgement | None],
    by_lens: Sequence[Judgement | None],
    provenance: Provenance,
) -> Section:
    """State how many verdicts change if the fitted lens decodes the vectors, and list these with both judgements.

    Args:
        quantities: the quantities that depend on how value vectors or the residual stream are decoded to tokens.
        by_paper: the judgement of each quantity if vectors are decoded as in the paper; None where nothing is judged.
        by_lens: the judgement of each quantity if the fitted lens decodes the vectors.
        provenance: the provenance of the judgements by the lens.
    """
    both = [
        (quantity.name, own, other)
        for quantity, own, other in zip(quantities, by_paper, by_lens, strict=True)
        if own is not None and other is not None
    ]
    rows = [
        (name, own.verdict, own.here, other.verdict, other.here)
        for name, own, other in both
        if own.verdict != other.verdict
    ]
    counted = "no verdict differs" if not rows else f"{len(rows)} verdict{'s differ' if len(rows) > 1 else ' differs'}"
    text = (
        "For the findings above, values and streams are decoded as in the paper: by the unembedding, as if no layer "
        "followed. The model's fitted lens first maps them to the end of the model, by the mean derivative of the "
        f"layers that follow. Of the {len(both)} findings above that depend on this decoding, {counted} with the lens."
    )
    title = "Verdicts that differ by the fitted lens"
    exhibits = (Exhibit("by_lens", Table.of_rows(title, _COLUMNS, rows, provenance)),) if rows else ()
    return Section("Readings by the fitted lens", (text,), exhibits)
