"""One report on the checkpoints of a training run: when findings begin to hold, and how measured values change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from unembed.document.model import Exhibit, Figure, Finding, Report, Section
from unembed.models.checkpoints import training_counts
from unembed.reports.comparison import (
    MEASURED,
    PARTS,
    by_title,
    claims,
    counted,
    is_extension,
    measured_tables,
    shared_provenance,
    studied,
)
from unembed.results import Provenance, Table, as_written

DATES = "over_training"
"""Name of the table that shows when each claim begins to hold, with a row for each claim."""
_NOTE = (
    "A finding begins to hold after the first number (the last checkpoint at which it does not hold) and at the second "
    "number at the latest; from there on it holds at each checkpoint. No first number: it holds, or is inconclusive, "
    "from the first checkpoint. No second number: it does not hold, or is inconclusive, at the last checkpoint. A "
    "finding that random weights also give counts as not holding."
)


class Onset(NamedTuple):
    """The interval of training in which a finding begins to hold.

    Attributes:
        after: the last checkpoint at which the finding does not hold; None if there is none.
        by: the first checkpoint from which on the finding always holds; None if it does not hold at the last one.
    """

    after: int | None
    by: int | None


def onset(holds: Mapping[int, bool | None]) -> Onset:
    """Return when a finding begins to hold.

    Args:
        holds: whether the finding holds at each checkpoint, by the checkpoint's number; None if inconclusive.
    """
    by = None
    for count in sorted(holds, reverse=True):
        if not holds[count]:
            break
        by = count
    return Onset(max((count for count in holds if holds[count] is False), default=None), by)


def series_report(reports: Mapping[str, Report], tokens_per_step: int | None = None) -> Report:
    """Return one report on a training run: when each finding begins to hold, and the numbers at every checkpoint.

    The numbers come from the tables of measured and published numbers, which the studies of Geva et al. have.

    Args:
        reports: the report on each checkpoint, by the checkpoint's name, which ends with its number of steps
            ("step1000") or tokens ("tokens2000000").
        tokens_per_step: number of tokens in a training step; if given, times are stated in tokens instead of steps.

    Raises:
        InvalidInput: there are fewer than two reports, they are of different studies, or a name has no number.
    """
    first = studied(reports)
    unit, counts = training_counts(list(reports))
    if unit == "steps" and tokens_per_step is not None:
        unit, counts = "tokens", [count * tokens_per_step for count in counts]
    by_count = dict(sorted(zip(counts, reports.values(), strict=True), key=lambda pair: pair[0]))
    provenance = shared_provenance(reports)
    sections = [_dates(by_count, unit, provenance)]
    for number, (title, own) in enumerate(by_title(by_count).items()):
        findings = _findings(own, unit, f"findings_{number}", provenance)
        tables = measured_tables(own).items()
        numbers = [_by_checkpoint(name, found, list(by_count), unit, provenance) for name, found in tables]
        if findings or numbers:
            figures = tuple(figure for exhibit in numbers for figure in _figures(exhibit, unit))
            sections.append(Section(title, (), (*findings, *numbers), figures))
    facts = {f"{count:,} {unit}": counted(made.findings) for count, made in by_count.items()}
    return Report(
        first.name,
        f"{first.name} over a training",
        f"When each published finding begins to hold in the {len(reports)} checkpoints of one training, and how each "
        "number that has a published counterpart changes. The page of each checkpoint is in a folder of its name.",
        first.source,
        provenance,
        tuple(sections),
        facts,
    )


def _dates(by_count: Mapping[int, Report], unit: str, provenance: Provenance) -> Section:
    found = claims(by_count)
    onsets = []
    for of_claim in found.values():
        informative = all(finding.informative for finding in of_claim.values())
        onsets.append(onset({count: _holds(of_claim.get(count), informative) for count in by_count}))
    columns: dict[str, list[Any]] = {
        "claim_text": [f"{claim} (extension)" if is_extension(by) else claim for claim, by in found.items()],
        f"{unit}_after": [one.after if one.by is not None else None for one in onsets],
        f"{unit}_at_most": [one.by for one in onsets],
    }
    table = Table("When findings begin to hold", columns, provenance)
    return Section("Over training", (), (Exhibit(DATES, table, _NOTE),))


def _holds(finding: Finding | None, informative: bool) -> bool | None:
    if finding is None or finding.verdict not in ("agrees", "differs"):
        return None
    return finding.verdict == "agrees" and informative


def _findings(own: Mapping[int, Section], unit: str, name: str, provenance: Provenance) -> list[Exhibit]:
    rows = [
        (finding.claim, count, finding.verdict, as_written(finding.here))
        for count, section in own.items()
        for finding in section.findings
    ]
    if not rows:
        return []
    order = {claim: place for place, claim in enumerate(dict.fromkeys(row[0] for row in rows))}
    rows.sort(key=lambda row: order[row[0]])
    columns = ("claim_text", unit, "verdict_text", "here_text")
    return [Exhibit(name, Table.of_rows("Findings at each checkpoint", columns, rows, provenance), folded=True)]


def _by_checkpoint(
    name: str, exhibits: Mapping[int, Exhibit], counts: list[int], unit: str, provenance: Provenance
) -> Exhibit:
    """Return a table of measured and published numbers with a row for each checkpoint."""
    rows = {count: {row["quantity_text"]: row for row in exhibit.table.rows()} for count, exhibit in exhibits.items()}
    quantities = list(dict.fromkeys(quantity for own in rows.values() for quantity in own))
    columns: dict[str, list[Any]] = {unit: counts}
    for quantity in quantities:
        own = [rows.get(count, {}).get(quantity, {}) for count in counts]
        columns |= {f"{quantity}{part}": [row.get(f"{MEASURED}{part}") for row in own] for part in PARTS}
        published = next((row[f"{MEASURED}_published"] for row in own if f"{MEASURED}_published" in row), None)
        if published is not None:
            columns[f"{quantity}_published"] = [published] * len(counts)
    exhibit = next(iter(exhibits.values()))
    percent = tuple(quantities) if exhibit.percent else ()
    table = Table(exhibit.table.title, columns, provenance)
    return Exhibit(name, table, exhibit.note, percent=percent, folded=True)


def _figures(exhibit: Exhibit, unit: str) -> list[Figure]:
    columns = exhibit.table.column_names
    return [
        Figure(
            f"{exhibit.name}_{number}",
            quantity,
            "line",
            exhibit.name,
            unit,
            (quantity,),
            x_label=f"{unit} of training",
            percent=bool(exhibit.percent),
        )
        for number, quantity in enumerate(name for name in columns if f"{name}_low" in columns)
        if any(value is not None for value in exhibit.table[quantity])
    ]
