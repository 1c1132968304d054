"""Describe one transformer block with one residual stream, checked on a recorded forward pass.

The description says what the block adds to the stream, in which order, and which modules are its token mixer and its
FFN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from unembed.models.norms import Norm
from unembed.models.structure.attention import mixer_site
from unembed.models.structure.block_sums import BlockSum, find_sum
from unembed.models.structure.block_writers import mixer_among, writers_of
from unembed.models.structure.exotic import convolved_ffn, convolved_mixer
from unembed.models.structure.feed_forward import feed_forward_site, ffn_input, ffn_path_of
from unembed.models.structure.probe import Probe, same
from unembed.models.structure.structure import Block
from unembed.results import format_error, format_number


def resolve_block(probe: Probe, path: str, module: nn.Module, x: Tensor) -> tuple[Block, Tensor]:
    """Return the description of a block, and the stream that leaves it.

    `x` is the stream that enters the block in the recorded forward pass.
    """
    y = probe.recording.returned(path)
    if y is None or y.shape != x.shape:
        raise probe.fail(f"block {path}", "it does not return hidden states of the stream's shape")
    ffn_path = ffn_path_of(probe, path, module)
    steps = _steps(probe, path, ffn_path, x, y)
    early = [] if steps.early is None else writers_of(probe, steps.early, 1.0)
    late = writers_of(probe, steps.late, steps.exit_gain)
    ffn = next((one for one in late if ffn_path is not None and one.is_part_of(ffn_path)), None)
    if ffn_path is not None and ffn is None:
        raise probe.fail(f"block {path}", f"the output of {ffn_path} does not reach the block's output", probe.way_on)
    late = [one for one in late if one is not ffn]
    mixer = mixer_among(late if steps.early is None else early)
    if steps.early is not None and steps.late.constant is not None:
        raise probe.fail(f"block {path}", "a constant vector is added after its FFN")
    site, feed_forward = None, None
    if mixer is not None:
        site = mixer_site(mixer, path, (steps.early or steps.late).constant)
        site = convolved_mixer(site, mixer.behind) if mixer.behind else site
    if ffn is not None and ffn_path is not None:
        feed_forward = feed_forward_site(ffn, path, ffn_path)
        feed_forward = convolved_ffn(feed_forward, ffn.behind) if ffn.behind else feed_forward
    return (
        Block(
            path=path,
            module=module,
            mixer=site,
            feed_forward=feed_forward,
            parallel=steps.early is None and site is not None and feed_forward is not None,
            early_writers=tuple(one.named(path) for one in early if one is not mixer),
            late_writers=tuple(one.named(path) for one in late if one is not mixer),
            entry_gain=1.0 if steps.early is None else steps.early.gain,
            middle_gain=steps.middle_gain,
            exit_gain=steps.exit_gain,
            entry_norm=_stream_norm(probe, steps.early or steps.late),
            middle_norm=None if steps.early is None else _stream_norm(probe, steps.late),
        ),
        y,
    )


@dataclass(frozen=True, eq=False)
class _Steps:
    """The one or two sums (before and after the FFN reads the stream) by which a block changes the stream."""

    early: BlockSum | None
    """The sum that is added before the FFN reads the stream; None if the block adds everything in one step."""
    late: BlockSum

    @property
    def exit_gain(self) -> float:
        """The factor of the block's whole output: the last sum's gain if that is a single number, else 1."""
        return 1.0 if isinstance(self.late.gain, Tensor) else float(self.late.gain)

    @property
    def middle_gain(self) -> float | Tensor:
        """The factor of each channel of the stream before the last sum; 1 if there is no such factor."""
        return self.late.gain if isinstance(self.late.gain, Tensor) else 1.0


def _steps(probe: Probe, path: str, ffn_path: str | None, x: Tensor, y: Tensor) -> _Steps:
    recorded = None if ffn_path is None else ffn_input(probe, path, ffn_path)
    called = [p for p in probe.recording.calls if p.startswith(path + ".")]
    if ffn_path is None or recorded is None or same(recorded[2], x):
        return _Steps(None, _sum(probe, path, x, y, called))
    middle = recorded[2]
    first = f"{path}.fc1" if ffn_path == path else ffn_path
    at = next(i for i, p in enumerate(called) if p == first or p.startswith(first + "."))
    return _Steps(_sum(probe, path, x, middle, called[:at]), _sum(probe, path, middle, y, called[at:]))


def _stream_norm(probe: Probe, step: BlockSum) -> Norm | None:
    return probe.norm(step.norm) if step.norm else None


def _sum(probe: Probe, path: str, base: Tensor, target: Tensor, called: list[str]) -> BlockSum:
    """Find the modules whose outputs turn `base` into `target`: children of the block, or else any modules in it."""
    children = [p for p in called if p.count(".") == path.count(".") + 1]
    best = None
    norms = [p for p in probe.norms if p.startswith(path + ".") and same(probe.recording.given(p), base)]
    for paths in (children, called):
        found = find_sum(probe, base, target, paths)
        if found is not None and found.error <= probe.tolerance and not set(norms) & set(found.paths):
            return found
        best = found if best is None or (found is not None and found.error < best.error) else best
    # In some models (MiniMax, the first block of RWKV) the block adds to the normalised stream, not to the stream that
    # entered it. So every norm that reads the stream is tried as the base of the sum.
    for norm in norms:
        normed = probe.recording.returned(norm)
        found = None if normed is None else find_sum(probe, normed, target, [p for p in children if p != norm])
        if found is not None and found.error <= probe.tolerance and found.gain != 0:
            return replace(found, norm=norm)
    error = float("inf") if best is None else best.error
    gain = 1.0 if best is None or isinstance(best.gain, Tensor) else best.gain
    raise probe.fail(
        f"block {path}",
        f"its output is not stream + attention + FFN (relative error {format_error(error, 2)}, with the stream "
        f"multiplied by {format_number(gain)}): something else is added, or the stream itself is normalised",
        probe.way_on,
    )
