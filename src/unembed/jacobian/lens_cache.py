"""Fitted lenses on this machine, found by the fingerprint of a model's weights: in the cache folder, or in the package.

A lens in the cache folder comes first, because its user fitted it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unembed.errors import InvalidInput
from unembed.models.shipped_models import shipped_lens, shipped_lenses
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

    A lens that was fitted on the same weights in another dtype is taken where there is none of this dtype. A shipped
    lens is for the shipped model: a copy under another name may have weights that its fingerprint misses. Where no lens
    of the model's sizes is stored, its weights, which may lie on disk, are not read.

    Raises:
        InvalidInput: the file is damaged.
    """
    from unembed.jacobian.lens import open_lens
    from unembed.models.fingerprint import sampled_fingerprint

    stored = [*sorted(lens_path("x").parent.glob("*.lens")), *shipped_lenses(lm.name)]
    sizes = (lm.n_layers, lm.d_model, lm.d_model)
    fitting = {path: known for path in stored if (known := _header(path)) is None or known.sizes == sizes}
    if not fitting:
        return None
    fingerprint = sampled_fingerprint(lm)
    own = (path for path in fitting if path.stem.removeprefix("lens-") == fingerprint)
    other = (path for path, known in fitting.items() if known is not None and fingerprint in known.converted)
    path = next(own, None) or next(other, None)
    return None if path is None else open_lens(path)


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


@dataclass(frozen=True)
class _Header:
    """What the file of a lens says before its numbers are read."""

    sizes: tuple[int, ...]
    converted: frozenset[str]
    """Fingerprints of the weights in other dtypes."""


def _header(path: Path) -> _Header | None:
    """Return the header of a lens that `save` wrote; None where the file is not one."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            stored = json.loads(file.metadata()["result"])["fields"]
            sizes = file.get_slice(stored["before"]["tensor"]).get_shape()
            return _Header(tuple(sizes), frozenset(dict(stored.get("converted", {"dict": []})["dict"]).values()))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


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
