"""The names under which models can be opened without a folder or the hub, for messages about a name that is not one."""

from __future__ import annotations

from difflib import get_close_matches

from unembed.models.published_models import PUBLISHED
from unembed.models.shipped_models import SHIPPED


def known_names() -> list[str]:
    """Return the names of the shipped models, then those of the models that `unembed models get` downloads."""
    return [*SHIPPED, *PUBLISHED]


def did_you_mean(name: str) -> str:
    """Ask whether the known name most like this one is meant, with a space at the end; empty if none is like it."""
    close = get_close_matches(name.lower(), known_names(), 1, 0.75)
    return f"Did you mean {close[0]}? " if close else ""
