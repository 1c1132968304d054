"""Handle models that multiply a block's output by a number before the next block reads it (RWKV halves some)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from unembed.models.structure.probe import Probe, factor_of, relative, same
from unembed.models.structure.structure import Block


def with_handovers(probe: Probe, blocks: list[Block], last: Tensor, read: Tensor) -> tuple[list[Block], Tensor]:
    """Return the blocks, each with the factor of its output, and the last stream as the final norm reads it.

    Args:
        probe: the model and its recorded forward pass.
        blocks: the blocks in order.
        last: the output of the last block.
        read: the input of the final norm.

    Raises:
        ModelNotUnderstood: a block's input is not the output of the block before it, times a number.
    """
    mended = []
    for block, after in zip(blocks, [*blocks[1:], None], strict=False):
        y = probe.recording.returned(block.path)
        x = read if after is None else probe.recording.given(after.path)
        if x is None or y is None or same(x, y) or x.shape != y.shape:
            mended.append(block)
            continue
        factor = factor_of(y.double(), x.double())
        fits = relative(factor * y, x) <= probe.tolerance
        if not fits and after is not None:
            raise probe.fail(f"block {block.path}", "the next block's input is not a multiple of this block's output")
        near = round(factor * 2**10) / 2**10
        factor = near if abs(near - factor) <= 1e-3 * abs(factor) else factor
        mended.append(replace(block, handover=factor) if fits else block)
    return mended, read if mended and mended[-1].handover != 1.0 else last
