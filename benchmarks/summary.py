"""RESULTS.md as a page that a person can read: ten claims, misses first, when each was measured, then all tables in groups.

Each script replaces its own sections (`measure.record`); the first page and the order of the groups are made again from the
sections that are there, so neither can disagree with them. `python benchmarks/summary.py` makes them again, and marks
every section whose code was changed on a later day than it was measured.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

HEAD = """# Results

Each claim is a ratio: our cost over the cost of a peer, or over a limit, both measured in the same run. It is met when the ratio is at most its
target. Absolute numbers are those of one machine (2 cores of a server processor, no GPU). `make bench` measures everything again, in stages; stopped,
it goes on where it was.
"""

FIRST_PAGE = ("In short", "Missed", "When it was measured")
_STALE = "The code it measures was changed on {}, after this run."

# In this order: the heading of a group, and how the titles of its sections begin.
GROUPS: dict[str, tuple[str, ...]] = {
    "A prompt": (
        "Capture of",
        "The trace job",
        "Attribution of",
        "Top-30",
        "Events of",
        "Start-up",
        "Short prompts",
        "Long prompts",
    ),
    "Causality": ("Patching", "Ablation", "Screening", "Causality"),
    "Memory and size": ("Peak memory", "Cost by size", "A sweep whose"),
    "Sweeps and indexes": ("Sweep", "Fast sweep", "Index", "Ranking"),
    "Circuits": ("Composition", "Copying", "Exact top", "Head scores", "Circuit of"),
    "The Jacobian lens": ("Fitting a Jacobian lens", "Readings of", "Lists without"),
    "Clusters, concepts, reports": ("Clustering", "Automatic", "Report", "Figs."),
    "Control": ("The decision", "Generation", "Suppressing", "Early exit", "Leaving early", "The promise"),
    "The explorer": ("The explorer",),
    "Robustness": ("Faults",),
}

SOURCES: dict[str, tuple[str, ...]] = {
    "A prompt": ("stream", "trace", "lens.py", "logit_attribution.py", "memories", "models"),
    "Causality": ("causality", "stream"),
    "Memory and size": ("stream", "models", "sweeps"),
    "Sweeps and indexes": ("sweeps", "index", "gallery", "stream"),
    "Circuits": ("attention", "circuit_graph"),
    "The Jacobian lens": ("jacobian", "sweeps", "stream"),
    "Clusters, concepts, reports": ("memories", "concepts", "reports"),
    "Control": ("control",),
    "The explorer": ("server",),
    "Robustness": ("index", "sweeps", "server"),
}
"""What of the package the sections of a group measure."""


class Headline(NamedTuple):
    """A claim of the first page."""

    section: str
    """How the title of the section begins."""
    claim: str
    """How the claim begins."""
    sentence: str
    ours: str = ""
    """The name of our median, and of the peer's; without them the claim's note has both numbers."""
    peer: str = ""
    cells: int = 1
    """How many times the peer's number is taken: where it was timed on a part of the job."""


HEADLINES = (
    Headline("Start-up of commands", "index triggers", "A command that runs no model: CPU time, to 0.8 s"),
    Headline("Start-up of commands", "trace", "A command that runs one: CPU time, to imports and one forward pass"),
    Headline(
        "Leaving early in a model of GPT-2",
        "head and loop too",
        "Early exit saves, of the layers' time, at least 0.6 of the layers that it skips",
    ),
    Headline(
        "Capture of a prompt of 32 tokens",
        "capture",
        "Capture of every stream and coefficient, to a plain forward pass",
        "unembed",
        "plain forward",
    ),
    Headline(
        "The trace job",
        "readings",
        "A whole trace (logit lens, sub-updates, events), to the matrix products it needs",
        "unembed",
        "forward body + logit product",
    ),
    Headline(
        "Attribution of one logit",
        "to one plain",
        "Attribution of one logit to 36,864 memories, to a plain forward pass",
        "unembed",
        "plain forward",
    ),
    Headline(
        "Patching resid_pre",
        "time, to TransformerLens",
        "Patching the stream of 12 layers by 20 positions, to TransformerLens",
        "ours, 240 cells",
        "TransformerLens 4.3.0, 24 cells",
        10,
    ),
    Headline("Peak memory", "load + trace", "Peak memory of loading and tracing, to plain transformers"),
    Headline(
        "Sweep beside TransformerLens, GPT-2 small's shape",
        "sweep",
        "Top triggers of every key over a corpus, to TransformerLens",
        "sweep",
        "TransformerLens",
    ),
    Headline(
        "Composition scores of GPT-2 small's size",
        "time",
        "Q, K and V composition of all pairs of 144 heads, to TransformerLens",
    ),
)


@dataclass(frozen=True)
class Row:
    """One claim of a section's table."""

    claim: str
    ratio: str
    target: str
    note: str

    @property
    def is_missed(self) -> bool:
        """Whether the table calls the target missed."""
        return self.note.startswith("missed")


def sections(text: str) -> dict[str, str]:
    """The sections of RESULTS.md by title, without what this module adds."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    ours = rf"^(# .+|{_STALE.format('.+')})\n"
    bodies = (re.sub(ours, "", body, flags=re.MULTILINE) for body in parts[1::2])
    found = {title: body.strip() for title, body in zip(parts[::2], bodies, strict=True)}
    return {title: body for title, body in found.items() if title not in FIRST_PAGE}


def rows(body: str) -> list[Row]:
    """The claims of a section's table; none where its table is of another kind."""
    lines = re.findall(r"^\|(.+)\|$", body, flags=re.MULTILINE)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    if not cells or cells[0][:3] != ["claim", "ratio", "target"]:
        return []
    return [Row(*cell[:4]) for cell in cells[2:]]


