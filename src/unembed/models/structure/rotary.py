"""How attention heads rotate queries and keys by position, with angles independent of the weights' precision.

The cosines and sines that a model passes to its attention are rounded to the dtype of the weights: in bfloat16 a
frequency computed from them is wrong by up to 0.4 %, which is four radians at position 1,000. Frequencies therefore
come from the model's own buffers of inverse frequencies, which stay in float32, and angles are computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_NAME = "inv_freq"


@dataclass(frozen=True, eq=False)
class Rotary:
    """The rotation of queries and keys by position.

    With half = len(frequencies), the first 2 * half channels are rotated in pairs: channels (j, j + half) or, if
    `interleaved`, channels (2j, 2j + 1).
    """

    frequencies: Float[Tensor, " half"]
    """Radians per position, float64."""
    interleaved: bool
    sign: int
    factor: float
    """Factor of cosines and sines (YaRN and LongRoPE); 1 in other families."""
    long_frequencies: Float[Tensor, " half"] | None = None
    """Frequencies of LongRoPE for texts longer than `short_length`; None in other families."""
    short_length: int = 0
    certain: bool = True
    """False if the layer's attention pattern is too uniform to show whether, and how, it applies the angles."""

    def rotate(
        self, x: Float[Tensor, "*any pos d_head"], positions: Int[Tensor, "*pos"]
    ) -> Float[Tensor, "*any pos d_head"]:
        """Rotate each row of `x` by the angles of its position, counted in tokens from the start of the text.

        Returns:
            Float32 where `x` is in half precision, its own dtype otherwise.
        """
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        frequencies = self.frequencies
        if self.long_frequencies is not None and positions.numel() and int(positions.max()) >= self.short_length:
            frequencies = self.long_frequencies
        frequencies = frequencies.to(x.device, torch.float64)
        angles = self.sign * positions.to(torch.float64)[..., None] * frequencies  # (pos, half)
        cos, sin = (angles.cos() * self.factor).to(x.dtype), (angles.sin() * self.factor).to(x.dtype)
        half = frequencies.shape[0]
        rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
        if self.interleaved:
            a, b = rotated[..., 0::2], rotated[..., 1::2]
            mixed = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        else:
            a, b = rotated[..., :half], rotated[..., half:]
            mixed = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        return torch.cat([mixed, rest], dim=-1)


def rotary_candidates(hf: nn.Module, cos_sin: tuple[Tensor, Tensor] | None, buffer_dim: int | None) -> list[Rotary]:
    """Return every way in which an attention module could apply rotary angles.

    There are two ways to pair channels, and for each of them two signs of the angles.

    Args:
        hf: the model, whose buffers hold inverse frequencies.
        cos_sin: the cosines and sines that the module received for positions 0, 1, ...; None if it received none.
        buffer_dim: the number of rotated channels in a module with its own table of angles (base 10,000).
    """
    if buffer_dim:
        frequencies = 1.0 / (10000 ** (torch.arange(0, buffer_dim, 2, dtype=torch.float64) / buffer_dim))
        return [Rotary(frequencies, interleaved, sign, 1.0) for interleaved in (True, False) for sign in (1, -1)]
    if cos_sin is None:
        return []
    found = _matching(hf, cos_sin)
    return [replace(found, interleaved=interleaved, sign=sign) for interleaved in (False, True) for sign in (1, -1)]


def _matching(hf: nn.Module, cos_sin: tuple[Tensor, Tensor]) -> Rotary:
    """Find the rotary embedding that has these cosines and sines at positions 0, 1, ..."""
    cos, sin = (t.double().reshape(-1, t.shape[-1]) for t in cos_sin)  # (pos, width)
    positions = torch.arange(len(cos), dtype=torch.float64, device=cos.device)
    best, error = None, 4 * max(torch.finfo(cos_sin[0].dtype).eps, torch.finfo(torch.float32).eps)
    for rotary in _buffers(hf):
        angles, factor = positions[:, None] * rotary.frequencies.to(cos.device), rotary.factor
        for spread in (angles, torch.cat([angles, angles], dim=1), angles.repeat_interleave(2, dim=1)):
            if spread.shape != cos.shape:
                continue
            miss = max(
                float((spread.cos() * factor - cos).abs().max()), float((spread.sin() * factor - sin).abs().max())
            )
            if miss <= error * factor:
                best, error = rotary, miss / factor
    if best is not None:
        return best
    # No buffer contains the angles, so scale and angles are computed from the cosines and sines that the attention
    # received, and are only as precise as these.
    factor = float((cos[0].square() + sin[0].square()).sqrt().mean())
    angles = torch.atan2(sin[1], cos[1])
    if angles.numel() % 2 == 0 and torch.equal(angles[::2], angles[1::2]):
        angles = angles[::2]
    elif angles.numel() % 2 == 0 and torch.equal(angles[: angles.numel() // 2], angles[angles.numel() // 2 :]):
        angles = angles[: angles.numel() // 2]
    return Rotary(angles, False, 1, factor)


def _buffers(hf: nn.Module) -> Iterator[Rotary]:
    """Yield a rotary embedding for every buffer of inverse frequencies; a module may have one for each layer type."""
    for module in hf.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name.endswith(_NAME) and "original" not in name and buffer.dim() == 1 and not buffer.is_meta:
                prefix = name.removesuffix(_NAME)
                long, length = _long_frequencies(module, prefix.rstrip("_") or None)
                long = None if long is None else long.to(buffer.dtype).double()
                factor = float(getattr(module, f"{prefix}attention_scaling", 1.0))
                yield Rotary(buffer.double(), False, 1, factor, long, length)


def _long_frequencies(module: nn.Module, layer_type: str | None) -> tuple[Float[Tensor, " half"] | None, int]:
    """Return LongRoPE's frequencies for long texts, and the text length in tokens above which they apply.

    That length is the context length of the model's first training.
    """
    kind, config = getattr(module, "rope_type", None), getattr(module, "config", None)
    kind = kind.get(layer_type) if isinstance(kind, dict) else kind
    if kind != "longrope" or config is None:
        return None, 0
    parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    length = int(parameters["original_max_position_embeddings"])
    frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](config, None, seq_len=length + 1, layer_type=layer_type)
    return frequencies, length


def common_style(rotaries: list[Rotary | None]) -> Rotary | None:
    """Return the first rotary embedding that is certain, or None.

    It stands for all layers, because all layers of a model apply the angles in the same way.
    """
    return next((r for r in rotaries if r is not None and r.certain), None)
