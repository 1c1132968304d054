"""Options of a study by name: which there are, and of what kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from unembed.concepts.annotation.judge import require_judge
from unembed.errors import InvalidInput

T = TypeVar("T")
_KINDS: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}


def options_of(cls: type[T], study: str, given: Mapping[str, Any]) -> T:
    """The options given by name, as the study's dataclass.

    Raises:
        InvalidInput: there is no such option, or a value of another kind.
    """
    known = {f.name: str(f.type) for f in fields(cls)}  # pyright: ignore[reportArgumentType]
    for name, value in given.items():
        if name not in known:
            raise InvalidInput(f"option {name!r}", why=f"{study} has {', '.join(known)}")
        if name == "judge":
            if value is not None:
                require_judge(value)
            continue
        kind, optional = known[name].removesuffix(" | None"), known[name].endswith(" | None")
        fits = isinstance(value, _KINDS[kind]) and (kind == "bool" or not isinstance(value, bool))
        if not fits and not (optional and value is None):
            raise InvalidInput(f"option {name}={value!r}", why=f"it must be of type {kind}")
    return cls(**given)
