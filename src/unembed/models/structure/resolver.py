"""From a live model to its `Structure`, by one dry run and the comparison of tensors.

Each question ("which norm does the MLP read through?", "is anything else added to the stream?") is answered by finding
the tensor, and the answer is checked by recomputing the block's output. A structure that is not recognised is refused,
and the message names the part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from unembed.errors import ModelNotUnderstood, NotFinite, UnembedError, first_sentence
from unembed.models.norms import ChannelGain, Norm
from unembed.models.offload import is_offloaded
from unembed.models.structure.attention import mixer_site
from unembed.models.structure.block_sums import BlockSum, find_sum
from unembed.models.structure.dry_run import PassFailed, record, vocabulary_size
from unembed.models.structure.embedding_readout import embedding_of, readout_of
from unembed.models.structure.exotic.several_streams import streams_of
from unembed.models.structure.exotic.stream_blocks import check_end, stream_block
from unembed.models.structure.families import facts_of
from unembed.models.structure.feed_forward import feed_forward_site, ffn_path_of
from unembed.models.structure.probe import Probe, is_linear, not_understood, relative, same
from unembed.models.structure.projections import check_projections
from unembed.models.structure.rotary import common_style
from unembed.models.structure.structure import AttentionSite, Block, FeedForwardSite, Structure, Writer

_TOLERANCE = {torch.float64: 2e-5, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


_FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError, AssertionError, StopIteration)


@torch.no_grad()
def resolve(hf: PreTrainedModel) -> Structure:
    """The structure of a decoder, checked on a dry run of six random tokens.

    Raises:
        ModelNotUnderstood: some part does more than a `Structure` can describe; the message names it.
        NotFinite: the model's logits are NaN or infinite.
    """
    try:
        return _resolve(hf)
    except UnembedError:
        raise
    except _FAILURES as error:
        reason = f"{type(error).__name__}: {first_sentence(error)}"
        raise not_understood(hf, "its shapes are not those of a decoder with one stream", reason) from error


def _failed_pass(hf: PreTrainedModel, failed: PassFailed) -> ModelNotUnderstood:
    """The error for a dry run in which the model's own forward failed."""
    assert failed.__cause__ is not None
    error = f"{type(failed.__cause__).__name__}: {first_sentence(failed.__cause__)}"
    if not is_offloaded(hf) or "meta" not in error:
        return not_understood(hf, "the dry run failed", error)
    return not_understood(
        hf,
        "its forward pass with offloaded weights fails",
        f"{failed.within or 'the model'} uses weights, or their device, outside the calls for which accelerate loads "
        f"them ({error.rstrip('.!')})",
        f"Give {re.sub(r'[.][0-9]+[.]', '.*.', failed.within) or 'the model'} a device in device_map",
    )


