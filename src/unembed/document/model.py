"""Define the parts of a report, as dataclasses that can be saved: sections of text, tables, figures and findings.

A figure contains no image. It names the table and columns to draw, so that it can be drawn from the saved tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from unembed.errors import InvalidInput
from unembed.results import Provenance, Table

SUFFIXES = ("_low", "_high", "_n", "_published")
"""Suffixes of columns that belong to another column, such as the ends of its intervals."""
ROW_NAMES = (
    *("layer", "head", "position", "order", "offset", "bin", "from", "to", "cluster", "writer", "reader"),
    *("occurrences", "terms", "times", "triggers", "examples"),
)
"""Names of numeric columns that identify a row, or give its sample size."""
_STORED = ("name", "note", "percent", "folded", "apart")
"""Attributes of an `Exhibit` that are stored in the report's JSON file."""
_WORDS = ("name", "title", "subtitle", "source")
"""Attributes of a `Report` that are stored as plain text in its JSON file."""
KINDS = ("line", "bar", "stacked", "box", "heat", "scatter", "text")


Verdict = Literal["agrees", "differs", "inconclusive", "not applicable"]
"""Outcome of a test: "inconclusive" if the sample is too small, "not applicable" if the model lacks what is tested."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
EXTENSION = "not published: an extension of the claim to models of this depth"
"""The field `published` of a finding whose claim the paper makes only for models with fewer layers."""


@dataclass(frozen=True)
class Finding:
    """One row of a report's findings: a published claim, its test, and the outcome here and on random weights.

    Attributes:
        claim: the statement in the paper's words.
        source: where the paper makes it, such as "Sec. 4.1, Fig. 4".
        quantity: the quantity that is measured to test the claim.
        published: the paper's value of the quantity, in words.
        here: the value measured on this model, as a sentence that can be read without a table.
        test: the criterion in words, and the reason for its threshold.
        verdict: the outcome of the test.
        control: the same measurement on the same architecture with random weights; empty if it was not made.
        informative: False if random weights pass the test too.
        explanation: for a finding that differs: the measured facts that explain it, or that none do.
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

    @property
    def extension(self) -> bool:
        """True if the paper states the claim only of models with fewer layers."""
        return self.published == EXTENSION


