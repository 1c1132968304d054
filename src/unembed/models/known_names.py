"""The names of models that need no folder and no hub; error messages about a model that is not found list them."""

from __future__ import annotations

from difflib import get_close_matches

from unembed.models.published_models import PUBLISHED
from unembed.models.shipped_models import SHIPPED


def known_names() -> list[str]:
    """Return the names of the shipped models, then those of the models that `unembed models get` downloads."""
    return [*SHIPPED, *PUBLISHED]


def did_you_mean(name: str) -> str:
    """Return "Did you mean NAME? " with the known name that is most similar; empty if none is similar."""
    close = get_close_matches(name.lower(), known_names(), 1, 0.75)
    return f"Did you mean {close[0]}? " if close else ""
