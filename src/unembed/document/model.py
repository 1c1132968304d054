"""The parts of a report (sections of text, tables, figures and findings), all of them values that can be saved.

A figure holds no drawing, only which columns of which table it draws, so that it can be drawn again from the tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from unembed.errors import InvalidInput
from unembed.results import Provenance, Table

SUFFIXES = ("_low", "_high", "_n", "_published")
"""Of columns that belong to another column."""
ROW_NAMES = (
    *("layer", "head", "position", "order", "offset", "bin", "from", "to", "cluster", "writer", "reader"),
    *("occurrences", "terms", "times", "triggers", "examples"),
)
"""Columns of numbers that name a row, or give the size of its sample."""
_STORED = ("name", "note", "percent", "folded", "apart")
"""What a report's file holds of a table besides its rows."""
_WORDS = ("name", "title", "subtitle", "source")
"""The same of a report, besides what has a form of its own."""
KINDS = ("line", "bar", "stacked", "box", "heat", "scatter", "text")


Verdict = Literal["agrees", "differs", "inconclusive"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Finding:
    """One row of a report's findings: a published claim, its test, and the outcome here and on random weights.

    Attributes:
        claim: the statement in the paper's words.
        source: where the paper makes it, such as "Sec. 4.1, Fig. 4".
        quantity: what is measured for it.
        published: the paper's value of that quantity, in words.
        here: the value measured on this model; a sentence that can be read without a table.
        test: the threshold in words, and why it is this one.
        verdict: the outcome of the test.
        control: the same measurement on the same architecture with random weights; empty where none was made.
        informative: False where the random weights pass the test too.
        explanation: of a finding that differs: the measured facts behind it, or that nothing measured explains it.
    """

    claim: str
    source: str
    quantity: str
    published: str
    here: str
    test: str
    verdict: Verdict
    control: str = ""
    informative: bool = True
    explanation: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InvalidInput(f"verdict {self.verdict!r}", why=f"a verdict is one of {', '.join(VERDICTS)}")


@dataclass(frozen=True)
class Exhibit:
    """A table of a report.

    Columns `x`, `x_low`, `x_high` are shown as one cell "x [low, high]", `x_n` as its sample size, `x_published` as
    the paper's number next to it. Columns named `token(s)` or ending so hold token text, those ending in `_text` prose
    to be wrapped. A page shows shares and the groups of `apart` as separate tables, so that a table has one unit.

    Attributes:
        name: file name without extension; unique in the report.
        table: the numbers.
        note: one paragraph below the title.
        percent: columns (without suffix) that hold shares, to be shown in percent.
        folded: shown closed at first, for long tables.
        apart: groups of columns (without suffix) in a further unit.
        listed: rows that a terminal shows; all other forms have every row.
        brief: columns that a terminal shows; all when empty.
        unbroken: columns whose cells a terminal writes on one line.
    """

    name: str
    table: Table
    note: str = ""
    percent: tuple[str, ...] = ()
    folded: bool = False
    apart: tuple[tuple[str, ...], ...] = ()
    listed: int = 40
    brief: tuple[str, ...] = ()
    unbroken: tuple[str, ...] = ()

    def by_unit(self) -> list[list[str]]:
        """The columns (without suffix) of each table of a page: those that name a row, then those of one unit."""
        names = self.table.column_names
        shown = [n for n in names if not (n.endswith(SUFFIXES) and n.rsplit("_", 1)[0] in names)]
        rows = list(self.table.rows())
        words = {n for n in shown if rows and any(isinstance(row[n], str | list | tuple | bool) for row in rows)}
        keys = list(itertools.takewhile(lambda n: n in words or n in ROW_NAMES, shown))
        groups: dict[int, list[str]] = {}
        unit = 0
        for name in shown[len(keys) :]:
            if name not in words:  # words after a number belong to it
                ours = next((i for i, group in enumerate(self.apart, start=2) if name in group), 0)
                unit = 1 if name in self.percent else ours
            groups.setdefault(unit, []).append(name)
        return [keys + group for group in groups.values()] or [keys]


@dataclass(frozen=True)
class Reference:
    """Published values drawn in a figure: a dashed line, a band between two ends, or a range of the x axis.

    Attributes:
        label: what the legend calls it, with the paper's model.
        low: the values, or the lower ends; empty for a stretch of the x axis between two places.
        high: the upper ends; empty for a line.
        at: where each value lies between the first (0) and the last (1) place of the x axis, because the paper's
            models have other depths; empty for one value that holds all along the axis.
        series: the column of `y`, counted from 0, that it is the published value of; -1 for none in particular.
    """

    label: str
    low: tuple[int | float, ...] = ()
    high: tuple[int | float, ...] = ()
    at: tuple[int | float, ...] = ()
    series: int = -1

    def __post_init__(self) -> None:
        whole = len(self.at) == 2 if not self.low else len(self.low) == max(len(self.at), 1)
        if not whole or (self.high and len(self.high) != len(self.low)):
            raise InvalidInput(f"reference {self.label!r}", why="it needs one value and one interval for each place")


@dataclass(frozen=True)
class Figure:
    """A drawing of some columns of one table of the report.

    Attributes:
        name: file name without extension; unique in the report.
        title: one line above the drawing.
        kind: "line" (series over x, a band where `_low` and `_high` exist, dashes where `_published` does),
            "bar" (the same as bars side by side), "stacked" (series of each x on top of each other), "box" (y names
            the stem of columns `_q05 _q25 _q50 _q75 _q95`), "heat" (`x` and `rows` are the axes, y[0] the colour),
            "scatter" (y[0] over x), "text" (the tokens of column `x` as running text, shaded by y[0]).
        table: name of the exhibit whose columns are drawn.
        x: column along the x axis.
        y: columns drawn, in the order of the legend.
        labels: what the legend calls the columns.
        x_label: axis title.
        y_label: axis title.
        percent: the y axis is a share, shown in percent.
        rows: for "heat", column along the y axis.
        logarithmic: y axis in powers of ten.
        y_range: ends of the y axis (of the colours in "heat"); found from the data when None.
        note: caption below.
        equal: for "scatter", both axes have one scale around zero, as a complex plane has.
        references: published values drawn in it.
        published: where none can be drawn: why, in a sentence for the caption.
    """

    name: str
    title: str
    kind: str
    table: str
    x: str
    y: tuple[str, ...]
    labels: tuple[str, ...] = ()
    x_label: str = ""
    y_label: str = ""
    percent: bool = False
    rows: str = ""
    logarithmic: bool = False
    y_range: tuple[int | float, int | float] | None = None
    note: str = ""
    equal: bool = False
    references: tuple[Reference, ...] = ()
    published: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"figure kind {self.kind!r}", why=f"a figure is one of {', '.join(KINDS)}")


