"""Handle attention and FFN outputs that are convolved over positions before they are added to the stream (Inkling)."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from unembed.models.structure.probe import Probe, same
from unembed.models.structure.structure import AttentionSite, FeedForwardSite


def before_convolution(probe: Probe, output: str) -> str | None:
    """Return the path of the module whose output the convolution at `output` reads; None if no convolution is there."""
    if not any(isinstance(m, nn.Conv1d) for m in probe.hf.get_submodule(output).modules()):
        return None
    given, outer = probe.recording.given(output), output.rpartition(".")[0] + "."
    siblings = (p for p in probe.recording.calls if p.startswith(outer) and "." not in p.removeprefix(outer))
    return next(
        (p for p in siblings if p != output and p not in probe.norms and same(probe.recording.returned(p), given)), None
    )


def convolved_mixer(site: AttentionSite, kind: str) -> AttentionSite:
    """Remove heads and values from the description of a mixer whose output is convolved over positions.

    What is added to the stream at a position then also depends on the heads' outputs at other positions.
    """
    reason = f"its output goes through {kind}, which mixes positions, before it reaches the stream"
    return replace(
        site, out_projection=None, n_heads=0, values=None, head_layout=None, values_missing=reason, no_heads=reason
    )


def convolved_ffn(site: FeedForwardSite, kind: str) -> FeedForwardSite:
    """Remove the memories from the description of an FFN whose output is convolved over positions.

    What is added to the stream at a position then also depends on coefficients at other positions.
    """
    reason = f"the output of its memories goes through {kind}, which mixes positions, before it reaches the stream"
    return replace(site, down_proj=None, experts=None, memories_missing=reason)