def _resolve(hf: PreTrainedModel) -> Structure:
    config = hf.config.get_text_config()
    refused = facts_of(config.model_type).refused or facts_of(hf.config.model_type).refused
    if refused or getattr(hf.config, "is_encoder_decoder", False):
        raise not_understood(hf, "it cannot be opened", refused or facts_of("t5").refused)
    embedding, head = hf.get_input_embeddings(), hf.get_output_embeddings()
    if head is None or embedding is None:
        raise not_understood(hf, "its readout", "it has no language-model head, so there is no vocabulary to read in")
    blocks_path, blocks = _find_blocks(hf, config)
    d_model = config.hidden_size
    try:
        recording = record(hf, vocabulary_size(hf))
    except PassFailed as failed:
        raise _failed_pass(hf, failed) from failed.__cause__
    if not bool(torch.isfinite(recording.logits).all()):
        raise NotFinite(
            f"{type(hf).__name__}'s logits",
            why="the forward pass on six random tokens gives NaN or infinity",
            instead="Check the weights for NaN, or load with dtype=float32",
        )
    norms: dict[str, nn.Module] = {
        path: module
        for path, module in hf.named_modules()
        if ("norm" in type(module).__name__.lower() or re.search(r"norm|(^|\.)ln_", path.lower()))
        and not isinstance(module, (nn.Identity, nn.ModuleList))
        and (not list(module.children()) or re.search(r"gated\w*norm$", type(module).__name__.lower()))
        and (t := recording.returned(path)) is not None
        and t.shape == (1, recording.tokens.shape[1], d_model)
    }
    dtype = recording.logits.dtype if recording.logits.dtype in _TOLERANCE else torch.float32
    dtype = next((p.dtype for p in hf.parameters() if p.dtype in _TOLERANCE), dtype)
    probe = Probe(hf, config, recording, d_model, _TOLERANCE[dtype], norms)
    # Without layers the stream is what the embedding returns; the readout below checks that nothing is added to it.
    x = recording.given(f"{blocks_path}.0") if len(blocks) else recording.returned(_path_of(hf, embedding))
    decoder = hf.get_submodule(blocks_path.rpartition(".")[0])
    streams = streams_of(decoder, list(blocks), config)
    if streams is not None and x is not None:
        x = streams.split(x)[..., 0, :]
    if x is None or x.shape != (1, recording.tokens.shape[1], d_model):
        raise probe.fail("block 0", "it does not read one stream of shape (batch, pos, d_model)")
    position_embedding, embedding_scale = embedding_of(probe, embedding, blocks_path, x)
    positions_added = position_embedding is None and relative(x[:, -1], x[:, 0]) > 10 * probe.tolerance
    found: list[Block] = []
    for number, module in enumerate(blocks):
        path = f"{blocks_path}.{number}"
        if streams is not None:
            found.append(stream_block(probe, path, number, module, streams))
        elif path in recording.calls:  # Mllama leaves its cross-attention out of a pass without an image
            entering = recording.given(path)
            block, x = _block(probe, path, module, x if entering is None else entering)
            found.append(block)
    found = _with_common_rotation(found)
    if streams is not None:
        leaving, x = recording.returned(f"{blocks_path}.{len(blocks) - 1}"), _read_at_the_end(probe, head)
        assert leaving is not None
        check_end(probe, streams, leaving, x)
    else:
        found, x = _with_handovers(probe, found, x, _read_at_the_end(probe, head))
    final_norm, logit_scale, softcap = readout_of(probe, head, x)
    projections = check_projections(probe, found, head)
    return Structure(
        family=config.model_type,
        blocks=tuple(found),
        embedding=embedding,
        position_embedding=position_embedding,
        read_positions=_read_positions(hf, found),
        positions="added" if positions_added else _positions(found, position_embedding),
        embedding_scale=embedding_scale,
        final_norm=final_norm,
        head=head,
        logit_scale=logit_scale,
        logit_softcap=softcap,
        effective=projections.effective,
        not_linear=projections.not_linear,
    )


def _path_of(hf: PreTrainedModel, module: nn.Module) -> str:
    return next(path for path, other in hf.named_modules() if other is module)


def _find_blocks(hf: PreTrainedModel, config: Any) -> tuple[str, nn.ModuleList]:
    n_layers = config.num_hidden_layers
    decoder = hf.get_decoder() if hasattr(hf, "get_decoder") else hf
    # Tables of an embedding (the bands of an adaptive one) are not blocks, even where there are as many.
    embedding = hf.get_input_embeddings()
    tables = set() if embedding is None else {id(m) for m in embedding.modules()}
    inside = {id(m) for m in decoder.modules()} - tables
    lists = [
        (path, module)
        for path, module in hf.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == n_layers and id(module) in inside
    ]
    outer = [(p, m) for p, m in lists if not any(p.startswith(q + ".") for q, _ in lists if q != p)]
    if len(outer) != 1:
        raise not_understood(hf, "its blocks", f"there are {len(outer)} module lists of {n_layers} layers, not one")
    return outer[0]


def _read_at_the_end(probe: Probe, head: nn.Module) -> Tensor:
    """The input of the final norm, or of the head where there is none."""
    entered = probe.recording.given(next(p for p, m in probe.hf.named_modules() if m is head))
    norm = probe.norm_returning(entered, "")
    last = probe.recording.given(norm) if norm else entered
    assert last is not None
    return last


