"""Write a report as one HTML file without external files, for light and dark mode, and for small screens."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import Any

from unembed.document.charts import draw
from unembed.document.model import Exhibit, Figure, Finding, Report, Section, summary_line
from unembed.document.svg import STYLE as FIGURE_STYLE
from unembed.results import Table, as_written, common_decimals, format_number, html_table, visible_html
from unembed.results.table import holds_tokens

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf8; --card: #fff; --ink: #1d2433; --soft: #667085; --line: #e4e2dd;
  --accent: #0b7a4b; --against: #c2570c; --wash: #f3f1ec; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --card: #1b1f27; --ink: #e8eaf0; --soft: #98a2b3;
  --line: #2d333f; --accent: #4cc38a; --against: #f29a4b; --wash: #20252e; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: clamp(1.5rem, 5vw, 4rem) clamp(1rem, 4vw, 2rem) 5rem; max-width: 74rem;
  background: var(--paper); color: var(--ink); font: 16px/1.6 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: clamp(1.55rem, 4.5vw, 2.3rem); line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.015em;
  text-wrap: balance; max-width: 50rem; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 .5rem; letter-spacing: -.01em; }
h3 { font-size: 1rem; margin: 0 0 .35rem; font-weight: 620; }
p { margin: 0 0 .8rem; max-width: 46rem; } .soft, figcaption { color: var(--soft); }
a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: .2em; }
code, bdi, .id { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .9em; }
bdi.prose { font-family: inherit; font-size: 1em; } .mark { opacity: .45; }
header .source { color: var(--soft); font-size: .95rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem 1.4rem;
  margin: 1.6rem 0; padding: 1rem 0; border-block: 1px solid var(--line); }
.facts dt { color: var(--soft); font-size: .8rem; } .facts dd { margin: 0; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; font-weight: 560; } .facts .long { grid-column: 1 / -1; }
nav ul { columns: 2 16rem; margin: 1rem 0 0; padding: 0; list-style: none; max-width: 50rem; }
nav li { break-inside: avoid; padding: .1rem 0; }
section { margin-top: 3.2rem; scroll-margin-top: 1rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1.2rem;
  margin: 1.1rem 0; align-items: start; }
figure { max-width: 40rem; margin: 0; padding: 1rem 1rem .7rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }
figcaption { font-size: .85rem; margin-top: .4rem; line-height: 1.45; }
.findings { display: grid; gap: .8rem; margin: 1.1rem 0; }
.finding { display: grid; grid-template-columns: 1fr 9.5rem; gap: .5rem 1.6rem; padding: .9rem 1.1rem;
  background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--soft); border-radius: 10px; }
.finding p { margin: 0; } .finding small { color: var(--soft); display: block; font-size: .78rem; }
.finding.yes { border-left-color: var(--accent); } .finding.no { border-left-color: var(--against); }
.verdict { font-weight: 620; font-size: .85rem; white-space: nowrap; align-self: start; color: var(--soft); }
.verdict small { white-space: normal; }
.claim p { font-weight: 560; max-width: none; } .outcome, .test, .why { grid-column: 1 / -1; }
.outcome { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 14rem), 1fr)); gap: .5rem 1.6rem; }
.finding .why { max-width: none; font-size: .92rem; } .finding .why small { display: inline; }
.finding .test { color: var(--soft); font-size: .85rem; max-width: none; } .finding .test small { display: inline; }
.verdicts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 0 2rem; }
.verdicts ul { margin: .2rem 0 1rem; padding-left: 1.1rem; font-size: .92rem; } .verdicts small { color: var(--soft); }
.summary { margin-top: 1rem; }
.yes .verdict { color: var(--accent); } .no .verdict { color: var(--against); }
.tally { display: flex; height: .55rem; gap: 2px; border-radius: 99px; overflow: hidden; max-width: 30rem;
  margin: .6rem 0 .3rem; }
.tally i { display: block; } .tally .yes { background: var(--accent); } .tally .no { background: var(--against); }
.tally .open { background: var(--soft); opacity: .5; }
.exhibit { margin: 1.2rem 0; } .scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 10px;
  -webkit-overflow-scrolling: touch; background: linear-gradient(to left, var(--card) 40%, transparent) right / 3rem
  100% no-repeat local, linear-gradient(to left, #0003, transparent) right / .9rem 100% no-repeat scroll, var(--card); }
.scroll + .scroll { margin-top: .6rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; width: 100%; }
th { color: var(--soft); font-weight: 520; text-align: left; padding: .5rem .8rem; white-space: nowrap;
  font-size: .82rem; background: var(--wash); }
td { padding: .38rem .8rem; border-top: 1px solid var(--line); vertical-align: top; }
th.n, td.n { text-align: right; } td.n, td.name { white-space: nowrap; }
td .range { color: var(--soft); font-size: .85em; }
.wide th, .wide td { padding-inline: .5rem; } .wide th { white-space: normal; vertical-align: bottom; }
.wide td .range { display: block; font-size: .76em; } .wide td.prose { min-width: 11rem; }
td.published, th.published { color: var(--soft); } td.prose { min-width: 17rem; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 620; padding: .2rem 0; } summary span { color: var(--soft); font-weight: 400; }
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--line); color: var(--soft);
  font-size: .85rem; overflow-wrap: anywhere; }
@media (max-width: 44rem) { .finding { grid-template-columns: minmax(0, 1fr); } .verdict { order: -1; } section {
  margin-top: 2.4rem; } figure { padding: .7rem .5rem .5rem; } h3 { padding: 0 .3rem; } }
@media print { body { max-width: none; } figure, .finding { break-inside: avoid; } }
"""
_VERDICTS = {
    "agrees": ("yes", "✓ agrees"),
    "differs": ("no", "✕ differs"),
    "inconclusive": ("open", "· inconclusive"),
    "not applicable": ("open", "– not applicable"),
}
_INTERVALS, _COLUMNS = 2, 8
"""A table with more than `_INTERVALS` columns with intervals, or more than `_COLUMNS` columns, is wide: to save room,
intervals are below their numbers."""
EXTENSIONS = "Extensions to models of this depth"
_EXTENDED = (
    "The paper states these findings of models with fewer layers. Here each is put as a question to this model, with a "
    "test of its own; they are not published findings."
)
_LONG = 18
"""An entry of `Report.facts` with more characters than this gets a line of its own."""


