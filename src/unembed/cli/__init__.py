"""The command line: each file of a group of commands parses, calls public functions, and formats the results.

This package holds options, exit codes, the form of errors, and the drawing of a trace in a terminal and on a page. It
computes nothing: every number shown comes from the library.
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
    """Run the `unembed` command; the commands are imported only when it runs."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its advice on generation does not concern these commands
    for name in ("torch.utils._pytree", "torchao"):  # messages of torchao, where installed, to its own developers
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
    except OSError as error:  # what is printed cannot be written: a full disk, a pipe that nobody reads
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left would be tried again when Python ends
        if error.errno != errno.EPIPE:
            print(
                f"unembed: cannot write the output: {error.strerror}. Make room, or write elsewhere.", file=sys.stderr
            )
        sys.exit(1)
    except KeyboardInterrupt:  # while the commands are imported; later they print it themselves
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
    """Print a warning of the package like an error; another library's warning is printed as Python does."""
    from unembed.errors import UnembedWarning

    if issubclass(category, UnembedWarning):
        text = f"unembed: {str(message).rstrip('.')}.\n"
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
    (file or sys.stderr).write(text)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C. An exception during the import of torch would abort in C++; before that, nothing was begun."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):
        os.write(2, b"unembed: Interrupted.\n")
        os._exit(130)
    raise KeyboardInterrupt


def _interrupt_later(unraisable: sys.UnraisableHookArgs) -> None:
    """Send an interrupt again that Python ignored because it arrived in a finalizer, such as `__del__`."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    timer = threading.Timer(0.01, os.kill, [os.getpid(), signal.SIGINT])
    timer.daemon = True
    timer.start()


__all__ = ["main"]
