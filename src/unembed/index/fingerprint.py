"""Which model an index is of, told by the weights themselves rather than by a name."""

from __future__ import annotations

import hashlib
import weakref

import torch

from unembed.models.decoder import Decoder

_CHUNK = 1 << 26
_KNOWN: weakref.WeakKeyDictionary[object, tuple[int, str]] = weakref.WeakKeyDictionary()


def weights_fingerprint(lm: Decoder) -> str:
    """SHA-256 over name, shape, dtype and bytes of every parameter, shared ones once; about a second per gigabyte.

    Computed once for a model, and again after any of its parameters was changed in place.
    """
    parameters = sorted(lm.hf.named_parameters(), key=lambda item: item[0])
    version = sum(p._version for _, p in parameters)
    if (known := _KNOWN.get(lm.hf)) is not None and known[0] == version:
        return known[1]
    digest = hashlib.sha256()
    for name, parameter in parameters:
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        flat = parameter.detach().reshape(-1)
        step = max(1, _CHUNK // flat.element_size())
        for start in range(0, flat.numel(), step):
            digest.update(flat[start : start + step].cpu().contiguous().view(torch.uint8).numpy().data)
    _KNOWN[lm.hf] = version, digest.hexdigest()
    return digest.hexdigest()
