"""The command line: one file per group of commands. Each parses, calls public functions, and formats what they return.

Owns options, exit codes, how an error looks, and the drawing of a trace in a terminal and on a page. Computes nothing:
every number shown is one that the library returned.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `unembed` command; the commands are imported only when it runs."""
    try:
        from unembed.cli.main import app

        app()
    except KeyboardInterrupt:  # while the commands are imported: later, they say so themselves
        print("unembed: Interrupted.", file=sys.stderr)
        sys.exit(130)


__all__ = ["main"]