def page(report: Report, drawing: str = "") -> str:
    """Return the HTML page of a report.

    Args:
        drawing: HTML to show first; it may contain scripts.
    """
    sections = "".join(_section(i, section, report) for i, section in enumerate(report.sections))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(report.title)}</title><style>{_STYLE}{FIGURE_STYLE}</style></head><body>"
        f"{_header(report)}<main>{drawing}{sections}</main>"
        f"<footer><p>{_prose(report.provenance.line())}</p></footer></body></html>\n"
    )


def _prose(text: str) -> str:
    return f'<bdi class="prose">{visible_html(text, prose=True)[5:-6]}</bdi>'


def _words(text: str) -> str:
    """Format minus signs and percentages in text that this package wrote; text from a corpus must stay unchanged."""
    return re.sub(r"(?<=\d) %", "&nbsp;%", _prose(as_written(text)))


def _title_of(text: str) -> str:
    return html.escape(as_written(text))


def _paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph: text between backticks becomes code, and invisible characters are marked."""
    parts = re.split(r"`([^`]*)`", text)
    inner = "".join(f"<code>{html.escape(p)}</code>" if i % 2 else _words(p) for i, p in enumerate(parts) if p)
    return f"<p{f' class={kind}' if kind else ''}>{inner}</p>"


def _header(report: Report) -> str:
    facts = "".join(
        f"<div{' class=long' if len(str(value)) > _LONG else ''}><dt>{html.escape(name)}</dt>"
        f"<dd>{_prose(format_number(value))}</dd></div>"
        for name, value in report.facts.items()
    )
    contents = "".join(f'<li><a href="#s{i}">{html.escape(s.title)}</a></li>' for i, s in enumerate(report.sections))
    return (
        f"<header><h1>{html.escape(report.title)}</h1>{_paragraph(report.subtitle)}"
        f"{_paragraph(report.source, 'source')}<dl class='facts'>{facts}</dl>{_tally(report.findings)}"
        f"<nav aria-label='Contents'><ul>{contents}</ul></nav></header>"
    )


def _tally(findings: list[Finding]) -> str:
    """Return the summary: findings by verdict, with a note at those that a model with random weights passes too."""
    if not findings:
        return ""
    published, extended = ([f for f in findings if f.extension is extension] for extension in (False, True))
    counts = {verdict: sum(f.verdict == verdict for f in published) for verdict in _VERDICTS}
    bar = "".join(f'<i class="{_VERDICTS[v][0]}" style="flex:{n}"></i>' for v, n in counts.items() if n)
    apart = f"<h2>{EXTENSIONS}</h2>{_paragraph(_EXTENDED, 'soft')}{_by_verdict(extended)}" if extended else ""
    return (
        f'<section class="summary"><h2>Summary</h2><div class="tally" aria-hidden="true">{bar}</div>'
        f'<p class="soft">{html.escape(summary_line(findings))}</p>{_by_verdict(published)}{apart}</section>'
    )


def _by_verdict(findings: Sequence[Finding]) -> str:
    groups = []
    for verdict, (kind, label) in _VERDICTS.items():
        claims = [f for f in findings if f.verdict == verdict]
        items = "".join(
            f"<li>{_words(f.claim)}{'' if f.informative else ' <small>random weights pass this too</small>'}</li>"
            for f in claims
        )
        if claims:
            groups.append(f'<div class="{kind}"><h3 class="verdict">{label} ({len(claims)})</h3><ul>{items}</ul></div>')
    return f'<div class="verdicts">{"".join(groups)}</div>'


def _section(number: int, section: Section, report: Report) -> str:
    figures = "".join(_figure(figure, report) for figure in section.figures)
    findings = "".join(_finding(finding) for finding in section.findings if not finding.extension)
    extended = "".join(_finding(finding) for finding in section.findings if finding.extension)
    return (
        f'<section id="s{number}"><h2>{html.escape(section.title)}</h2>'
        + "".join(_paragraph(text) for text in section.text)
        + (f'<div class="findings">{findings}</div>' if findings else "")
        + (f'<h3>{EXTENSIONS}</h3><div class="findings">{extended}</div>' if extended else "")
        + (f'<div class="figures">{figures}</div>' if figures else "")
        + "".join(_exhibit(exhibit) for exhibit in section.exhibits)
        + "</section>"
    )


def _figure(figure: Figure, report: Report) -> str:
    table = report[figure.table]
    notes = [figure.note] if figure.note else []
    if figure.references or any(_has_published(table, name) for name in figure.y):
        notes.append("Dashed: published.")
    elif figure.published:
        notes.append(figure.published)
    if figure.kind == "box":
        notes.append("Boxes hold the middle half with the median, whiskers nine tenths.")
    elif figure.kind in ("line", "bar") and any(f"{name}_low" in table.column_names for name in figure.y):
        notes.append("Bands and whiskers: 95 % intervals.")
    caption = f"<figcaption>{_words(' '.join(notes))}</figcaption>" if notes else ""
    return f"<figure><h3>{_title_of(figure.title)}</h3>{draw(figure, table)}{caption}</figure>"


def _has_published(table: Table, name: str) -> bool:
    column = f"{name}_published"
    return column in table.column_names and any(row[column] is not None for row in table.rows())


def _finding(finding: Finding) -> str:
    kind, words = _VERDICTS[finding.verdict]
    cells = [f"<div><small>Here</small>{_paragraph(finding.here)}</div>"]
    in_words = finding.published in ("", "in words", finding.claim)
    if not in_words and not finding.extension:
        cells.append(f"<div><small>Published</small>{_paragraph(finding.published)}</div>")
    if finding.control:
        cells.append(f"<div><small>Random weights</small>{_paragraph(finding.control)}</div>")
    note = "" if finding.informative else "<small>not informative: random weights pass too</small>"
    sources = [finding.source, "published without a number" if in_words and finding.published else ""]
    source = f"<small>{html.escape(', '.join(filter(None, sources)))}</small>" if any(sources) else ""
    why = f'<p class="why"><small>Why</small> {_words(finding.explanation)}</p>' if finding.explanation else ""
    test = f'<p class="test"><small>Test</small> {_words(finding.test)}</p>' if finding.test else ""
    return (
        f'<div class="finding {kind}"><div class="claim">{_paragraph(finding.claim)}{source}</div>'
        f'<div class="verdict">{words}{note}</div><div class="outcome">{"".join(cells)}</div>{why}{test}</div>'
    )


def _exhibit(exhibit: Exhibit) -> str:
    title = _title_of(exhibit.table.title)
    note = _paragraph(exhibit.note, "soft") if exhibit.note else ""
    body = note + "".join(_table(exhibit, shown) for shown in exhibit.by_unit())
    if exhibit.folded:
        rows = f"{len(exhibit.table):,} rows"
        return f'<details class="exhibit"><summary>{title} <span>{rows}</span></summary>{body}</details>'
    return f'<div class="exhibit"><h3>{title}</h3>{body}</div>'


def _table(exhibit: Exhibit, shown: list[str]) -> str:
    names, rows = exhibit.table.column_names, list(exhibit.table.rows())
    sizes = [f"{name}_n" for name in shown if f"{name}_n" in names]
    # If in every row all columns have the same sample size, the sizes are shown only once, as the last column.
    together = len(sizes) > 1 and all(len({row[size] for size in sizes}) == 1 for row in rows)
    columns = [column for name in shown for column in _columns(exhibit, name, rows, sized=not together)]
    if together:
        columns.append(("n", "n", [format_number(row[sizes[0]]) for row in rows]))
    head, kinds, cells = zip(*columns, strict=True)
    wide = sum(f"{name}_low" in names for name in shown) > _INTERVALS or len(head) > _COLUMNS
    return (
        f'<div class="{"scroll wide" if wide else "scroll"}">{html_table(head, zip(*cells, strict=True), kinds)}</div>'
    )


def _columns(
    exhibit: Exhibit, name: str, rows: list[dict[str, Any]], *, sized: bool
) -> list[tuple[str, str, list[str]]]:
    """Return a column, and those that belong to it (sample sizes, published values), as (heading, CSS class, cells).

    An interval is written in the same cell as its value.
    """
    percent, values = name in exhibit.percent, [row[name] for row in rows]
    numeric = all(isinstance(value, int | float | None) for value in values)
    decimals = common_decimals(values, percent=percent)

    def cell(row: dict[str, Any]) -> str:
        if not isinstance(row[name], int | float | None):
            return _text(name, row[name])
        ends = [row.get(f"{name}_{end}") for end in ("low", "high")]
        shown = [format_number(value, percent=percent, decimals=decimals) for value in (row[name], *ends)]
        if any(end is None or math.isnan(end) for end in ends):
            return shown[0]
        return f'{shown[0]} <span class="range">[{", ".join(end.removesuffix(" %") for end in shown[1:])}]</span>'

    long = name.endswith(("_text", "_tokens")) or name in ("text", "tokens")
    kind = "n" if numeric else "prose" if long else "name" if name in ("memory", "head") else ""
    columns = [(html.escape(_title(name, numeric)), kind, list(map(cell, rows)))]
    if sized and f"{name}_n" in exhibit.table.column_names:
        columns.append(("n", "n", [format_number(row[f"{name}_n"]) for row in rows]))
    if _has_published(exhibit.table, name):
        published = [format_number(row[f"{name}_published"], percent=percent) for row in rows]
        columns.append(("published", "n published", published))
    return columns


def _title(name: str, numeric: bool) -> str:
    """Return the heading of a column, without the suffix that marks tokens or text."""
    return (name if numeric else re.sub(r"_(token|text)(s?)$", "", name)).replace("_", " ") or name


def _text(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(_text(name, item) for item in value)
    if isinstance(value, int | float | None):
        return html.escape(format_number(value))
    return visible_html(value) if holds_tokens(name) else _prose(str(value))
