"""Fingerprints of a model's weights: they identify a model by its numbers, not by its name."""

from __future__ import annotations

import hashlib

import torch

from unembed.models.decoder import Decoder
from unembed.models.offload import parameter_at, parameter_names

_CHUNK = 1 << 26


def weights_fingerprint(lm: Decoder) -> str:
    """SHA-256 over name, shape, dtype and bytes of every parameter, shared ones once; about a second per gigabyte."""
    digest = hashlib.sha256()
    for name in sorted(parameter_names(lm.hf)):
        parameter = parameter_at(lm.hf, name)
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        flat = parameter.reshape(-1)
        step = max(1, _CHUNK // flat.element_size())
        for start in range(0, flat.numel(), step):
            digest.update(flat[start : start + step].cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sampled_fingerprint(lm: Decoder) -> str:
    """The first 16 digits of SHA-256 over name, shape, dtype and 64 evenly spaced entries of every parameter.

    Much faster than `weights_fingerprint`; a change of a few single weights can go unnoticed.
    """
    digest = hashlib.sha256()
    for name in parameter_names(lm.hf):
        parameter = parameter_at(lm.hf, name)
        flat = parameter.flatten()
        sample = flat[:: max(1, flat.numel() // 64)][:64].float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:16]
