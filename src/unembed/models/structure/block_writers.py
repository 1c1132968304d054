"""Find the modules that add to the residual stream in a block, and the module that computed each added vector."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from unembed.models.norms import ChannelGain, Norm
from unembed.models.structure.block_sums import BlockSum
from unembed.models.structure.exotic import before_convolution
from unembed.models.structure.probe import Probe, is_linear, same
from unembed.models.structure.structure import Writer


@dataclass(frozen=True, eq=False)
class BlockWriter:
    """A vector that a block adds to the stream: the module that returns it, and the module that computes it."""

    probe: Probe
    output: str
    source: str
    """The path of the module that computed the vector, before the norm at `norm_path` if there is one."""
    raw: Tensor
    """The output of the module at `source`."""
    multiplier: float = 1.0
    """Factor by which the output is multiplied before it is added to the stream."""
    norm_path: str | None = None
    """The path of the norm between the module at `source` and the stream, if there is one."""
    channels: tuple[Tensor, Tensor] | None = None
    """Gain and shift of each channel, applied to the output before it is added to the stream."""
    behind: str = ""
    """The class of the convolution between the module at `source` and the stream; empty if there is none."""

    @property
    def module(self) -> nn.Module:
        """The module whose output is added."""
        return self.probe.hf.get_submodule(self.output)

    @property
    def norm(self) -> Norm | None:
        """The norm (or the gain of each channel) between the module that computed the vector and the stream."""
        if self.channels is None:
            return self.probe.norm(self.norm_path) if self.norm_path else None
        gains, shift = self.channels
        return ChannelGain(self.module, self.output, self.probe.d_model, gains=gains, shift=shift)

    def is_part_of(self, path: str) -> bool:
        """Tell whether the module at `path` is, or contains, the module that computed the added vector."""
        return _is_within(self.source, path)

    def named(self, block: str) -> Writer:
        """Return the `Writer` for the description of a block: a label, the module and the multiplier."""
        return Writer(self.source.removeprefix(block + ".").split(".")[0], self.module, self.multiplier)


def writers_of(probe: Probe, found: BlockSum, scale: float) -> list[BlockWriter]:
    """Return the writers of a `BlockSum`: the modules whose outputs it adds to the stream.

    Args:
        scale: the factor of the whole sum; the multipliers are divided by it.
    """
    return [
        _followed_back(probe, output, multiplier / scale, found.channels)
        for output, multiplier in zip(found.paths, found.multipliers, strict=True)
    ]


def _followed_back(probe: Probe, output: str, multiplier: float, channels: tuple[Tensor, Tensor] | None) -> BlockWriter:
    norm, source, raw = None, output, probe.recording.returned(output)
    if output in probe.norms:
        norm, raw = output, probe.recording.given(output)
        source = _computing(probe, output, raw)
    elif (inner := _norm_at_its_end(probe, output)) is not None:
        norm, raw = inner, probe.recording.given(inner)
    behind = before_convolution(probe, output)
    if behind is not None:
        source, raw = behind, probe.recording.returned(behind)
    assert raw is not None
    kind = "" if behind is None else type(probe.hf.get_submodule(output)).__name__
    return BlockWriter(probe, output, source, raw.reshape(1, -1, raw.shape[-1]), multiplier, norm, channels, kind)


def _computing(probe: Probe, norm: str, given: Tensor | None) -> str:
    """Return the path of the module whose output is the norm's input; it has the same parent as the norm."""
    beside = (p for p in probe.recording.calls if p.startswith(norm.rsplit(".", 1)[0] + ".") and p != norm)
    source = next((p for p in beside if _same_numbers(probe.recording.returned(p), given)), None)
    if source is None:
        raise probe.fail(norm, "its input is not a module's output, so which module adds to the stream is unknown")
    return source


def _norm_at_its_end(probe: Probe, output: str) -> str | None:
    """Return the path of the norm inside the module at `output` that computes its output (AXK1), or None."""
    returned = probe.recording.returned(output)
    inside = (p for p, m in probe.norms.items() if p.startswith(f"{output}.") and not is_linear(m))
    return next((p for p in inside if _same_numbers(probe.recording.returned(p), returned)), None)


def _same_numbers(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.numel() == b.numel() and same(a.reshape(b.shape), b)


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(outer + ".")


def mixer_among(writers: list[BlockWriter]) -> BlockWriter | None:
    """Return the attention or other token mixer: the module with attention weights, or else the first one."""

    def weighted(writer: BlockWriter) -> bool:
        calls, source = writer.probe.recording.calls, writer.source
        return any(calls[p].weights is not None for p in calls if _is_within(p, source) or _is_within(source, p))

    return next((one for one in writers if weighted(one)), writers[0] if writers else None)
