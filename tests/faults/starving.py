"""Commands given less memory or disk than they ask for: they end well, or with one line that says so."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from tests.faults.made import Ended, forked
from unembed.cli import main
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
        most = used + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        app(arguments)

    return forked(work)


LARGEST = 1000
"""Bytes that a file may have in `without_room`."""


def without_room(arguments: list[str]) -> Ended:
    """Run the command in a fork whose files may not grow beyond `LARGEST` bytes, which fails as a full disk does."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, LARGEST))
        sys.argv = ["unembed", *arguments]
        main()

    return forked(work)


def fault(ended: Ended) -> str | None:
    """What is wrong with how it ended; None if nothing."""
    lines = [row for row in ended.stderr.splitlines() if row.startswith("unembed: ")]
    if "Traceback" in ended.stderr or ended.code not in (0, 1) or (ended.code == 1 and len(lines) != 1):
        return f"exit status {ended.code}: {ended.stderr[-700:]}"
    return None
