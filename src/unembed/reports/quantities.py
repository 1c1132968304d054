"""A `Quantity` joins a published statement, the measurement made for it here, and the test that judges it.

How to write a study; `unembed.reports.geva2021.parts.keys` is an example. Its measurements are one object `m`, of any
class that has the attributes `lm`, `seed` and `provenance`.

1. A measuring function, such as `patterns` in the example, takes `m` and returns a few `Numbers`. The decorator `@once`
   stores its result, so that the test, the table, the figure and the explanation use the same numbers.

2. A `Quantity`, such as those in `PATTERNS`, names that function. `judge` states the numbers in a sentence and gives
   the conditions of the test, which must all hold; a condition is None if it is inconclusive. `rows` are its lines in
   the table of measured and published numbers. `references` are published values to draw in figures, by the name of
   the figure. `origins` state how the published value is known.

3. A `Part` is a section of the report: its quantities, and a function that makes the section from `m` (text, further
   tables, figures). `Part.made` adds the findings, the table of measured and published numbers, and the published lines
   in figures.

4. A `Study` lists its parts in the order of the report, and the text at the top of the page. Its method `run` measures
   the model and a control with random weights, and makes the report, which ends with a section of published values.

A unit test can call `judge` with made-up numbers: `quantity.judge(Numbers(covered=Measured(0.7, 0.6, 0.8, 40), ...))`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import wraps
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from unembed.document.intervals import Measured, columns
from unembed.document.model import EXTENSION, Exhibit, Finding, Reference, Section, Verdict
from unembed.errors import SumNotProved, Unsupported
from unembed.reports.published import Origin
from unembed.results import Provenance, Table

M = TypeVar("M")
R = TypeVar("R")
REFUSALS = (Unsupported, SumNotProved)
"""Errors of a measurement that the report states in place of a number."""
UNEXPLAINED = "Unexplained: nothing measured here accounts for it."
"""The explanation of a finding that differs from the paper, where its quantity gives none."""


class Numbers(SimpleNamespace):
    """The numbers that a measuring function found, by name."""


def once(measure: Callable[[M], R]) -> Callable[[M], R]:
    """Decorate a measuring function, so that it runs once for each `m` and then returns the stored result."""
    found: WeakKeyDictionary[Any, R] = WeakKeyDictionary()

    @wraps(measure)
    def measured(m: M) -> R:
        if m not in found:
            found[m] = measure(m)
        return found[m]

    return measured


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim, and the measured numbers as a sentence (`here`)."""

    here: str
    verdict: Verdict


class Row(NamedTuple):
    """A line of the table of measured and published numbers.

    With the unit "%", `measured` is a share (0 to 1) and `published` is in percent. When `source` is empty, a published
    number has the source of its `Quantity` (`where`).
    """

    quantity: str
    measured: Measured
    published: int | float | None = None
    source: str = ""
    unit: str = "%"


@dataclass(frozen=True)
class Quantity(Generic[M]):
    """A published statement about a quantity, with its measurement and its test.

    Attributes:
        name: the name of the quantity, unique in the study.
        claim: the statement, in the paper's words.
        where: section, table or figure in which the paper makes the statement.
        what: what is measured, in words.
        published: the paper's value of the quantity, in words.
        test: the threshold in words, and the reason for it.
        measure: measures the numbers that `judge` takes; returns None where the model or the options give no numbers.
        judge: returns the judgement of the numbers; None where there is too little data to judge.
        explain: returns measured facts that explain why a finding differs from the paper; None if there are none.
        rows: returns lines for the section's table of measured and published numbers.
        references: published values to draw in figures, by the name of the figure.
        origins: how the published values are known.
        extends: returns whether the paper makes the statement only for models with fewer layers than this one; the
            finding is then marked as an extension.
    """

    name: str
    claim: str
    _: KW_ONLY
    where: str
    what: str
    published: str
    test: str
    measure: Callable[[M], Numbers | None]
    judge: Callable[[Numbers], Judgement | None]
    explain: Callable[[M], str | None] = lambda _: None
    rows: Callable[[Numbers], Iterable[Row]] = lambda _: ()
    references: Mapping[str, Sequence[Reference]] = field(default_factory=dict)
    origins: tuple[Origin, ...] = ()
    extends: Callable[[M], bool] = lambda _: False

    def numbers(self, m: M) -> Numbers | None:
        """Return the measured numbers; None if there are none, or if the model's architecture does not allow them."""
        try:
            return self.measure(m)
        except REFUSALS:
            return None

    def judgement(self, m: M) -> Judgement | None:
        """Return the judgement of the quantity for the measurements `m`; None if there is nothing to judge.

        If the model's architecture does not allow the measurement, the judgement gives the reason.
        """
        try:
            numbers = self.measure(m)
        except REFUSALS as refused:
            return Judgement(f"Not available: {refused}", "not applicable")
        return None if numbers is None else self.judge(numbers)

    def finding(self, m: M, control: Judgement | None = None) -> Finding | None:
        """Return the finding for the report; None if there is nothing to judge.

        Args:
            control: the judgement of the same quantity on a model with random weights.
        """
        found = self.judgement(m)
        if found is None:
            return None
        return Finding(
            self.claim,
            self.where,
            self.what,
            EXTENSION if self.extends(m) else self.published,
            found.here,
            self.test,
            found.verdict,
            "" if control is None else f"{control.here} ({control.verdict})",
            control is None or control.verdict != "agrees",
            (self.explain(m) or UNEXPLAINED) if found.verdict == "differs" else "",
        )