def _with_handovers(probe: Probe, blocks: list[Block], last: Tensor, read: Tensor) -> tuple[list[Block], Tensor]:
    """Blocks whose output the model multiplies by a number before what reads it (RWKV halves it now and then).

    Args:
        probe: the model and its dry run.
        last: what the last one returned.
        read: what the final norm was given.

    Returns:
        The blocks, and the last stream.

    Raises:
        ModelNotUnderstood: the next block reads something else.
    """
    mended = []
    for block, after in zip(blocks, [*blocks[1:], None], strict=False):
        y = probe.recording.returned(block.path)
        x = read if after is None else probe.recording.given(after.path)
        if x is None or y is None or same(x, y) or x.shape != y.shape:
            mended.append(block)
            continue
        factor = float((x.double() * y.double()).sum() / y.double().square().sum().clamp_min(1e-30))
        fits = relative(factor * y, x) <= probe.tolerance
        if not fits and after is not None:
            raise probe.fail(f"block {block.path}", "the next block does not read what it returns")
        near = round(factor * 2**10) / 2**10
        factor = near if abs(near - factor) <= 1e-3 * abs(factor) else factor
        mended.append(replace(block, handover=factor) if fits else block)
    return mended, read if mended and mended[-1].handover != 1.0 else last


def _with_common_rotation(blocks: list[Block]) -> list[Block]:
    """Blocks whose own attention does not show how it is rotated take it from one that does."""
    shown = common_style([block.mixer.scores.rotary for block in blocks if block.mixer is not None])
    if shown is None:
        return blocks
    mended = []
    for block in blocks:
        rotary = None if block.mixer is None else block.mixer.scores.rotary
        if block.mixer is not None and rotary is not None and not rotary.certain:
            rotary = replace(rotary, interleaved=shown.interleaved, sign=shown.sign)
            scores = replace(block.mixer.scores, rotary=rotary)
            block = replace(block, mixer=replace(block.mixer, scores=scores))
        mended.append(block)
    return mended


def _positions(blocks: list[Block], position_embedding: nn.Module | None) -> str:
    sites = [b.mixer for b in blocks if b.mixer is not None]
    if position_embedding is not None:
        return "learned"
    if any(s.scores.rotary is not None for s in sites):
        return "rotary"
    if any(s.scores.alibi_slopes is not None for s in sites):
        return "alibi"
    return "qk_learned" if any(s.positions_read for s in sites) else "none"


def _read_positions(hf: PreTrainedModel, blocks: list[Block]) -> nn.Module | None:
    if not any(b.mixer is not None and b.mixer.positions_read for b in blocks):
        return None
    tables = [m for n, m in hf.named_modules() if n.endswith("embed_positions") and isinstance(m, nn.Embedding)]
    return tables[0] if len(tables) == 1 else None


@dataclass(frozen=True, eq=False)
class _Part:
    """One writer of a block: the module whose output is added, and the module behind a branch norm that computed it."""

    output: str
    branch: str | None
    source: str
    raw: Tensor
    multiplier: float
    channels: tuple[Tensor, Tensor] | None = None
    """A gain and a shift per channel on its way to the stream."""
    behind: str = ""
    """The kind of module that mixes positions between the branch and the stream, if there is one."""

    def branch_norm(self, probe: Probe) -> Norm | None:
        """The norm or gain per channel that follows the branch, before the stream."""
        if self.channels is None:
            return probe.norm(self.branch) if self.branch else None
        gains, shift = self.channels
        return ChannelGain(probe.hf.get_submodule(self.output), self.output, probe.d_model, gains=gains, shift=shift)


