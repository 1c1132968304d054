"""Find fitted lenses by the fingerprint of a model's weights: in the cache folder, or in the package.

A lens in the cache folder takes precedence, because the user fitted it.
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

if TYPE_CHECKING:  # finding a lens must not import torch
    from unembed.jacobian.lens import JacobianLens
    from unembed.models.decoder import Decoder

_IDENTIFIED = 1 << 16
"""Number of values of a lens from which its hash is computed."""


def lens_path(fingerprint: str) -> Path:
    """Return the path of a model's lens in the cache folder; the fingerprint is the model's `sampled_fingerprint`."""
    return cache_folder() / "lenses" / f"{fingerprint}.lens"


def lens_file(fingerprint: str) -> Path | None:
    """Return the lens file that commands use for a model: from the cache folder, else from the package."""
    path = lens_path(fingerprint)
    return path if path.exists() else shipped_lens(fingerprint)


def stored_lens(lm: Decoder, progress: Callable[[str, int, int], None]) -> JacobianLens:
    """Return the stored lens of a model; if there is none, fit one on the shipped text and store it.

    Raises:
        Unsupported: the model has several residual streams, or its forward pass cannot be differentiated.
    """
    from unembed.jacobian.fit import fit_to_file
    from unembed.models.fingerprint import sampled_fingerprint

    found = cached_lens(lm)
    return fit_to_file(lm, lens_path(sampled_fingerprint(lm)), progress=progress) if found is None else found


def cached_lens(lm: Decoder) -> JacobianLens | None:
    """Return the lens that `unembed fit-lens` stored for a model, else the shipped one; None if there is neither.

    If there is no lens for the model's dtype, one that was fitted on the same weights in another dtype is used. A
    shipped lens is used only under the name of the shipped model: a copy under another name may have changed weights
    that the sampled fingerprint misses. If no stored lens has the model's sizes, the model's weights, which may be on
    disk, are not read.

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


def why_passed_over(lm: Decoder) -> str | None:
    """Explain why a stored lens that was fitted on a model of this name is not used, and what to do.

    None if there is no such lens. Call this if `cached_lens` found none.
    """
    for path in sorted(lens_path("x").parent.glob("*.lens")):
        if (known := _header(path)) is None or known.model != lm.name:
            continue
        if known.sizes != (lm.n_layers, lm.d_model, lm.d_model):
            why = "it was fitted on a model of other sizes"
        elif not known.converted and known.dtype != lm.dtype_name:
            why = f"it was fitted in {known.dtype}, and lacks the fingerprint of the {lm.dtype_name} weights"
        else:
            why = "it was fitted on other weights"
        return f"the lens of {lm.name} in {path} is not used: {why}; fit one for these weights with unembed fit-lens"
    return None


def own_lens(lm: Decoder) -> JacobianLens:
    """Return the lens that commands use for a model.

    Raises:
        InvalidInput: there is no lens, or its file is damaged.
    """
    if (found := cached_lens(lm)) is None:
        raise InvalidInput(
            f"a lens of {lm.name}",
            why="none was fitted on this machine",
            instead="Fit one: lm.fit_lens(), or `unembed fit-lens`, which stores it",
        )
    return found


def sample_step(numbers: int) -> int:
    """Return k: the hash of a lens is computed from every k-th value of its flattened resid_pre Jacobians."""
    return max(1, numbers // _IDENTIFIED)


def identity_of(sample: np.ndarray) -> str:
    """Return a hash of 12 hexadecimal digits that identifies a lens, from a sample of its values."""
    return hashlib.sha256(np.ascontiguousarray(sample, dtype=np.float32).tobytes()).hexdigest()[:12]


@dataclass(frozen=True)
class _Header:
    """The sizes and fingerprints in the file of a lens, read without its tensors."""

    sizes: tuple[int, ...]
    converted: frozenset[str]
    """Fingerprints of the weights after conversion to other dtypes."""
    model: str
    dtype: str


def _header(path: Path) -> _Header | None:
    """Return the header of a lens file that `save` wrote; None for any other file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            stored = json.loads(file.metadata()["result"])["fields"]
            sizes = file.get_slice(stored["before"]["tensor"]).get_shape()
            converted = frozenset(dict(stored.get("converted", {"dict": []})["dict"]).values())
            about = stored["provenance"]["fields"]
            return _Header(tuple(sizes), converted, about["model"], about["dtype"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def stored_identity(path: Path) -> str | None:
    """Return the hash of the lens in a file that `save` wrote, without torch; None for any other file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            name = json.loads(file.metadata()["result"])["fields"]["before"]["tensor"]
            numbers = file.get_tensor(name).reshape(-1)
            return identity_of(numbers[:: sample_step(len(numbers))])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
