"""Checks of arguments: each function returns the checked value in one Python type, or raises `InvalidInput`."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unembed.errors import InvalidInput

MAX_COUNT = 2**31 - 1
"""The largest count that is accepted. A list of this length would not fit in the computer's memory."""


def as_int(name: str, value: object) -> int:
    """Return a whole number as a Python int. NumPy and torch integers are accepted; 3.5, "3" and True are not.

    Raises:
        InvalidInput: the value is not a whole number.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # ValueError: a tensor with more than one element
        pass
    raise InvalidInput(f"{name} {_short_repr(value)}", why="it is not a whole number")


def positive_int(name: str, value: object, least: int = 1, most: int = MAX_COUNT) -> int:
    """Return a whole number from `least` to `most` as a Python int.

    Raises:
        InvalidInput: the value is not a whole number, or is outside the range.
    """
    number = as_int(name, value)
    if not least <= number <= most:
        bound = f"at least {least}" if number < least else f"at most {most}"
        raise InvalidInput(f"{name} {number}", why=f"it must be {bound}")
    return number


def valid_seed(seed: object) -> int:
    """Return the seed, if it is one that Python, NumPy and torch all accept.

    Raises:
        InvalidInput: the seed is not a whole number from 0 to 2**32 - 1.
    """
    return positive_int("seed", seed, 0, 2**32 - 1)


def finite_float(name: str, value: Any) -> float:
    """Return a finite number as a Python float.

    Raises:
        InvalidInput: the value is not a number, or is NaN or infinite.
    """
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (OverflowError, TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(f"{name} {_short_repr(value)}", why="it is not a finite number")
    return number


def as_str(name: str, value: object) -> str:
    """Return the value, if it is a string.

    Raises:
        InvalidInput: the value is not a string.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{name} {_short_repr(value)}", why="it is not a string")
    return value


def one_of(name: str, value: object, allowed: Iterable[str]) -> None:
    """Check that a value is among the allowed ones.

    Raises:
        InvalidInput: the value is not among them.
    """
    if value not in (names := tuple(allowed)):
        raise InvalidInput(f"{name} {_short_repr(value)}", why=f"it is not one of {', '.join(names)}")


def as_tuple(name: str, values: Any) -> tuple[Any, ...]:
    """Return the items of a list as a tuple. A string raises an error: it would be split into letters.

    Raises:
        InvalidInput: the value is not a list.
    """
    if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise InvalidInput(f"{name} {_short_repr(values)}", why="it is not a list", instead=f"Give a list of {name}")
    return tuple(values)


def as_pair(name: str, value: Any) -> tuple[Any, Any]:
    """Return a pair, such as (layer, index). This does not check that the layer and the index exist.

    Raises:
        InvalidInput: the value is not a pair.
    """
    items = as_tuple(name, value)
    if len(items) != 2:
        raise InvalidInput(f"{name} {value!r:.60}", why="it is not a pair", instead="Give (layer, index)")
    return items[0], items[1]


def as_expert_pair(name: str, value: Any) -> tuple[int | None, int]:
    """Return (expert, index) as integers; expert None means the shared expert. This does not check that they exist.

    Raises:
        InvalidInput: the value is not a pair of whole numbers (or None and a whole number).
    """
    if len(value) != 2:
        raise InvalidInput(f"{name} {value!r:.60}", why="it is not a pair", instead="Give (expert, index)")
    return None if value[0] is None else as_int("expert", value[0]), as_int(name, value[1])


def as_path(value: Any) -> Path:
    """Convert a string or path object to a `Path`, without access to the file system.

    Raises:
        InvalidInput: the value is neither a string nor a path.
    """
    try:
        path = os.fspath(value)
    except TypeError:
        path = None
    if not isinstance(path, str):
        raise InvalidInput(f"path {_short_repr(value)}", why="it is neither a string nor a path")
    return Path(path)


def _short_repr(value: object) -> str:
    return " ".join(f"{value!r:.60}".split())