def measured_on(body: str) -> str:
    """The date of a section; empty where it has none."""
    date = re.search(r"^\d{4}-\d\d-\d\d(?= · )", body, flags=re.MULTILINE)
    return date.group() if date else ""


def numbers(headline: Headline, row: Row, body: str) -> tuple[str, str]:
    """Our number and the peer's or the limit's, with units; empty where the section does not have them."""
    if headline.ours:
        medians = "".join(re.findall(r"^Medians: (.*)", body, flags=re.MULTILINE))
        found = [re.search(rf"(?:^|, ){re.escape(name)} ([\d.e+]+) ms", medians) for name in headline[3:5]]
        ours, peer = (
            float(one[1]) * times if one else None for one, times in zip(found, (1, headline.cells), strict=True)
        )
        return _duration(ours), _duration(peer)
    note = row.note.partition(" · ")[2]
    saved = re.match(r"(-?[\d.]+) % of time, ([\d.]+) % of layers", note)
    if saved:
        return f"{saved[1]} %", f"{0.6 * float(saved[2]):.3g} %"
    both = re.search(r"([\d.]+)( [A-Za-z]+)? (?:and|to) ([\d.]+) (\w+)", note)
    if both:
        unit = both[4]
        return f"{both[1]} {unit}", f"{both[3]} {unit}"
    one = re.match(r"([\d.]+) (\w+)", note)
    return (f"{one[1]} {one[2]}", f"{float(one[1]) / float(row.ratio):.3g} {one[2]}") if one else ("", "")


def _duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return ""
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def group_of(title: str) -> str | None:
    """The group that a section belongs to."""
    return next((group for group, beginnings in GROUPS.items() if title.startswith(beginnings)), None)


def page(found: dict[str, str], changed: dict[str, str]) -> str:
    """RESULTS.md of these sections.

    Args:
        found: their text by title.
        changed: for each group, the day on which the code that it measures was last changed.
    """
    stale = {
        title: day
        for title, body in found.items()
        if (day := changed.get(group_of(title) or "", "")) > measured_on(body)
    }
    lines = [
        HEAD,
        "## In short",
        "",
        "| | ours | peer or limit | ratio | target | | measured |",
        "|---|---|---|---|---|---|---|",
    ]
    shown = []
    for headline in HEADLINES:
        title = next((title for title in found if title.startswith(headline.section)), None)
        row = next((row for row in rows(found[title]) if row.claim.startswith(headline.claim)), None) if title else None
        if title is not None and row is not None:
            verdict = row.note.split(" · ")[0]
            ours, peer = numbers(headline, row, found[title])
            when = measured_on(found[title]) + (f"; code changed {stale[title]}" if title in stale else "")
            cells = (headline.sentence, ours, peer, row.ratio, row.target, verdict, when)
            shown.append((not row.is_missed, f"| {' | '.join(cells)} |"))
    lines += [line for _, line in sorted(shown, key=lambda one: one[0])]
    lines += ["", *_missed(found), "", *_dates(found, changed, stale), ""]
    left = dict(found)
    for group, beginnings in {**GROUPS, "Others": ("",)}.items():
        titles = [title for title in left if title.startswith(beginnings)]
        if titles:
            lines += [f"# {group}", ""]
        for title in titles:
            mark = [_STALE.format(stale[title]), ""] if title in stale else []
            lines += [f"## {title}", "", *mark, left.pop(title), ""]
    return "\n".join(lines).rstrip() + "\n"


def _dates(found: dict[str, str], changed: dict[str, str], stale: dict[str, str]) -> list[str]:
    """For each group, when its code was changed, and when each of its tables was last measured."""
    lines = [
        "## When it was measured",
        "",
        "A section is as old as its last run. Where the code that it measures was changed on a later day, it says so.",
        "",
        "| group | code changed | measured since | not measured since |",
        "|---|---|---|---|",
    ]
    for group in (*GROUPS, None):
        titles = {title: measured_on(found[title]) or "day not recorded" for title in found if group_of(title) == group}
        cells = [
            "; ".join(f"{title} ({day})" for title, day in titles.items() if (title in stale) == is_stale)
            for is_stale in (False, True)
        ]
        if titles:
            lines.append(f"| {group or 'Others'} | {changed.get(group or '', '')} | {' | '.join(cells)} |")
    return lines


def changes(root: Path) -> dict[str, str]:
    """The day of the last commit to what each group measures, from git."""
    days = {}
    for group, names in SOURCES.items():
        words = ["git", "log", "-1", "--format=%cs", "--", *(f"src/unembed/{name}" for name in names)]
        days[group] = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    return days


def stated_changes(text: str) -> dict[str, str]:
    """The days that RESULTS.md states."""
    found = re.findall(r"^\| ([^|]+) \| (\d{4}-\d\d-\d\d) \|", text, flags=re.MULTILINE)
    return {group: day for group, day in found if group in GROUPS}


def _missed(found: dict[str, str]) -> list[str]:
    """A row for each section in which a claim misses its limit."""
    lines = [
        "## Missed",
        "",
        "| section | claims missed | the first | ratio | limit | measured |",
        "|---|---|---|---|---|---|",
    ]
    for title, body in found.items():
        claims = rows(body)
        missed = [row for row in claims if row.is_missed]
        if missed:
            first = missed[0]
            counts = f"{len(missed)} of {len(claims)}"
            lines.append(
                f"| {title} | {counts} | {first.claim} | {first.ratio} | {first.target} | {measured_on(body)} |"
            )
    return lines


if __name__ == "__main__":
    results = Path(__file__).parent / "RESULTS.md"
    contents = sections(results.read_text(encoding="utf-8"))
    results.write_text(page(contents, changes(results.parents[1])), encoding="utf-8")
