"""RESULTS.md as a page that a person can read: what is claimed, what is missed, then the tables in groups.

Each script replaces its own sections (`measure.record`); the first page and the order of the groups are made again from the
sections that are there, so neither can disagree with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD = """# Results

Ratios to a peer or a limit measured in the same run; absolute times are those of one machine (2 cores of a server
processor, no GPU). `make bench` measures all of it again. A ratio at or below its limit is met.
"""

# In this order: the heading of a group, and how the titles of its sections begin.
GROUPS: dict[str, tuple[str, ...]] = {
    "A prompt": ("Capture of", "The trace job", "Attribution of", "Top-30", "Events of", "Start-up"),
    "Causality": ("Patching", "Ablation", "Screening", "Causality"),
    "Memory and size": ("Peak memory", "Cost by size", "A sweep whose"),
    "Sweeps and indexes": ("Sweep", "Fast sweep", "Index"),
    "Circuits": ("Composition", "Copying", "Exact top", "Head scores"),
    "Clusters, concepts, reports": ("Clustering", "Automatic", "Report", "Figs."),
    "Control": ("The decision", "Generation", "Suppressing", "Early exit", "Leaving early", "The promise"),
    "The explorer": ("The explorer",),
    "Robustness": ("Faults",),
}

# The claims of the first page: the section's title, how the claim begins, and what it means in a sentence.
HEADLINES: tuple[tuple[str, str, str], ...] = (
    ("Capture of a prompt of 32 tokens", "capture", "Capture of every stream and coefficient, to a plain forward pass"),
    ("The trace job", "readings", "A whole trace (logit lens, sub-updates, events), to the matrix products it needs"),
    (
        "Attribution of one logit",
        "to one plain",
        "Attribution of one logit to 36,864 memories, to a plain forward pass",
    ),
    (
        "Patching resid_pre",
        "time, to 240 plain",
        "Patching the stream of 12 layers by 20 positions, to 240 plain forward passes",
    ),
    ("Patching resid_pre", "time, to TransformerLens", "The same patching, to TransformerLens"),
    ("Peak memory", "load + trace", "Peak memory of loading and tracing, to plain transformers"),
    ("Sweep, GPT-2 small's shape", "", "Top triggers of every key over a corpus, to the forward passes alone"),
    ("Sweep beside TransformerLens, GPT-2 small's shape", "sweep", "The same sweep, to TransformerLens"),
    (
        "Composition scores of GPT-2 small's size",
        "time",
        "Q, K and V composition of all pairs of 144 heads, to TransformerLens",
    ),
    ("Copying scores of GPT-2 small's size", "first call", "Copying scores of 144 heads, to TransformerLens"),
    ("Index of a million keys", "`triggers`", "The triggers of a key in an index of a million, to 10 ms"),
    ("Clustering 36,864 x 768", "", "Exact clustering of 36,864 values, to the peer"),
    ("Start-up of commands", "index triggers", "A command that runs no model, to 0.8 s of CPU time"),
    ("Start-up of commands", "trace", "A command that runs one, to importing torch and the model and one forward pass"),
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
    bodies = (re.sub(r"^# .+\n", "", body, flags=re.MULTILINE) for body in parts[1::2])
    found = {title: body.strip() for title, body in zip(parts[::2], bodies, strict=True)}
    return {title: body for title, body in found.items() if title not in ("In short", "Missed")}


def rows(body: str) -> list[Row]:
    """The claims of a section's table; none where its table is of another kind."""
    lines = re.findall(r"^\|(.+)\|$", body, flags=re.MULTILINE)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    if not cells or cells[0][:3] != ["claim", "ratio", "target"]:
        return []
    return [Row(*cell[:4]) for cell in cells[2:]]


def measured_on(body: str) -> str:
    """The date of a section; empty where it has none."""
    date = re.search(r"\d{4}-\d\d-\d\d", body)
    return date.group() if date else ""


def page(found: dict[str, str]) -> str:
    """RESULTS.md of these sections."""
    lines = [HEAD, *_missed(found), "", "## In short", "", "| | ratio | limit | | measured |", "|---|---|---|---|---|"]
    for begins, claim, sentence in HEADLINES:
        title = next((title for title in found if title.startswith(begins)), None)
        row = next((row for row in rows(found[title]) if row.claim.startswith(claim)), None) if title else None
        if title is not None and row is not None:
            verdict = row.note.split(" · ")[0]
            lines.append(f"| {sentence} | {row.ratio} | {row.target} | {verdict} | {measured_on(found[title])} |")
    lines.append("")
    left = dict(found)
    for group, beginnings in {**GROUPS, "Others": ("",)}.items():
        titles = [title for title in left if title.startswith(beginnings)]
        if titles:
            lines += [f"# {group}", ""]
        for title in titles:
            lines += [f"## {title}", "", left.pop(title), ""]
    return "\n".join(lines).rstrip() + "\n"


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