def _block(probe: Probe, path: str, module: nn.Module, x: Tensor) -> tuple[Block, Tensor]:
    y = probe.recording.returned(path)
    if y is None or y.shape != x.shape:
        raise probe.fail(f"block {path}", "it does not return hidden states of the stream's shape")
    ffn_path = ffn_path_of(probe, path, module)
    entered = None if ffn_path is None else _entered(probe, path, ffn_path)
    called = [p for p in probe.recording.calls if p.startswith(path + ".")]
    if ffn_path is None or entered is None or same(entered, x):
        late = _sum(probe, path, x, y, called)
        early, middle = None, x
    else:
        first = f"{path}.fc1" if ffn_path == path else ffn_path
        at = next(i for i, p in enumerate(called) if p == first or p.startswith(first + "."))
        early, middle = _sum(probe, path, x, entered, called[:at]), entered
        late = _sum(probe, path, entered, y, called[at:])
    exit_gain = late.gain
    if isinstance(exit_gain, Tensor):
        late_scale, exit_scale, middle_gain = 1.0, 1.0, exit_gain
    else:
        late_scale, exit_scale, middle_gain = float(exit_gain), exit_gain, 1.0
    late_norm = probe.norm(late.norm) if late.norm else None
    early_parts = [] if early is None else _parts(probe, early, 1.0)
    late_parts = _parts(probe, late, late_scale)
    ffn = next((p for p in late_parts if ffn_path is not None and _is_within(p.source, ffn_path)), None)
    if ffn_path is not None and ffn is None:
        raise probe.fail(f"block {path}", f"what {ffn_path} returns is not part of the block's output", probe.way_on)
    others = [p for p in late_parts if p is not ffn]
    pool = early_parts if early is not None else others
    mixer = _mixer_among(probe, pool)
    pool = [p for p in pool if p is not mixer]
    constant = (early or late).constant if mixer is not None else None
    if any(s is not None and s.constant is not None for s in ([late] if early is not None else [])):
        raise probe.fail(f"block {path}", "something constant is added after its FFN")
    site = None
    if mixer is not None:
        output = probe.hf.get_submodule(mixer.output)
        branch = mixer.branch_norm(probe)
        site = mixer_site(probe, path, mixer.source, mixer.raw, output, branch, mixer.multiplier, constant)
        site = _convolved_mixer(site, mixer.behind) if mixer.behind else site
    feed_forward, parallel = None, False
    if ffn is not None and ffn_path is not None:
        feed_forward, parallel = feed_forward_site(
            probe, path, ffn_path, ffn.raw, x, middle, ffn.branch, ffn.multiplier, probe.hf.get_submodule(ffn.output)
        )
        if ffn.channels is not None:
            feed_forward = replace(feed_forward, branch_norm=ffn.branch_norm(probe))
        feed_forward = _convolved_ffn(feed_forward, ffn.behind) if ffn.behind else feed_forward
    return (
        Block(
            path=path,
            module=module,
            mixer=site,
            feed_forward=feed_forward,
            parallel=parallel and site is not None,
            early_writers=tuple(_writer(probe, path, p) for p in pool) if early is not None else (),
            late_writers=tuple(_writer(probe, path, p) for p in (others if early is not None else pool)),
            entry_gain=1.0 if early is None else early.gain,
            middle_gain=middle_gain,
            exit_gain=exit_scale,
            entry_norm=late_norm if early is None else probe.norm(early.norm) if early.norm else None,
            middle_norm=late_norm if early is not None else None,
        ),
        y,
    )


def _entered(probe: Probe, path: str, ffn_path: str) -> Tensor | None:
    """The stream that the FFN reads, before its norm."""
    read = probe.recording.given(f"{path}.fc1" if ffn_path == path else ffn_path)
    if read is None:
        return None
    read = read.view(1, -1, read.shape[-1])
    norm_path = probe.norm_returning(read, path + ".")
    return probe.recording.given(norm_path) if norm_path else read


def _sum(probe: Probe, path: str, base: Tensor, target: Tensor, called: list[str]) -> BlockSum:
    """The writers between two states of the stream: direct children of the block if they suffice, else any module."""
    children = [p for p in called if p.count(".") == path.count(".") + 1]
    best = None
    norms = [p for p in probe.norms if p.startswith(path + ".") and same(probe.recording.given(p), base)]
    for paths in (children, called):
        found = find_sum(probe, base, target, paths)
        if found is not None and found.error <= probe.tolerance and not set(norms) & set(found.paths):
            return found
        best = found if best is None or (found is not None and found.error < best.error) else best
    # The stream itself may go through a norm first (MiniMax, the first block of RWKV).
    for norm in norms:
        normed = probe.recording.returned(norm)
        found = None if normed is None else find_sum(probe, normed, target, [p for p in children if p != norm])
        if found is not None and found.error <= probe.tolerance and found.gain != 0:
            return replace(found, norm=norm)
    error = float("inf") if best is None else best.error
    gain = 1.0 if best is None or isinstance(best.gain, Tensor) else best.gain
    raise probe.fail(
        f"block {path}",
        f"its output is not stream + attention + FFN (relative error {error:.1e}, stream times {gain:.4g}): something "
        "else is added, or the stream itself is normalised",
        probe.way_on,
    )