@dataclass(frozen=True)
class Section:
    """A part of a report: paragraphs, then figures, findings and tables, each optional.

    Attributes:
        title: heading.
        text: paragraphs; `code` between backticks is set as such.
        exhibits: its tables.
        figures: its figures, drawn from these or other sections' tables.
        findings: published statements and whether they hold here.
    """

    title: str
    text: tuple[str, ...] = ()
    exhibits: tuple[Exhibit, ...] = ()
    figures: tuple[Figure, ...] = ()
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the tables' rows, as JSON values."""
        return {
            "title": self.title,
            "text": self.text,
            "tables": [{name: getattr(exhibit, name) for name in _STORED} for exhibit in self.exhibits],
            "figures": [asdict(f) for f in self.figures],
            "findings": [asdict(f) for f in self.findings],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], tables: Mapping[str, Table]) -> Section:
        """Rebuild the section that `to_dict` described, with its tables."""
        return cls(
            stored["title"],
            tuple(stored["text"]),
            tuple(Exhibit(table=tables[e["name"]], **_with_tuples(e)) for e in stored["tables"]),
            tuple(_figure(f) for f in stored["figures"]),
            tuple(Finding(**f) for f in stored["findings"]),
        )


@dataclass(frozen=True)
class Report:
    """A study of one model: what was measured, next to what was published.

    Attributes:
        name: the name of the study, such as "geva2021".
        title: heading of the page.
        subtitle: one sentence below it.
        source: the paper, as a citation.
        provenance: model, corpus, seed and version of everything in it.
        sections: in reading order.
        facts: what the numbers depend on, name -> value, shown at the top.
    """

    name: str
    title: str
    subtitle: str
    source: str
    provenance: Provenance
    sections: tuple[Section, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, names in (
            ("table", [e.name for s in self.sections for e in s.exhibits]),
            ("figure", [f.name for s in self.sections for f in s.figures]),
        ):
            if doubled := sorted({name for name in names if names.count(name) > 1}):
                raise InvalidInput(f"report {self.name!r}", why=f"two {what}s are named {doubled[0]!r}")
        known = {e.name: set(e.table.column_names) for s in self.sections for e in s.exhibits}
        for figure in (f for s in self.sections for f in s.figures):
            if figure.table not in known:
                raise InvalidInput(f"figure {figure.name!r}", why=f"the report has no table {figure.table!r}")
            if missing := [c for c in _drawn(figure) if c not in known[figure.table]]:
                raise InvalidInput(f"figure {figure.name!r}", why=f"its table has no column {missing[0]!r}")

    @property
    def exhibits(self) -> dict[str, Exhibit]:
        """All tables by name."""
        return {e.name: e for s in self.sections for e in s.exhibits}

    @property
    def findings(self) -> list[Finding]:
        """All findings, in reading order."""
        return [f for s in self.sections for f in s.findings]

    def __getitem__(self, name: str) -> Table:
        """Return the table of that name.

        Raises:
            InvalidInput: the report has none.
        """
        if name not in self.exhibits:
            raise InvalidInput(f"table {name!r}", why=f"the report has {', '.join(self.exhibits) or 'none'}")
        return self.exhibits[name].table

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the tables' rows, as JSON values."""
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in _WORDS},
            "provenance": self.provenance.to_dict(),
            "facts": dict(self.facts),
            "sections": [s.to_dict() for s in self.sections],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], tables: Mapping[str, Table]) -> Report:
        """Rebuild the report that `to_dict` described, with its tables."""
        sections = tuple(Section.from_dict(s, tables) for s in stored["sections"])
        words = {name: str(stored[name]) for name in _WORDS}
        provenance = Provenance.from_dict(stored["provenance"])
        return cls(**words, provenance=provenance, sections=sections, facts=stored["facts"])


