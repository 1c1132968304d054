"""A published quantity as one row: what the paper states, what is measured for it here, and the test that judges it.

How to write a study. Its measurements are one object `m` (of any class; `lm`, `seed` and `provenance` are read).

1. A measuring function takes `m` to a few `Numbers`. It is marked `@once`, so that the test, the table, the figure and
   the explanation read the same numbers, resampled once:

       @once
       def patterns(m: Measurements) -> Numbers:
           covered, keys = 1 - m.patterns["none"], m.patterns["layer"] >= 0
           return Numbers(covered=mean_of(covered[keys], seed=m.seed), random=mean_of(covered[~keys], seed=m.seed))

2. A `Quantity` is the row. `judge` states the numbers in a sentence and gives the conditions of the test, all of which
   must hold; None is a condition that is open. `rows` are its lines in the table "here and published". `references`
   are what is drawn of it in a figure, by the figure's name. `origins` state how the published value is known:

       Quantity(
           "prefixes in patterns",
           "The vast majority of trigger prefixes were associated with at least one pattern.",
           where="Sec. 3.2, Fig. 2",
           what="share of trigger prefixes in a pattern by rule",
           published="65 to 80 %",
           test="Between 55 and 90 %, ten points around the published band, and above random prefixes.",
           measure=patterns,
           judge=lambda n: judged(
               f"{percent(n.covered)} of trigger prefixes are in a pattern, {percent(n.random)} of random ones.",
               within(n.covered, 0.55, 0.9),
               above(n.covered, n.random.high),
           ),
           rows=lambda n: (Row("prefixes in a pattern", n.covered), Row("the same in random prefixes", n.random)),
           references={"fig2_patterns": (Reference("published", (0.65,), (0.8,)),)},
           origins=(Origin("prefixes in a pattern", "65 to 80 %", SUMMARY),),
       )

3. A `Part` is a section of the report: its quantities, and a function that makes the section from `m` (text, further
   tables, figures). Findings, the table "here and published" and the published lines of figures are added to it.

4. A `Study` has its parts in reading order, and what goes to the top of the page. Its `run` measures the model and the
   control with random weights, and makes the report; the section of published values is added to it.

A test hands `judge` made-up numbers: `quantity.judge(Numbers(covered=Measured(0.7, 0.6, 0.8, 40), ...))`.
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
from unembed.errors import Unsupported
from unembed.reports.published import Origin
from unembed.results import Provenance, Table

M = TypeVar("M")
R = TypeVar("R")
UNEXPLAINED = "Unexplained: nothing measured here accounts for it."
"""The text of a finding that differs where its row has no explanation."""


class Numbers(SimpleNamespace):
    """The numbers that a measuring function found, by name."""


def once(measure: Callable[[M], R]) -> Callable[[M], R]:
    """Make a measuring function run only once for each study's measurements, and then return the same numbers."""
    found: WeakKeyDictionary[Any, R] = WeakKeyDictionary()

    @wraps(measure)
    def measured(m: M) -> R:
        if m not in found:
            found[m] = measure(m)
        return found[m]

    return measured


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim, and the measurement as a sentence."""

    here: str
    verdict: Verdict


class Row(NamedTuple):
    """A line of the table "here and published"; with the unit "%", it is a share with a published value in percent.

    Without its own `source`, a published number has that of the quantity.
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
        name: unique in the study.
        claim: the statement in the paper's words.
        where: the paper makes it.
        what: is measured.
        published: the paper's value of that quantity, in words.
        test: the threshold in words, and why it is this one.
        measure: the numbers that `judge` takes; None where the model or the options give none.
        judge: takes the numbers to a judgement; None where there are too few of what is judged.
        explain: of a finding that differs: a sentence of measured facts; None where they explain nothing.
        rows: lines of the section's table "here and published".
        references: published values drawn in figures, by the figure's name.
        origins: how the published values are known.
        extends: whether the paper states it only of models with fewer layers; the finding is then marked so.
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

    def judgement(self, m: M) -> Judgement | None:
        """Judge a study's measurements; return None if there is nothing to judge.

        If the architecture lacks what is measured, the judgement states the reason.
        """
        try:
            numbers = self.measure(m)
        except Unsupported as refused:
            return Judgement(f"Not available: {refused}", "inconclusive")
        return None if numbers is None else self.judge(numbers)

    def finding(self, m: M, control: Judgement | None = None) -> Finding | None:
        """Return the row of the report; None if there is nothing to judge.

        Args:
            control: the judgement on the model with random weights.
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
    """A section of a study, or several of which the first states the findings.

    Attributes:
        section: makes it from the measurements, without what is derived; None where the model gives none.
        quantities: the quantities whose findings and published values belong into it.
        compared: name of the table of `rows`; empty where there are none.
        title: the title of that table.
        note: below that title.
        name: the name of the stage that holds its sections, so that a stopped run does not make them again; empty for
            none.
        absent: the heading of the section that gives the reason where the architecture lacks what is shown; the name
            when empty. The whole study is refused where the part has neither.
        when: whether the study of this model has the part.
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
        """Return the sections.

        The first gets the findings, a table "here and published", and published lines in figures.

        Args:
            control: judgements on the model with random weights, by name of the quantity.
        """
        try:
            found = self.section(m)
        except Unsupported as refused:
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
            if (n := q.measure(m)) is not None
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
    """Return the table "here and published", split by unit: shares come first and have the note."""

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
    """Return a sentence and the verdict on several conditions as a judgement; see `verdict_of`."""
    return Judgement(here, verdict_of(*conditions))


def verdict_of(*conditions: bool | None) -> Verdict:
    """Combine several conditions, all of which must hold; None means that a condition is inconclusive.

    If any condition fails, the claim fails.
    """
    if any(c is not None and not c for c in conditions):
        return "differs"
    return "inconclusive" if any(c is None for c in conditions) else "agrees"


def least_of(layers: Sequence[Measured]) -> Measured:
    """Return the smallest of several numbers, such as those of all layers."""
    return min(layers, key=lambda x: x.value)


def most_of(layers: Sequence[Measured]) -> Measured:
    """Return the largest of several numbers."""
    return max(layers, key=lambda x: x.value)


def above(measured: Measured, line: int | float) -> bool | None:
    """Tell whether the whole interval lies above a line; None if the line lies in it, or nothing was measured."""
    if measured.low > line:
        return True
    return False if measured.high < line else None


def below(measured: Measured, line: int | float) -> bool | None:
    """Tell whether the whole interval lies below a line; None if the line lies in it, or nothing was measured."""
    if measured.high < line:
        return True
    return False if measured.low > line else None


def within(measured: Measured, low: int | float, high: int | float) -> bool | None:
    """Tell whether the whole interval lies in a band; None if it crosses an end, or nothing was measured."""
    inside = above(measured, low), below(measured, high)
    return False if False in inside else None if None in inside else True