def _parts(probe: Probe, found: BlockSum, scale: float) -> list[_Part]:
    """The writers of a sum, each followed back through a norm on its branch."""
    parts = []
    for output, multiplier in zip(found.paths, found.multipliers, strict=True):
        branch, source, raw = None, output, probe.recording.returned(output)
        if output in probe.norms:
            branch, raw = output, probe.recording.given(output)
            inside = output.rsplit(".", 1)[0] + "."
            found_source = next(
                (
                    p
                    for p in probe.recording.calls
                    if p.startswith(inside) and p != output and _same_numbers(probe.recording.returned(p), raw)
                ),
                None,
            )
            if found_source is None:
                raise probe.fail(output, "what it normalises is not the output of a module, so its writers are unknown")
            source = found_source
        elif (inner := _norm_at_its_end(probe, output)) is not None:
            branch, raw = inner, probe.recording.given(inner)
        behind = _before_convolution(probe, output)
        if behind is not None:
            source, raw = behind, probe.recording.returned(behind)
        assert raw is not None
        kind = "" if behind is None else type(probe.hf.get_submodule(output)).__name__
        raw = raw.reshape(1, -1, raw.shape[-1])
        parts.append(_Part(output, branch, source, raw, multiplier / scale, found.channels, kind))
    return parts


def _norm_at_its_end(probe: Probe, output: str) -> str | None:
    """The norm inside a module whose output the module returns as its own (AXK1)."""
    returned = probe.recording.returned(output)
    inside = (p for p, m in probe.norms.items() if p.startswith(f"{output}.") and not is_linear(m))
    return next((p for p in inside if _same_numbers(probe.recording.returned(p), returned)), None)


def _before_convolution(probe: Probe, output: str) -> str | None:
    """The branch whose output passes a convolution over positions before it is written (Inkling)."""
    if not any(isinstance(m, nn.Conv1d) for m in probe.hf.get_submodule(output).modules()):
        return None
    given, outer = probe.recording.given(output), output.rpartition(".")[0] + "."
    siblings = (p for p in probe.recording.calls if p.startswith(outer) and "." not in p.removeprefix(outer))
    return next(
        (p for p in siblings if p != output and p not in probe.norms and same(probe.recording.returned(p), given)), None
    )


def _convolved_mixer(site: AttentionSite, kind: str) -> AttentionSite:
    """A mixer whose heads do not reach the stream at their own position alone."""
    reason = f"its output goes through {kind}, which mixes positions, before it reaches the stream"
    return replace(
        site, out_projection=None, n_heads=0, values=None, head_layout=None, values_missing=reason, no_heads=reason
    )


def _convolved_ffn(site: FeedForwardSite, kind: str) -> FeedForwardSite:
    """An FFN whose memories do not reach the stream at their own position alone."""
    reason = f"the output of its memories goes through {kind}, which mixes positions, before it reaches the stream"
    return replace(site, down_proj=None, experts=None, memories_missing=reason)


def _same_numbers(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.numel() == b.numel() and same(a.reshape(b.shape), b)


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(outer + ".")


def _mixer_among(probe: Probe, parts: list[_Part]) -> _Part | None:
    """The part that is the block's mixer: the one with attention weights where there are several."""

    def weighted(part: _Part) -> bool:
        related = (p for p in probe.recording.calls if _is_within(p, part.source) or _is_within(part.source, p))
        return any(probe.recording.calls[p].weights is not None for p in related)

    return next((p for p in parts if weighted(p)), parts[0] if parts else None)


def _writer(probe: Probe, path: str, part: _Part) -> Writer:
    label = part.source.removeprefix(path + ".").split(".")[0]
    return Writer(label, probe.hf.get_submodule(part.output), part.multiplier)