@dataclass(frozen=True)
class Screen:
    """A screen of the explorer, and the state that its address holds.

    Attributes:
        name: such as "memory" or "labs/toxicity".
        state: what the address holds after it; None is left out.
        edits: edits of the run; the explorer makes those of memories and heads, and shows nothing where others are.
    """

    name: str
    state: Mapping[str, str | None] = field(default_factory=dict)
    edits: Sequence[Any] = ()


@dataclass(frozen=True)
class Answer:
    """The answer of an analysis that consists of more than one table.

    Attributes:
        title: one line, with the model's name.
        sections: in reading order.
        provenance: the provenance of everything in it.
        main: the name of the table that `--csv` writes; the first when empty.
        data: what JSON holds instead of all texts and tables: a table, or values with a schema of their own.
        screen: the explorer's screen that shows the same, if there is one.
        drawing: computes the values of the drawing that a page shows first, if there is one.
        view: what a terminal draws by hand instead of the sections.
        remarks: what the command line says next to the answer, on stderr.
        is_fault: what was examined is damaged; the exit status of the command is then 1.
    """

    title: str
    sections: tuple[Section, ...]
    provenance: Provenance
    main: str = ""
    data: Table | Mapping[str, Any] | None = None
    screen: Screen | None = None
    drawing: Callable[[], Mapping[str, Any]] | None = None
    view: Any = None
    remarks: tuple[str, ...] = ()
    is_fault: bool = False

    @classmethod
    def of_table(
        cls,
        table: Table,
        *figures: Figure,
        note: str = "",
        percent: tuple[str, ...] = (),
        listed: int = 40,
        brief: tuple[str, ...] = (),
        data: Table | Mapping[str, Any] | None = None,
        **shown: Any,
    ) -> Answer:
        """Make an answer of one table, which JSON and CSV contain too; figures draw it under the name "table".

        Args:
            note: a paragraph below the table's title.
            percent: columns that hold shares.
            listed: rows that a terminal shows.
            brief: columns that a terminal shows.
            data: what JSON, and CSV if it is a table, hold instead.
            shown: further fields of the answer, such as `screen`.
        """
        exhibit = Exhibit("table", table, note, percent, listed=listed, brief=brief)
        section = Section(table.title, (), (exhibit,), figures)
        return cls(table.title, (section,), table.provenance, data=table if data is None else data, **shown)

    def to_dict(self, schema: str) -> dict[str, Any]:
        """Return the answer as JSON: its data, or its text and tables with the name and version of a schema."""
        if self.data is not None:
            return self.data.to_dict() if isinstance(self.data, Table) else dict(self.data)
        return {
            "schema": schema,
            "title": self.title,
            "provenance": self.provenance.to_dict(),
            "text": [text for section in self.sections for text in section.text],
            "tables": {one.name: one.table.to_dict() for section in self.sections for one in section.exhibits},
        }


def _figure(stored: Mapping[str, Any]) -> Figure:
    references = tuple(Reference(**_with_tuples(r)) for r in stored.get("references", ()))
    return Figure(**{**_with_tuples(stored), "references": references})


SCHEMA = "unembed.report/2"
"""Name of the JSON form; the number rises when a field changes its meaning or is removed."""

QUANTILES = ("q05", "q25", "q50", "q75", "q95")


def summary_line(findings: Sequence[Finding]) -> str:
    """Count the findings of each verdict, and those that agree although random weights pass them too."""
    counts = {verdict: sum(f.verdict == verdict for f in findings) for verdict in VERDICTS}
    line = (
        f"{counts['agrees']} of {len(findings)} published findings agree here, {counts['differs']} differ, "
        f"{counts['inconclusive']} inconclusive."
    )
    if not any(f.control for f in findings):
        return line
    empty = sum(not f.informative for f in findings)
    return f"{line} The same architecture with random weights passes {empty}; these are marked as not informative."


def _drawn(figure: Figure) -> Sequence[str]:
    y = [f"{stem}_{q}" for stem in figure.y for q in QUANTILES] if figure.kind == "box" else list(figure.y)
    return [figure.x, *y, *([figure.rows] if figure.rows else [])]


def _with_tuples(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass, whose tuples JSON holds as lists."""
    return {name: _tuple(value) for name, value in stored.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
