"""Fold factors that blocks apply to the stream itself into the weights that write to it and read from it.

A block that rescales its input also rescales what every earlier layer wrote. Multiplying each layer's output by all
later factors makes the last stream a plain sum again ("in the units of the stream's end"). Matrices that read the
stream are divided by all later factors, so a product of output and input weights contains just the factors between the
two. A norm on the stream itself counts as its gain; its division is left out, like that of every norm.

Models with several streams mix them with weights that depend on the position, so no fixed matrix exists for them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.models.norms import Norm
from unembed.stream.run import Run

_ENTRY, _MIDDLE, _EXIT = range(3)
"""The three places in a block at which it may multiply the stream, in order."""


def rescales_channels(lm: Decoder) -> bool:
    """Tell whether some block multiplies the channels of the stream by different factors."""
    blocks = lm.structure.blocks
    gains = (g for b in blocks for g in (b.entry_gain, b.middle_gain, b.exit_gain))
    # The first block's entry norm is not counted: no layer has written before it, so it only changes the embedding.
    norms = (n for b in blocks for n in (b.middle_norm, b.entry_norm if b is not blocks[0] else None))
    return any(isinstance(g, Tensor) for g in gains) or any(n is not None for n in norms)


def written_to_end(
    lm: Decoder, rows: Float[Tensor, "*any d_model"], layer: int, part: str, seen: Run | None = None
) -> Float[Tensor, "*any d_model"]:
    """Multiply vectors written to the stream by all later factors, which gives them in the units of the stream's end.

    Args:
        part: where the rows enter the stream: "embedding" (before the layer), "attention" or "ffn".
        seen: a run that captured resid_pre, and resid_mid if a norm reads it. If given, rows (batch, pos, d_model) are
            also divided by what the norms on the stream divided by in this run.

    Raises:
        Unsupported: the model has several streams.
    """
    _require_one_stream(lm)
    if not changes_stream(lm):
        return rows
    block = lm.structure.blocks[layer]
    passed = _ENTRY if part == "embedding" else _MIDDLE if part == "attention" and block.is_sequential else _EXIT
    for norm, gain, at in _factors(lm, layer, passed):
        if norm is not None:
            one = torch.ones(1, dtype=rows.dtype, device=rows.device)
            rows = norm.frozen(rows, one if seen is None else norm.scale(seen.at(*at))).to(rows.dtype)
        rows = rows * (gain.to(rows) if isinstance(gain, Tensor) else gain)
    return rows


def read_at_end(
    lm: Decoder, matrix: Float[Tensor, "*any d_model column"], layer: int, part: str
) -> Float[Tensor, "*any d_model column"]:
    """Divide a matrix that reads the stream by all later factors, to fit vectors in the units of the stream's end.

    Args:
        part: what reads the stream: "attention" or "ffn".

    Raises:
        Unsupported: the model has several streams, or a later block removes a part of the stream that is read here.
    """
    _require_one_stream(lm)
    if not changes_stream(lm):
        return matrix
    block = lm.structure.blocks[layer]
    passed = _MIDDLE if part == "ffn" and block.is_sequential else _ENTRY
    factor = torch.ones(lm.d_model, dtype=torch.float64, device=matrix.device)
    for norm, gain, _ in _factors(lm, layer, passed):
        for one in (gain, None if norm is None else norm.gain):
            if one is not None:
                factor = factor * (one.to(factor) if isinstance(one, Tensor) else one)
        if (norm is not None and norm.centred) or not bool((factor != 0).all()):
            raise Unsupported(
                f"the folded weights of layer {layer} of {lm.name}",
                why="a later block removes a part of the stream that this layer reads",
                instead="Use basis='raw', which leaves out the factors by which blocks multiply the stream",
            )
    return matrix / factor.to(matrix)[:, None]


def _require_one_stream(lm: Decoder) -> None:
    if lm.structure.streams is not None:
        raise Unsupported(
            f"folded weights of {lm.name}",
            why=f"the model has {lm.structure.streams.count} streams, mixed differently at every position",
            instead="Use basis='raw', which leaves out the mixing",
        )


def changes_stream(lm: Decoder) -> bool:
    """Tell whether some block rescales or normalises the stream itself."""
    return lm.structure.has_gains or lm.structure.has_stream_norms


def _factors(lm: Decoder, layer: int, first: int) -> Iterator[tuple[Norm | None, float | Tensor, tuple[str, int]]]:
    """Yield, in order, the norms and gains on the stream from place `first` of a layer on, and what each norm reads."""
    for n in range(layer, lm.n_layers):
        block = lm.structure.blocks[n]
        yield from (
            (block.entry_norm, block.entry_gain, ("resid_pre", n)),
            (block.middle_norm, block.middle_gain, ("resid_mid", n)),
            (None, block.exit_gain * block.handover, ("resid_post", n)),
        )[first if n == layer else _ENTRY :]
