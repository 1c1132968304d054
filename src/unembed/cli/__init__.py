"""The command line: parse options, call the package's public functions, and print their results.

This subpackage defines options, exit codes, error messages, and how a trace is drawn in a terminal and on a page. It
computes no results itself.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
import warnings
from types import FrameType
from typing import TextIO


def main() -> None:
    """Run the `unembed` command. The commands are imported here, so that importing this module stays fast."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # hides warnings about generation settings
    for name in ("torch.utils._pytree", "torchao"):  # hides messages that concern torchao's developers
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.showwarning = _as_one_line
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _interrupt_later
    try:
        from unembed.cli.commands import app

        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:  # stdout cannot be written: a full disk, or a pipe that nobody reads
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python would write the rest at exit, and fail again
        if error.errno != errno.EPIPE:
            print(
                f"unembed: cannot write the output: {error.strerror}. Make room, or write elsewhere.", file=sys.stderr
            )
        sys.exit(1)
    except KeyboardInterrupt:  # while the commands are imported; a running command handles it itself
        print("unembed: Interrupted.", file=sys.stderr)
        sys.exit(130)


def _as_one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning: one of this package as one line, like an error; one of another library as Python prints it."""
    from unembed.errors import UnembedWarning

    if issubclass(category, UnembedWarning):
        text = f"unembed: {str(message).rstrip('.')}.\n"
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
    (file or sys.stderr).write(text)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C: raise `KeyboardInterrupt`, or exit at once if torch is not fully imported.

    An exception during the import of torch would abort the process in C++.
    """
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):
        os.write(2, b"unembed: Interrupted.\n")
        os._exit(130)
    raise KeyboardInterrupt


def _interrupt_later(unraisable: sys.UnraisableHookArgs) -> None:
    """Send SIGINT again if Python ignored it, which happens if it arrives in a finalizer such as `__del__`."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    timer = threading.Timer(0.01, os.kill, [os.getpid(), signal.SIGINT])
    timer.daemon = True
    timer.start()


__all__ = ["main"]