@dataclass(frozen=True)
class Part(Generic[M]):
    """A section of a report, or several sections, the first of which states the findings.

    Attributes:
        section: makes the section from the measurements; `made` then adds findings and published values. Returns None
            where the model has nothing to show.
        quantities: the quantities whose findings and published values belong in the section.
        compared: name of the table of measured and published numbers; there is no such table when empty.
        title: title of that table.
        note: note below that title.
        name: name under which the finished sections are stored, so that a run after an interruption does not make them
            again; when empty, they are not stored.
        absent: heading of the short section that gives the reason if the model's architecture does not allow this
            section; when empty, the heading is `name`. If both are empty, the whole study raises `Unsupported` instead.
        when: returns whether the report on this model has the section.
    """

    section: Callable[[M], Section | Sequence[Section] | None]
    quantities: tuple[Quantity[M], ...] = ()
    compared: str = ""
    title: str = ""
    note: str = ""
    name: str = ""
    absent: str = ""
    when: Callable[[M], bool] = lambda _: True

    def made(self, m: M, control: Mapping[str, Judgement], provenance: Provenance) -> list[Section]:
        """Return the sections, after adding findings and published values (in a table and in figures) to the first one.

        Args:
            control: the judgement of each quantity on a model with random weights, by the name of the quantity.
        """
        try:
            found = self.section(m)
        except REFUSALS as refused:
            heading = self.absent or f"{self.name[:1].upper()}{self.name[1:]}"
            if not heading:
                raise
            found = Section(heading, (f"Not available: {refused}",))
        if found is None:
            return []
        section, *others = (found,) if isinstance(found, Section) else found
        findings = (q.finding(m, control.get(q.name)) for q in self.quantities)
        shown = self.quantities if self.compared else ()
        rows = [
            row._replace(source=q.where) if row.published is not None and not row.source else row
            for q in shown
            if (n := q.numbers(m)) is not None
            for row in q.rows(n)
        ]
        drawn: dict[str, tuple[Reference, ...]] = {}
        for name, references in (item for q in self.quantities for item in q.references.items()):
            drawn[name] = (*drawn.get(name, ()), *references)
        first = replace(
            section,
            exhibits=(*comparison(self.compared, self.title, rows, provenance, self.note), *section.exhibits),
            figures=tuple(replace(f, references=(*f.references, *drawn.get(f.name, ()))) for f in section.figures),
            findings=tuple(finding for finding in findings if finding is not None),
        )
        return [first, *others]


def comparison(
    name: str, title: str, rows: Sequence[Row], provenance: Provenance, note: str = ""
) -> tuple[Exhibit, ...]:
    """Return the tables of measured and published numbers, one for each unit; the first one has the note."""

    def of_unit(unit: str) -> Exhibit:
        quantities, measured, published, sources, _ = zip(*(row for row in rows if row.unit == unit), strict=True)
        share = unit == "%"
        cells = {
            "quantity_text": list(quantities),
            **columns("here", measured),
            "here_published": [None if p is None else p / 100 if share else float(p) for p in published],
            "source_text": list(sources),
        }
        if share:
            return Exhibit(name, Table(title, cells, provenance), note, percent=("here",))
        return Exhibit(f"{name}_{unit}", Table(f"{title}, {unit}", cells, provenance), note if unit == units[0] else "")

    units = sorted({row.unit for row in rows}, key=lambda unit: unit != "%")
    return tuple(of_unit(unit) for unit in units)


def judged(here: str, *conditions: bool | None) -> Judgement:
    """Return the judgement with the sentence `here` and the verdict on the conditions; see `verdict_of`."""
    return Judgement(here, verdict_of(*conditions))


def judged_if(applies: bool, here: str, *conditions: bool | None) -> Judgement:
    """Return the judgement on the conditions; "not applicable" if not `applies`: the model lacks what they test."""
    return judged(here, *conditions) if applies else Judgement(here, "not applicable")


def verdict_of(*conditions: bool | None) -> Verdict:
    """Return the verdict on conditions that must all hold; None stands for an inconclusive condition.

    "differs" if any condition is False; else "inconclusive" if any is None; else "agrees".
    """
    if any(c is not None and not c for c in conditions):
        return "differs"
    return "inconclusive" if any(c is None for c in conditions) else "agrees"


def least_of(layers: Sequence[Measured]) -> Measured:
    """Return the measurement with the smallest value, such as that of one layer among all."""
    return min(layers, key=lambda x: x.value)


def most_of(layers: Sequence[Measured]) -> Measured:
    """Return the measurement with the largest value."""
    return max(layers, key=lambda x: x.value)


def above(measured: Measured, line: int | float) -> bool | None:
    """Return whether the confidence interval lies above `line`; None if it contains `line` or is NaN."""
    if measured.low > line:
        return True
    return False if measured.high < line else None


def below(measured: Measured, line: int | float) -> bool | None:
    """Return whether the confidence interval lies below `line`; None if it contains `line` or is NaN."""
    if measured.high < line:
        return True
    return False if measured.low > line else None


def within(measured: Measured, low: int | float, high: int | float) -> bool | None:
    """Return whether the confidence interval lies between `low` and `high`; None if it contains either or is NaN."""
    inside = above(measured, low), below(measured, high)
    return False if False in inside else None if None in inside else True
