"""Fitted lenses on this machine, found by the fingerprint of a model's weights: in the cache folder, or in the package.

A lens in the cache folder comes first, because its user fitted it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unembed.errors import InvalidInput
from unembed.models.shipped_models import SHIPPED, shipped_lens
from unembed.results.cache import cache_folder

if TYPE_CHECKING:  # whether there is a lens is known without torch
    from unembed.jacobian.lens import JacobianLens
    from unembed.models.decoder import Decoder

_IDENTIFIED = 1 << 16
"""Numbers of a lens that distinguish it from others."""


def lens_path(fingerprint: str) -> Path:
    """Return where the lens of a model is kept; the fingerprint is its `sampled_fingerprint`."""
    return cache_folder() / "lenses" / f"{fingerprint}.lens"


def lens_file(fingerprint: str) -> Path | None:
    """Return the file of the lens by which commands read a model: in the cache folder, else in the package."""
    path = lens_path(fingerprint)
    return path if path.exists() else shipped_lens(fingerprint)


def stored_lens(lm: Decoder, progress: Callable[[str, int, int], None]) -> JacobianLens:
    """Return the lens of a model, fitting it on the shipped text and keeping it first where there is none.

    Raises:
        Unsupported: the model has several streams, or a pass of it cannot be differentiated.
    """
    from unembed.jacobian.fit import fit_to_file
    from unembed.models.fingerprint import sampled_fingerprint

    found = cached_lens(lm)
    return fit_to_file(lm, lens_path(sampled_fingerprint(lm)), progress=progress) if found is None else found


def cached_lens(lm: Decoder) -> JacobianLens | None:
    """The lens that `unembed fit-lens` kept for a model, else the one that ships with it; None where there is none.

    A shipped lens is for the shipped model: a copy under another name may have weights that its fingerprint misses.

    Raises:
        InvalidInput: the file is damaged.
    """
    from unembed.jacobian.lens import open_lens
    from unembed.models.fingerprint import sampled_fingerprint

    is_shipped = lm.name in SHIPPED
    if not is_shipped and next(iter(lens_path("x").parent.glob("*.lens")), None) is None:
        return None  # the weights, which may lie on disk, need not be read
    fingerprint = sampled_fingerprint(lm)
    path = lens_file(fingerprint) if is_shipped else lens_path(fingerprint)
    return open_lens(path) if path is not None and path.exists() else None


def own_lens(lm: Decoder) -> JacobianLens:
    """The lens by which commands read a model.

    Raises:
        InvalidInput: there is none, or its file is damaged.
    """
    if (found := cached_lens(lm)) is None:
        raise InvalidInput(
            f"a lens of {lm.name}",
            why="none was fitted on this machine",
            instead="Fit one: lm.fit_lens(), or `unembed fit-lens`, which keeps it",
        )
    return found


def sample_step(numbers: int) -> int:
    """Return every which number of a lens's Jacobians (resid_pre, flat) distinguishes it from others."""
    return max(1, numbers // _IDENTIFIED)


def identity_of(sample: np.ndarray) -> str:
    """Return twelve digits that tell a lens from others, from a sample of its numbers."""
    return hashlib.sha256(np.ascontiguousarray(sample, dtype=np.float32).tobytes()).hexdigest()[:12]


def stored_identity(path: Path) -> str | None:
    """Return the digits of the lens in a file, without torch; None where the file is not one that `save` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            name = json.loads(file.metadata()["result"])["fields"]["before"]["tensor"]
            numbers = file.get_tensor(name).reshape(-1)
            return identity_of(numbers[:: sample_step(len(numbers))])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
