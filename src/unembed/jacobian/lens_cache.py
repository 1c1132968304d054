"""Fitted lenses in the cache folder, found by the fingerprint of a model's weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from unembed.results.cache import cache_folder

if TYPE_CHECKING:  # whether there is a lens is known without torch
    from unembed.jacobian.lens import JacobianLens
    from unembed.models.decoder import Decoder


def lens_path(fingerprint: str) -> Path:
    """Return where the lens of a model is kept; the fingerprint is its `sampled_fingerprint`."""
    return cache_folder() / "lenses" / f"{fingerprint}.lens"


def stored_lens(lm: Decoder, progress: Callable[[str, int, int], None]) -> JacobianLens:
    """Return the lens in the cache folder, fitting it on the shipped text first where there is none.

    Raises:
        Unsupported: the model has several streams, or a pass of it cannot be differentiated.
    """
    from unembed.jacobian.fit import fit_to_file
    from unembed.models.fingerprint import sampled_fingerprint

    found = cached_lens(lm)
    return fit_to_file(lm, lens_path(sampled_fingerprint(lm)), progress=progress) if found is None else found


def cached_lens(lm: Decoder) -> JacobianLens | None:
    """The lens that `unembed fit-lens` kept for a model; None where there is none.

    Raises:
        InvalidInput: the file is damaged.
    """
    from unembed.jacobian.lens import open_lens
    from unembed.models.fingerprint import sampled_fingerprint

    if next(iter(lens_path("x").parent.glob("*.lens")), None) is None:
        return None  # the weights need not be read
    path = lens_path(sampled_fingerprint(lm))
    return open_lens(path) if path.exists() else None