@dataclass(frozen=True)
class Exhibit:
    """A table of a report.

    Columns `x`, `x_low`, `x_high` are shown as one cell "x [low, high]", `x_n` as its sample size, `x_published` as
    the paper's number next to it. Columns named `token` or `tokens`, or ending in `_token` or `_tokens`, contain token
    text; those ending in `_text` contain sentences, which are wrapped. A page shows shares, and each group of columns
    in `apart`, as a separate table, so that each table has one unit.

    Attributes:
        name: file name without extension; unique in the report.
        table: the rows and columns.
        note: one paragraph below the title.
        percent: columns (without suffix) of shares, to be shown in percent.
        folded: True for a long table that a page shows collapsed at first.
        apart: groups of columns (without suffix) that have another unit.
        listed: number of rows that a terminal shows; other output formats have all rows.
        brief: columns that a terminal shows; all when empty.
        unbroken: columns whose cells a terminal does not wrap.
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
        """Split the columns into groups with one unit each; a page shows each group as a separate table.

        Returns:
            For each group, the names of its columns (without suffix): those that identify a row, then those of the
            unit.
        """
        names = self.table.column_names
        shown = [n for n in names if not (n.endswith(SUFFIXES) and n.rsplit("_", 1)[0] in names)]
        rows = list(self.table.rows())
        words = {n for n in shown if rows and any(isinstance(row[n], str | list | tuple | bool) for row in rows)}
        keys = list(itertools.takewhile(lambda n: n in words or n in ROW_NAMES, shown))
        groups: dict[int, list[str]] = {}
        unit = 0
        for name in shown[len(keys) :]:
            if name not in words:  # a text column goes to the table of the numeric column before it
                ours = next((i for i, group in enumerate(self.apart, start=2) if name in group), 0)
                unit = 1 if name in self.percent else ours
            groups.setdefault(unit, []).append(name)
        return [keys + group for group in groups.values()] or [keys]


@dataclass(frozen=True)
class Reference:
    """Published values drawn in a figure: a dashed line, a band between two ends, or a range of the x axis.

    Attributes:
        label: the name in the legend, with the paper's model.
        low: the values, or the lower ends of a band; empty for a range of the x axis.
        high: the upper ends of a band; empty for a line.
        at: the position of each value on the x axis as a fraction, 0 for the first x value and 1 for the last, because
            the paper's models have other numbers of layers; for a range of the x axis, its two ends; empty for a
            horizontal line.
        series: the index in `Figure.y` of the column that measures the same quantity; -1 if no column does.
    """

    label: str
    low: tuple[int | float, ...] = ()
    high: tuple[int | float, ...] = ()
    at: tuple[int | float, ...] = ()
    series: int = -1

    def __post_init__(self) -> None:
        whole = len(self.at) == 2 if not self.low else len(self.low) == max(len(self.at), 1)
        if not whole or (self.high and len(self.high) != len(self.low)):
            raise InvalidInput(
                f"reference {self.label!r}", why="`low` and `high` need one value for each position in `at`"
            )


@dataclass(frozen=True)
class Figure:
    """A drawing of some columns of one table of the report.

    Attributes:
        name: file name without extension; unique in the report.
        title: one line above the drawing.
        kind: "line" (a line for each column of `y`, with a band if columns `_low` and `_high` exist, and a dashed line
            if `_published` does), "bar" (the same, as bars next to each other), "stacked" (bars on top of each other),
            "box" (box plots; `y` has names to which `_q05 _q25 _q50 _q75 _q95` are added to get columns), "heat" (a
            heat map; `x` and `rows` are the axes, `y[0]` the colour), "scatter" (`y[0]` over `x`), "text" (the tokens
            of column `x` as running text, shaded by `y[0]`).
        table: name of the exhibit whose columns are drawn.
        x: column for the x axis.
        y: columns to draw, in the order of the legend.
        labels: names of these columns in the legend.
        x_label: title of the x axis.
        y_label: title of the y axis.
        percent: True if the y values are shares, to be shown in percent.
        rows: for "heat", column for the y axis.
        logarithmic: True for a logarithmic y axis.
        y_range: ends of the y axis, or of the colour scale in "heat"; chosen from the data when None.
        note: caption below the figure.
        equal: for "scatter", True if both axes have the same range, centred on zero.
        references: published values to draw.
        published: if published values cannot be drawn, a sentence for the caption that gives the reason.
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
        text: paragraphs; text between backticks is shown as code.
        exhibits: the tables.
        figures: the figures, whose tables may be in this section or in others.
        findings: published claims, and whether they hold for this model.
    """

    title: str
    text: tuple[str, ...] = ()
    exhibits: tuple[Exhibit, ...] = ()
    figures: tuple[Figure, ...] = ()
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the section as a dict for JSON, without the rows of its tables."""
        return {
            "title": self.title,
            "text": self.text,
            "tables": [{name: getattr(exhibit, name) for name in _STORED} for exhibit in self.exhibits],
            "figures": [asdict(f) for f in self.figures],
            "findings": [asdict(f) for f in self.findings],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], tables: Mapping[str, Table]) -> Section:
        """Make a section from the result of `to_dict` and the tables by name."""
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
        subtitle: one sentence below the title.
        source: the paper, as a citation.
        provenance: model, corpus, seed and version with which the report was computed.
        sections: the sections, in reading order.
        facts: settings and sizes that the results depend on, by name; shown at the top.
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
            InvalidInput: the report has no table of that name.
        """
        if name not in self.exhibits:
            raise InvalidInput(f"table {name!r}", why=f"tables of this report: {', '.join(self.exhibits) or 'none'}")
        return self.exhibits[name].table

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict for JSON, without the rows of its tables."""
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in _WORDS},
            "provenance": self.provenance.to_dict(),
            "facts": dict(self.facts),
            "sections": [s.to_dict() for s in self.sections],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], tables: Mapping[str, Table]) -> Report:
        """Make a report from the result of `to_dict` and the tables by name."""
        sections = tuple(Section.from_dict(s, tables) for s in stored["sections"])
        words = {name: str(stored[name]) for name in _WORDS}
        provenance = Provenance.from_dict(stored["provenance"])
        return cls(**words, provenance=provenance, sections=sections, facts=stored["facts"])


