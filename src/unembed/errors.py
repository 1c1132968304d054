"""Every error the package raises.

    UnembedError
    ├── InvalidInput            an argument cannot be used (also a ValueError)
    │   ├── OutOfRange          a layer, head, memory or position that does not exist
    │   └── NotOneToken         a target text that is not exactly one token
    ├── ModelUnavailable        the named model cannot be found, read or downloaded
    ├── ModelNotUnderstood      the model loads, but a part of it does something that is not supported
    ├── PointMissing            the model has no such tensor, or not at this layer
    ├── Unsupported             this operation is not defined for this model
    ├── SumNotProved            the parts of a decomposition do not add up to the tensor
    ├── NotFinite               a tensor contains NaN or infinity
    ├── OutOfMemory             the computation does not fit into memory
    ├── CorpusUnreadable        a corpus file cannot be found, read or decoded
    ├── IndexFault              an index is missing, incomplete, damaged, or belongs to another model
    ├── CheckpointFault         a checkpoint cannot be used to resume
    └── ExtraMissing            an optional dependency is not installed

`UnembedWarning`, a `UserWarning`, is issued for problems that do not stop the computation.

Each message has three parts: what failed (with the offending value), why, and what to do instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager


class UnembedError(Exception):
    """Base class: one message in three parts, which are also attributes (`what`, `why`, `instead`)."""

    def __init__(self, what: str, *, why: str = "", instead: str = "") -> None:
        """Join the parts into one line: what failed, why, and what to do instead."""
        self.what, self.why, self.instead = (_without_full_stop(part) for part in (what, why, instead))
        super().__init__(self._line())

    def _line(self) -> str:
        first = f"{self.what}: {self.why}" if self.why else self.what
        sentences = [first, self.instead] if self.instead else [first]
        return " ".join(". ".join(sentences).split()) + "."

    def __reduce__(self) -> tuple[object, ...]:
        # An error raised in another process is pickled. By default, Python would not pickle its keyword-only arguments.
        return (_rebuild, (type(self), self.what, self.why, self.instead))


class UnembedWarning(UserWarning):
    """A warning about how to interpret a result; the command line prints it as one line on stderr."""


def _without_full_stop(part: str) -> str:
    """Remove "[Errno N]" at the start and the full stop or `!` at the end (except after a folder named `.`)."""
    stripped = re.sub(r"^\[Errno -?\d+\] ", "", part.strip())
    return re.sub(r"(?<=[^\s.])[.!]$", "", stripped)


def first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error's message on one line; the name of its class if the message is empty."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.split(r"(?<=[^.][.!?])\s", " ".join(lines[0].split()), maxsplit=1)[0]


def reading_fault(error: BaseException) -> str:
    """Explain why a file could not be read."""
    if isinstance(error, UnicodeDecodeError):
        wide = bytes(error.object[:2]) in (b"\xff\xfe", b"\xfe\xff")
        return "it is UTF-16, not UTF-8 text" if wide else "it is not UTF-8 text"
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON (line {error.lineno}, column {error.colno})"
    if isinstance(error, RecursionError):
        return "its lists or objects are nested too deeply"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_sentence(error)


def _rebuild(kind: type[UnembedError], what: str, why: str, instead: str) -> UnembedError:
    return kind(what, why=why, instead=instead)


class InvalidInput(UnembedError, ValueError):
    """An argument cannot be used."""


class OutOfRange(InvalidInput):
    """A layer, head, memory or position that does not exist."""


class NotOneToken(InvalidInput):
    """A target text that is not exactly one token of the vocabulary."""


class ModelUnavailable(UnembedError):
    """The named model cannot be found, read or downloaded."""


class ModelNotUnderstood(UnembedError):
    """The model loads, but a module of it computes something that this package does not support."""


class PointMissing(UnembedError):
    """The model has no such tensor, or not at this layer."""


class Unsupported(UnembedError):
    """This operation is not defined for this model."""


class SumNotProved(UnembedError):
    """The parts of a decomposition do not add up to the tensor within the tolerance."""


class NotFinite(UnembedError):
    """A tensor contains NaN or infinity."""


class OutOfMemory(UnembedError):
    """The computation does not fit into memory."""


class CorpusUnreadable(UnembedError):
    """A corpus file cannot be found, read or decoded."""


class IndexFault(UnembedError):
    """An index is missing, incomplete, damaged, or belongs to another model or schema."""


class CheckpointFault(UnembedError):
    """A checkpoint cannot be used to resume this work."""


class ExtraMissing(UnembedError):
    """An optional dependency is not installed; the message names the extra."""


@contextmanager
def reading(what: str, *, instead: str = "", kind: type[UnembedError] = InvalidInput) -> Iterator[None]:
    """A context in which a file is read and parsed: if that fails, it raises an error that says why.

    Args:
        what: the beginning of the error message, such as "cannot read words from FILE".
        instead: the part of the error message that says what to do.
        kind: the class of the error.
    """
    try:
        yield
    except (OSError, ValueError, EOFError, RecursionError) as error:
        raise kind(what, why=reading_fault(error), instead=instead) from error
