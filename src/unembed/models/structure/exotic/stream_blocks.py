"""Describe the blocks of a model with several residual streams, from a recorded forward pass.

A linear system cannot show which modules add to several streams. They are taken to be the modules whose outputs the
family's mixing (`several_streams`) reads. An attribution, whose terms must add up to the logit, checks the result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from torch import Tensor, nn

from unembed.models.norms import OpaqueNorm
from unembed.models.structure.attention import mixer_site
from unembed.models.structure.block_writers import BlockWriter
from unembed.models.structure.exotic.several_streams import AltUp, Streams
from unembed.models.structure.feed_forward import feed_forward_site, ffn_path_of
from unembed.models.structure.probe import Probe, relative
from unembed.models.structure.structure import AttentionSite, Block, FeedForwardSite, Writer

_MIXERS = ("self_attn", "linear_attn", "attention", "attn")
_REASON = "it reads a mixture of several streams, with weights that depend on the position"

Site = TypeVar("Site", AttentionSite, FeedForwardSite)


def blocks_of_streams(
    probe: Probe, blocks_path: str, modules: nn.ModuleList, streams: Streams, last: Tensor
) -> list[Block]:
    """Return the blocks of a model with several streams; `last` is the input of the final norm.

    Raises:
        ModelNotUnderstood: a mixer or FFN was not found, or the input of the final norm is not the streams as
            `Streams.collapsed` combines them.
    """
    blocks = [_block(probe, f"{blocks_path}.{n}", n, module, streams) for n, module in enumerate(modules)]
    leaving = probe.recording.returned(blocks[-1].path)
    assert leaving is not None
    each = streams.split(leaving)
    collapsed = streams.collapsed(each)
    u = last.double().flatten(0, -2)[-1].to(last.dtype)
    whole = (streams.pulled_through_end(u, each) * each).sum(dim=(-1, -2))
    for found, what in ((collapsed, last), (whole, last @ u)):
        if relative(found, what) > 10 * probe.tolerance:
            raise probe.fail("its readout", "it is unknown how the streams are combined")
    return blocks


def _block(probe: Probe, path: str, number: int, module: nn.Module, streams: Streams) -> Block:
    name = next((n for n in _MIXERS if f"{path}.{n}" in probe.recording.calls), None)
    ffn_path = ffn_path_of(probe, path, module)
    if name is None or ffn_path is None:
        raise probe.fail(
            f"block {path}", "the model has several residual streams, and the mixer or FFN of this block was not found"
        )
    alternating = isinstance(streams, AltUp)
    half = 0.5**0.5 if alternating else 1.0
    attention = _writer(probe, path, f"{path}.{name}", half, "post_attention_layernorm" if alternating else None)
    ffn = _writer(probe, path, ffn_path, 1.0, "post_feedforward_layernorm" if alternating else None)
    mixer = mixer_site(attention, path, constant=None)
    site = feed_forward_site(ffn, path, ffn_path)
    early, late = _others(probe, path, module, alternating, half)
    return Block(
        path=path,
        module=module,
        mixer=_opaque(mixer),
        feed_forward=_opaque(site),
        parallel=True,
        early_writers=early,
        late_writers=late,
        streams=streams,
        middle_module=streams.middle_module(number),
    )


def _writer(probe: Probe, path: str, source: str, multiplier: float, norm: str | None) -> BlockWriter:
    """Describe an attention or FFN module as a writer; with `norm`, the output of that norm is added to the stream."""
    raw = probe.recording.returned(source)
    if raw is None:
        raise probe.fail(f"block {path}", f"{source} returned no tensor")
    behind = None if norm is None else f"{path}.{norm}"
    return BlockWriter(probe, behind or source, source, raw.reshape(1, -1, raw.shape[-1]), multiplier, behind)


def _others(
    probe: Probe, path: str, module: nn.Module, alternating: bool, half: float
) -> tuple[tuple[Writer, ...], tuple[Writer, ...]]:
    if alternating:
        laurel = Writer("laurel", module.get_submodule("laurel"), half)
        return (laurel,), (Writer("per_layer_input", module.get_submodule("post_per_layer_input_norm"), 1.0),)
    # Before attention, Qwen 4 adds embeddings of hashed n-grams to every stream.
    if f"{path}.ple" in probe.recording.calls:
        return (Writer("ngram_embedding", module.get_submodule("ple"), 1.0, each_stream=True),), ()
    return (), ()


def _opaque(site: Site) -> Site:
    """Mark the norm before attention or FFN as one that cannot be folded, because its input is not a single stream."""
    norm = site.pre_norm
    module, path, width = (
        (site.module, site.module.__class__.__name__, 0) if norm is None else (norm.module, norm.path, norm.width)
    )
    return replace(site, pre_norm=OpaqueNorm(module, path, width, reason=_REASON))
