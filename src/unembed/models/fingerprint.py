"""Compute fingerprints of a model's weights, which identify the model whatever its name is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from unembed.models.decoder import Decoder
from unembed.models.offload import parameter_at, parameter_names

_CHUNK = 1 << 26
_CONVERTED = (torch.float32, torch.bfloat16, torch.float16)


def weights_fingerprint(lm: Decoder) -> str:
    """Return the SHA-256 hash of the name, shape, dtype and bytes of every parameter.

    Shared parameters count once. It takes about a second per gigabyte.
    """
    digest = hashlib.sha256()
    for name in sorted(parameter_names(lm.hf)):
        parameter = parameter_at(lm.hf, name)
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        flat = parameter.reshape(-1)
        step = max(1, _CHUNK // flat.element_size())
        for start in range(0, flat.numel(), step):
            digest.update(flat[start : start + step].cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def weights_checksum(lm: Decoder) -> str:
    """Return 16 hexadecimal digits that change when an entry of a parameter or buffer changes.

    They are the first digits of a SHA-256 hash over the name, shape and dtype of each tensor, and the sum of its bytes
    read as integers. The weights are read once, as fast as memory allows. If two entries are exchanged, the digits
    may stay the same.
    """
    digest = hashlib.sha256()
    for name in sorted(parameter_names(lm.hf)):
        parameter = parameter_at(lm.hf, name).detach()
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype} {_sum_of_bits(parameter)}\n".encode())
    for name, buffer in sorted(lm.hf.named_buffers()):
        digest.update(f"{name} {tuple(buffer.shape)} {buffer.dtype} {_sum_of_bits(buffer.detach())}\n".encode())
    return digest.hexdigest()[:16]


def _sum_of_bits(t: torch.Tensor) -> int:
    flat = t.contiguous().reshape(-1).view(torch.uint8)
    return int((flat.view(torch.int64) if len(flat) % 8 == 0 else flat).sum(dtype=torch.int64))


def sampled_fingerprint(lm: Decoder) -> str:
    """Return the first 16 digits of a SHA-256 hash of 64 evenly spaced entries of every parameter.

    Name, shape and dtype are hashed too. This is much faster than `weights_fingerprint`, but a change of a few single
    weights can go unnoticed.
    """
    return _sampled(lm, (None,))[0]


def converted_fingerprints(lm: Decoder) -> dict[str, str]:
    """Return the `sampled_fingerprint` of the model converted to each of several dtypes, by the dtype's name."""
    names = [str(dtype).removeprefix("torch.") for dtype in _CONVERTED]
    return dict(zip(names, _sampled(lm, _CONVERTED), strict=True))


def _sampled(lm: Decoder, dtypes: Sequence[torch.dtype | None]) -> list[str]:
    """Return one fingerprint of the parameters converted to each dtype; a dtype of None means no conversion."""
    digests = [hashlib.sha256() for _ in dtypes]
    for name in parameter_names(lm.hf):
        parameter = parameter_at(lm.hf, name)
        flat = parameter.flatten()
        sample = flat[:: max(1, flat.numel() // 64)][:64]
        for digest, dtype in zip(digests, dtypes, strict=True):
            converted = sample.to(dtype or sample.dtype)
            digest.update(f"{name} {tuple(parameter.shape)} {converted.dtype}".encode())
            digest.update(converted.float().cpu().numpy().tobytes())
    return [digest.hexdigest()[:16] for digest in digests]
