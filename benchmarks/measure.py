"""How every benchmark here measures: variants interleaved in one process, medians, the ratio as the result.

Times are the process's CPU time on one thread unless a script says otherwise, because other processes on the machine
disturb it least; absolute numbers are this machine's, ratios are what is claimed. `record` writes a script's table into
RESULTS.md, replacing the one it wrote before.
"""

from __future__ import annotations

import datetime
import platform
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

try:
    from benchmarks import summary
except ImportError:  # run as a script
    import summary

RESULTS = Path(__file__).parent / "RESULTS.md"


@dataclass(frozen=True)
class Claim:
    """One ratio beside the number it must not exceed."""

    what: str
    ratio: float
    target: float | None
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether the target was met."""
        return "" if self.target is None else "met" if self.ratio <= self.target else "missed"


def interleaved(
    variants: dict[str, Callable[[], object]], rounds: int = 7, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of every variant in every round; the order turns round each time, one round of warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        names = list(variants) if number % 2 == 0 else list(reversed(variants))
        for name in names:
            start = clock()
            variants[name]()
            if number:
                seconds[name].append(clock() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], ours: str, limit: str) -> float:
    """The median of the per-round ratios."""
    return statistics.median(a / b for a, b in zip(seconds[ours], seconds[limit], strict=True))


def _processor() -> str:
    found = (
        re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        if Path("/proc/cpuinfo").exists()
        else None
    )
    return found.group(1) if found else platform.processor()


def record(title: str, claims: list[Claim], seconds: dict[str, list[float]] | None = None, how: str = "") -> None:
    """Print a table and put it into RESULTS.md under its title."""
    packages = ", ".join(
        f"{name} {metadata.version(name)}"
        for name in ("torch", "transformers", "transformer-lens", "scikit-learn")
        if _installed(name)
    )
    lines = [
        how,
        "" if how else None,
        f"{datetime.date.today().isoformat()} · {_processor()} · Python {platform.python_version()} · {packages}",
        "",
        "| claim | ratio | target | |",
        "|---|---|---|---|",
    ]
    for c in claims:
        target = "" if c.target is None else f"≤ {c.target:g}"
        lines.append(f"| {c.what} | {c.ratio:.3g} | {target} | {' · '.join(p for p in (c.verdict, c.note) if p)} |")
    if seconds:
        medians = ", ".join(f"{name} {statistics.median(s) * 1000:.3g} ms" for name, s in seconds.items())
        lines += ["", f"Medians: {medians}."]
    section = "\n".join(line for line in lines if line is not None)
    _write(title, section)


def into_results(title: str, tables: list[Any]) -> None:
    """Tables under a title of RESULTS.md, in the place of those written before."""
    parts = [f"{datetime.date.today().isoformat()} · {_processor()}\n"]
    for table in tables:
        names = [n for n in table.column_names if n != "exits_by_layer"]
        parts += [
            f"{table.title}. {table.provenance.line()}\n",
            "| " + " | ".join(names) + " |",
            "|---" * len(names) + "|",
        ]
        parts += ["| " + " | ".join(_cell(row[n]) for n in names) + " |" for row in table.rows()]
        parts.append("")
    section = "\n".join(parts).rstrip()
    _write(title, section)


def _write(title: str, section: str) -> None:
    """Print a section and put it into RESULTS.md in the place of the one of the same title."""
    print(f"## {title}\n\n{section}")
    found = summary.sections(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(summary.page({**found, title: section}, summary.changes(RESULTS.parents[1])))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "".join(map(str, value))
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
