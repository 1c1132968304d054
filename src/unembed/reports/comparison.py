"""Combine the reports of one study on several models into one report, with a column for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from unembed.document.model import Exhibit, Finding, Report, Section
from unembed.errors import InvalidInput
from unembed.results import Provenance, Table, as_written

MEASURED = "here"
"""Name of the column with measured numbers, in tables of measured and published numbers."""
VERDICTS = "verdicts"
"""Name of the table of verdicts: a line for each claim, a column for each model."""
PARTS = ("", "_low", "_high", "_n")


Key = TypeVar("Key", str, int)
"""What identifies a report among several: a model's name, or a checkpoint's number of steps or tokens."""


def compared(reports: Mapping[str, Report]) -> Report:
    """Return one report with the findings of several models, and their tables of measured and published numbers.

    Args:
        reports: the report on each model, by the name of the model.

    Raises:
        InvalidInput: there are fewer than two reports, or they are of different studies.
    """
    first = studied(reports)
    provenance = shared_provenance(reports)
    found = claims(reports)
    sections = [] if not found else [_verdicts(found, list(reports), provenance)]
    for number, (title, own) in enumerate(by_title(reports).items()):
        exhibits = _findings(own, list(reports), f"findings_{number}", provenance)
        exhibits += [_joined(name, of, list(reports), provenance) for name, of in measured_tables(own).items()]
        if exhibits:
            sections.append(Section(title, (), tuple(exhibits)))
    facts = {name: f"{counted(report.findings)}; {report.provenance.line()}" for name, report in reports.items()}
    return Report(
        first.name,
        f"{first.name} on {', '.join(reports)}",
        "Each published finding and number, and what each model gives. The page of each model is in a folder of its "
        "name.",
        first.source,
        provenance,
        tuple(sections),
        facts,
    )


def studied(reports: Mapping[str, Report]) -> Report:
    """Check that at least two reports are given, all of one study, and return the first.

    Raises:
        InvalidInput: there are fewer than two, or they are of different studies.
    """
    studies = sorted({report.name for report in reports.values()})
    if len(studies) != 1 or len(reports) < 2:
        raise InvalidInput(
            f"{len(reports)} reports of {' and '.join(studies) or 'no study'}",
            why="a comparison has at least two reports of one study",
        )
    return next(iter(reports.values()))


def claims(reports: Mapping[Key, Report] | Mapping[Key, Section]) -> dict[str, dict[Key, Finding]]:
    """Return, for each claim, its finding in each of the reports or sections; claims are in the order of the reports.

    Claims that are extensions in every report come last.
    """
    found: dict[str, dict[Key, Finding]] = {}
    for name, report in reports.items():
        for finding in report.findings:
            found.setdefault(finding.claim, {})[name] = finding
    return dict(sorted(found.items(), key=lambda item: is_extension(item[1])))


def is_extension(by_report: Mapping[Key, Finding]) -> bool:
    """Return whether a claim is an extension to deeper models in every report that has it."""
    return all(finding.extension for finding in by_report.values())


def verdict_in_words(finding: Finding | None) -> str:
    """Return the verdict, with a note if it is an extension or if random weights pass too; "not available" for None."""
    if finding is None:
        return "not available"
    verdict = f"{finding.verdict} (extension)" if finding.extension else finding.verdict
    return verdict if finding.informative else f"{verdict}, as do random weights"


def measured_tables(sections: Mapping[Key, Section]) -> dict[str, dict[Key, Exhibit]]:
    """Return the tables of measured and published numbers in one section of several reports, by name and report."""
    found: dict[str, dict[Key, Exhibit]] = {}
    for report, section in sections.items():
        for exhibit in section.exhibits:
            if {"quantity_text", MEASURED} <= set(exhibit.table.column_names):
                found.setdefault(exhibit.name, {})[report] = exhibit
    return found


def by_title(reports: Mapping[Key, Report]) -> dict[str, dict[Key, Section]]:
    """Return, for each title of a section, the section of this title in each of the reports that have it."""
    found: dict[str, dict[Key, Section]] = {}
    for name, report in reports.items():
        for section in report.sections:
            found.setdefault(section.title, {}).setdefault(name, section)
    return found


def _verdicts(found: Mapping[str, Mapping[str, Finding]], models: Sequence[str], provenance: Provenance) -> Section:
    columns = {"claim_text": list(found)} | {
        model: [verdict_in_words(by_model.get(model)) for by_model in found.values()] for model in models
    }
    return Section("Summary", (), (Exhibit(VERDICTS, Table("Verdicts", columns, provenance)),))


def counted(findings: Sequence[Finding]) -> str:
    """Return how many of the published findings, and how many of the extensions, agree, in words."""
    published, extended = ([f for f in findings if f.extension is extension] for extension in (False, True))
    agree, more = (sum(f.verdict == "agrees" for f in some) for some in (published, extended))
    line = f"{agree} of {len(published)} findings agree"
    return f"{line}, {more} of {len(extended)} extensions" if extended else line


def shared_provenance(reports: Mapping[str, Report]) -> Provenance:
    """Return the provenance of the comparison: settings that all reports share, and each model's revision as a note."""
    each = [report.provenance for report in reports.values()]
    shared: dict[str, Any] = {
        name: values.pop() if len(values := {getattr(one, name) for one in each}) == 1 else None
        for name in ("corpus", "basis", "seed")
    }
    dtypes = ", ".join(dict.fromkeys(one.dtype for one in each))
    notes = {name: one.revision for name, one in zip(reports, each, strict=True) if one.revision is not None}
    return Provenance(", ".join(reports), None, dtypes, **shared, notes=notes)


def _findings(own: Mapping[str, Section], models: Sequence[str], name: str, provenance: Provenance) -> list[Exhibit]:
    by_claim = claims(own)
    if not by_claim:
        return []
    columns: dict[str, list[Any]] = {
        "claim_text": list(by_claim),
        "published_text": [next(iter(found.values())).published for found in by_claim.values()],
    }
    for model in models:
        each = [found.get(model) for found in by_claim.values()]
        columns[f"{model}_text"] = [
            verdict_in_words(f) + ("" if f is None else f": {as_written(f.here)}") for f in each
        ]  # fmt: skip
    return [Exhibit(name, Table("Findings", columns, provenance))]


def _joined(name: str, exhibits: Mapping[str, Exhibit], models: Sequence[str], provenance: Provenance) -> Exhibit:
    """Return a table of measured and published numbers with a column for each model."""
    rows = {model: {row["quantity_text"]: row for row in e.table.rows()} for model, e in exhibits.items()}
    published = {
        quantity: row.get(f"{MEASURED}_published") for own in rows.values() for quantity, row in own.items()
    }  # fmt: skip
    columns: dict[str, list[Any]] = {"quantity_text": list(published), "published": list(published.values())}
    for model in models:
        own = [rows.get(model, {}).get(quantity, {}) for quantity in published]
        columns |= {f"{model}{part}": [row.get(f"{MEASURED}{part}") for row in own] for part in PARTS}
    any_exhibit = next(iter(exhibits.values()))
    percent = ("published", *models) if any_exhibit.percent else ()
    return Exhibit(name, Table(any_exhibit.table.title, columns, provenance), any_exhibit.note, percent=percent)
