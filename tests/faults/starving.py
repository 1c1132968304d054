"""Commands that are given less memory than they ask for: they end well, or with one line that says so."""

from __future__ import annotations

import resource
from pathlib import Path

from tests.faults.made import Ended, forked
from unembed.cli.commands import app

HUNGRY = {
    "trace": ["trace", "Once upon a time there was a little " * 25],
    "circuits": ["circuits", "composition"],
    "clusters": ["clusters", "--clusters", "50", "--layer", "1"],
}
"""On the embedded model."""


def starved(arguments: list[str], megabytes: int) -> Ended:
    """Run a command in a fork that may take so many megabytes more than it has."""

    def work() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20),) * 2)
        app(arguments)

    return forked(work)


def fault(ended: Ended) -> str | None:
    """What is wrong with how it ended; None if nothing."""
    lines = [row for row in ended.stderr.splitlines() if row.startswith("unembed: ")]
    if "Traceback" in ended.stderr or ended.code not in (0, 1) or (ended.code == 1 and len(lines) != 1):
        return f"exit status {ended.code}: {ended.stderr[-700:]}"
    return None