@dataclass(frozen=True)
class Screen:
    """A screen of the explorer on which a result can be seen.

    Attributes:
        name: the screen, such as "memory" or "labs/toxicity".
        state: query parameters of the page's URL; None is left out.
        edits: edits of the forward pass. The explorer supports edits of memories and heads only; with others, no link
            is printed.
    """

    name: str
    state: Mapping[str, str | None] = field(default_factory=dict)
    edits: Sequence[Any] = ()


@dataclass(frozen=True)
class Answer:
    """The result of an analysis: text, tables and figures, which the command line and the explorer can show.

    Attributes:
        title: one line, with the model's name.
        sections: the sections, in reading order.
        provenance: model, corpus, seed and version with which the result was computed.
        main: the name of the table that `--csv` prints; the first table when empty.
        data: the JSON output, if it is not made from the sections: a table, or a dict with its own schema.
        screen: the explorer's screen that shows the same result, if there is one.
        drawing: function that returns the data of an interactive drawing, which an HTML page shows first.
        view: object that `cli.drawings` draws in the terminal instead of the sections.
        remarks: sentences that the command line prints on stderr.
        is_fault: True if the analysis found damage; the exit status of the command is then 1.
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
        """Make an answer of one table, which is also the JSON and CSV output.

        Args:
            table: the table; figures refer to it by the name "table".
            figures: figures of the table.
            note: a paragraph below the table's title.
            percent: columns of shares, to be shown in percent.
            listed: number of rows that a terminal shows.
            brief: columns that a terminal shows.
            data: the JSON output (and CSV output, if it is a table) to use instead of the table.
            shown: further fields of the answer, such as `screen`.
        """
        exhibit = Exhibit("table", table, note, percent, listed=listed, brief=brief)
        section = Section(table.title, (), (exhibit,), figures)
        return cls(table.title, (section,), table.provenance, data=table if data is None else data, **shown)

    def to_dict(self, schema: str) -> dict[str, Any]:
        """Return the answer as a dict for JSON: `data`, or else its text and tables with the name of a schema."""
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
"""The schema of a report's JSON file; its number increases when a field is removed or changes its meaning."""

QUANTILES = ("q05", "q25", "q50", "q75", "q95")


def summary_line(findings: Sequence[Finding]) -> str:
    """Return a sentence with the number of findings by verdict, and the number that random weights pass too."""
    published, extended = ([f for f in findings if f.extension is extension] for extension in (False, True))
    line = f"{_counted(published, 'published findings')}."
    if extended:
        line += f" {_counted(extended, 'extensions to models of this depth')}."
    if not any(f.control for f in findings):
        return line
    empty = sum(not f.informative for f in findings)
    return f"{line} The same architecture with random weights passes {empty}; these are marked as not informative."


def _counted(findings: Sequence[Finding], what: str) -> str:
    agree, differ, open_, other = (sum(f.verdict == verdict for f in findings) for verdict in VERDICTS)
    line = f"{agree} of {len(findings)} {what} agree here, {differ} differ, {open_} inconclusive"
    return f"{line}, {other} not applicable" if other else line


def _drawn(figure: Figure) -> Sequence[str]:
    y = [f"{stem}_{q}" for stem in figure.y for q in QUANTILES] if figure.kind == "box" else list(figure.y)
    return [figure.x, *y, *([figure.rows] if figure.rows else [])]


def _with_tuples(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert lists to tuples, because JSON stores the tuples of a dataclass as lists."""
    return {name: _tuple(value) for name, value in stored.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
