"""The plausible mistake: a model's name where the model itself is asked for."""

from __future__ import annotations

from typing import Any

from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder


def opened(lm: Any) -> Decoder:
    """The model, if it is one that `unembed.load` opened.

    Raises:
        InvalidInput: it is something else.
    """
    if not isinstance(lm, Decoder):
        said = " ".join(f"{lm!r:.60}".split())
        raise InvalidInput(f"model {said}", why="it is not open", instead="Give what unembed.load returns")
    return lm
