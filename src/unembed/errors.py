"""Every error the package raises.

    UnembedError
    ├── InvalidInput            what the caller gave cannot be used (also a ValueError)
    │   ├── OutOfRange          a layer, head, memory or position that does not exist
    │   └── NotOneToken         a target text that is no token, or several
    ├── ModelUnavailable        the model named cannot be found, read or fetched
    ├── ModelNotUnderstood      the model opens, but a part of it has no place in the description
    ├── PointMissing            the model has no such tensor, or not at this layer
    ├── Unsupported             the model has the part, and this question cannot be asked of it
    ├── SumNotProved            a decomposition missed the tensor it decomposes
    ├── NotFinite               a tensor holds NaN or infinity
    ├── OutOfMemory             what was asked does not fit
    ├── CorpusUnreadable        a corpus file cannot be found, read or decoded
    ├── IndexFault              an index is absent, incomplete, damaged or of something else
    ├── CheckpointFault         a checkpoint cannot be used to resume
    └── ExtraMissing            an optional dependency is not installed

Each message has three parts: what failed (with the offending value), why, and what to do instead.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class UnembedError(Exception):
    """A sentence a person can act on; the three parts stay readable as fields."""

    def __init__(self, what: str, *, why: str = "", instead: str = "") -> None:
        """Join the parts into one line: what failed, why, and what to do instead."""
        self.what, self.why, self.instead = (_unended(part) for part in (what, why, instead))
        super().__init__(self._line())

    def _line(self) -> str:
        first = f"{self.what}: {self.why}" if self.why else self.what
        sentences = [first, self.instead] if self.instead else [first]
        return " ".join(". ".join(sentences).split()) + "."

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only parts do not survive the default pickling, which engines with several processes rely on.
        return (_rebuilt, (type(self), self.what, self.why, self.instead))


def _unended(part: str) -> str:
    """Without the full stop that the line brings (a folder named `.` keeps it) and the number of a system's error."""
    stripped = re.sub(r"^\[Errno -?\d+\] ", "", part.strip())
    return re.sub(r"(?<=[^\s.])\.$", "", stripped)


def _rebuilt(kind: type[UnembedError], what: str, why: str, instead: str) -> UnembedError:
    return kind(what, why=why, instead=instead)


class InvalidInput(UnembedError, ValueError):
    """What the caller gave cannot be used."""


class OutOfRange(InvalidInput):
    """A layer, head, memory or position that does not exist."""


class NotOneToken(InvalidInput):
    """A target text that is not exactly one token of the vocabulary."""


class ModelUnavailable(UnembedError):
    """The model named cannot be found, read or fetched."""


class ModelNotUnderstood(UnembedError):
    """The model opens, but a part of it has no place in the description of decoders."""


class PointMissing(UnembedError):
    """The model has no such tensor, or not at this layer."""


class Unsupported(UnembedError):
    """The model has the part, and this question cannot be asked of it."""


class SumNotProved(UnembedError):
    """A decomposition missed the tensor it decomposes by more than the tolerance."""


class NotFinite(UnembedError):
    """A tensor holds NaN or infinity."""


class OutOfMemory(UnembedError):
    """What was asked does not fit into memory."""


class CorpusUnreadable(UnembedError):
    """A corpus file cannot be found, read or decoded."""


class IndexFault(UnembedError):
    """An index is absent, incomplete, damaged, or belongs to another model or schema."""


class CheckpointFault(UnembedError):
    """A checkpoint cannot be used to resume this work."""


class ExtraMissing(UnembedError):
    """An optional dependency is not installed; the message names the extra."""


LARGEST = 2**31 - 1
"""The largest count that is taken; no machine holds a longer list."""


def integer(what: str, number: Any) -> int:
    """A Python int: what NumPy and torch take for a whole number passes; 3.5, "3" and True do not.

    Raises:
        InvalidInput: it is no whole number.
    """
    try:
        if not isinstance(number, bool):
            return operator.index(number)
    except (TypeError, ValueError):  # ValueError: torch, of a tensor with several numbers
        pass
    raise InvalidInput(f"{what} {_said(number)}", why="it is no whole number")


def whole(what: str, number: Any, least: int = 1, most: int = LARGEST) -> int:
    """A count as a Python int, checked.

    Raises:
        InvalidInput: it is no whole number, or outside `least` to `most`.
    """
    found = integer(what, number)
    if not least <= found <= most:
        bound = f"at least {least}" if found < least else f"at most {most}"
        raise InvalidInput(f"{what} {found}", why=f"it must be {bound}")
    return found


def seeded(seed: Any) -> int:
    """A seed that every source of chance here takes.

    Raises:
        InvalidInput: it is no whole number from 0 to 2**32 - 1.
    """
    return whole("seed", seed, 0, 2**32 - 1)


def finite(what: str, number: Any) -> float:
    """A Python float, checked.

    Raises:
        InvalidInput: it is no number, or NaN, or infinite.
    """
    try:
        found = math.nan if isinstance(number, str | bytes) else float(number)
    except (OverflowError, TypeError, ValueError, RuntimeError):
        found = math.nan
    if not math.isfinite(found):
        raise InvalidInput(f"{what} {_said(number)}", why="it is not a finite number")
    return found


def string(what: str, given: Any) -> str:
    """A text, checked.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(given, str):
        raise InvalidInput(f"{what} {_said(given)}", why="it is no text")
    return given


def several(what: str, given: Any) -> tuple[Any, ...]:
    """The items of a list, checked; a text, which would fall apart into its letters, is none.

    Raises:
        InvalidInput: it is no list.
    """
    if isinstance(given, str | bytes | dict) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        raise InvalidInput(f"{what} {_said(given)}", why="it is no list", instead=f"Give a list of {what}")
    return tuple(given)


def pair(what: str, given: Any) -> tuple[Any, Any]:
    """A layer and an index in it, which are two; whether there are such is not looked at.

    Raises:
        InvalidInput: it is no pair.
    """
    items = several(what, given)
    if len(items) != 2:
        raise InvalidInput(f"{what} {given!r:.60}", why="it is not a pair", instead="Give (layer, index)")
    return items[0], items[1]


def file_path(given: Any) -> Path:
    """A path, checked; nothing is looked up.

    Raises:
        InvalidInput: it is neither text nor a path.
    """
    try:
        found = os.fspath(given)
    except TypeError:
        found = None
    if not isinstance(found, str):
        raise InvalidInput(f"path {_said(given)}", why="it is neither text nor a path")
    return Path(found)


def _said(given: Any) -> str:
    return " ".join(f"{given!r:.60}".split())
