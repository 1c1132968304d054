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
from unembed.models.structure.exotic.convolution import before_convolution, convolved_ffn, convolved_mixer
from unembed.models.structure.exotic.handovers import with_handovers
from unembed.models.structure.exotic.several_streams import Streams, streams_of
from unembed.models.structure.exotic.stream_blocks import check_end, stream_blocks
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
    embedding, head = _ends(hf, config)
    blocks_path, modules = _find_blocks(hf, config)
    probe = _probe(hf, config)
    streams = streams_of(hf.get_submodule(blocks_path.rpartition(".")[0]), list(modules), config)
    x = _entering(probe, blocks_path, embedding, streams)
    position_embedding, embedding_scale = embedding_of(probe, embedding, blocks_path, x)
    positions_added = position_embedding is None and relative(x[:, -1], x[:, 0]) > 10 * probe.tolerance
    if streams is None:
        blocks, leaving = _blocks(probe, blocks_path, modules, x)
        blocks, last = with_handovers(probe, blocks, leaving, _read_at_the_end(probe, head))
    else:
        blocks, last = stream_blocks(probe, blocks_path, modules, streams), _read_at_the_end(probe, head)
        check_end(probe, blocks[-1].path, streams, last)
    blocks = _with_common_rotation(blocks)
    final_norm, logit_scale, softcap = readout_of(probe, head, last)
    projections = check_projections(probe, blocks, head)
    return Structure(
        family=config.model_type,
        blocks=tuple(blocks),
        embedding=embedding,
        position_embedding=position_embedding,
        read_positions=_read_positions(hf, blocks),
        positions="added" if positions_added else _positions(blocks, position_embedding),
        embedding_scale=embedding_scale,
        final_norm=final_norm,
        head=head,
        logit_scale=logit_scale,
        logit_softcap=softcap,
        effective=projections.effective,
        not_linear=projections.not_linear,
    )


def _ends(hf: PreTrainedModel, config: Any) -> tuple[nn.Module, nn.Module]:
    """The embedding and the head of a model that is not refused."""
    refused = facts_of(config.model_type).refused or facts_of(hf.config.model_type).refused
    if refused or getattr(hf.config, "is_encoder_decoder", False):
        raise not_understood(hf, "it cannot be opened", refused or facts_of("t5").refused)
    embedding, head = hf.get_input_embeddings(), hf.get_output_embeddings()
    if head is None or embedding is None:
        raise not_understood(hf, "its readout", "it has no language-model head, so there is no vocabulary to read in")
    return embedding, head


def _probe(hf: PreTrainedModel, config: Any) -> Probe:
    """The recording of the dry run, with the norms that worked on the stream's width in it."""
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
        if _is_norm(path, module)
        and (t := recording.returned(path)) is not None
        and t.shape == (1, recording.tokens.shape[1], config.hidden_size)
    }
    dtype = recording.logits.dtype if recording.logits.dtype in _TOLERANCE else torch.float32
    dtype = next((p.dtype for p in hf.parameters() if p.dtype in _TOLERANCE), dtype)
    return Probe(hf, config, recording, config.hidden_size, _TOLERANCE[dtype], norms)


def _is_norm(path: str, module: nn.Module) -> bool:
    """Whether a module is a norm by its class or name, without norms inside unless it is gated."""
    kind = type(module).__name__.lower()
    return (
        bool("norm" in kind or re.search(r"norm|(^|\.)ln_", path.lower()))
        and not isinstance(module, (nn.Identity, nn.ModuleList))
        and bool(not list(module.children()) or re.search(r"gated\w*norm$", kind))
    )


def _entering(probe: Probe, blocks_path: str, embedding: nn.Module, streams: Streams | None) -> Tensor:
    """The stream that enters the first block, or the first of several streams.

    Without layers it is what the embedding returns; the readout checks that nothing is added to it.
    """
    first = f"{blocks_path}.0"
    has_blocks = first in dict(probe.hf.named_modules())
    x = probe.recording.given(first) if has_blocks else probe.recording.returned(_path_of(probe.hf, embedding))
    if streams is not None and x is not None:
        x = streams.split(x)[..., 0, :]
    if x is None or x.shape != (1, probe.recording.tokens.shape[1], probe.d_model):
        raise probe.fail("block 0", "it does not read one stream of shape (batch, pos, d_model)")
    return x


def _blocks(probe: Probe, blocks_path: str, modules: nn.ModuleList, x: Tensor) -> tuple[list[Block], Tensor]:
    """The blocks in order, and the stream that leaves the last one."""
    found: list[Block] = []
    for number, module in enumerate(modules):
        path = f"{blocks_path}.{number}"
        if path in probe.recording.calls:  # Mllama leaves its cross-attention out of a pass without an image
            entering = probe.recording.given(path)
            block, x = _block(probe, path, module, x if entering is None else entering)
            found.append(block)
    return found, x


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
    """One block, from the stream that entered it, and the stream that leaves it."""
    y = probe.recording.returned(path)
    if y is None or y.shape != x.shape:
        raise probe.fail(f"block {path}", "it does not return hidden states of the stream's shape")
    ffn_path = ffn_path_of(probe, path, module)
    steps = _steps(probe, path, ffn_path, x, y)
    early_parts = [] if steps.early is None else _parts(probe, steps.early, 1.0)
    late_parts = _parts(probe, steps.late, steps.exit_gain)
    ffn = next((p for p in late_parts if ffn_path is not None and _is_within(p.source, ffn_path)), None)
    if ffn_path is not None and ffn is None:
        raise probe.fail(f"block {path}", f"what {ffn_path} returns is not part of the block's output", probe.way_on)
    late_parts = [p for p in late_parts if p is not ffn]
    mixer = _mixer_among(probe, late_parts if steps.early is None else early_parts)
    if steps.early is not None and steps.late.constant is not None:
        raise probe.fail(f"block {path}", "something constant is added after its FFN")
    site = None if mixer is None else _mixer(probe, path, mixer, (steps.early or steps.late).constant)
    feed_forward, parallel = None, False
    if ffn is not None and ffn_path is not None:
        feed_forward, parallel = _feed_forward(probe, path, ffn_path, ffn, x, steps.middle)
    return (
        Block(
            path=path,
            module=module,
            mixer=site,
            feed_forward=feed_forward,
            parallel=parallel and site is not None,
            early_writers=tuple(_writer(probe, path, p) for p in early_parts if p is not mixer),
            late_writers=tuple(_writer(probe, path, p) for p in late_parts if p is not mixer),
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
    """The sums by which a block gets from the stream that enters it to the one that leaves it."""

    early: BlockSum | None
    """What is written before the FFN reads the stream; None where everything is written in one step."""
    middle: Tensor
    """The stream that the FFN reads."""
    late: BlockSum

    @property
    def exit_gain(self) -> float:
        """The factor of the whole output, where the last step has a number as its gain."""
        return 1.0 if isinstance(self.late.gain, Tensor) else float(self.late.gain)

    @property
    def middle_gain(self) -> float | Tensor:
        """The factor of each channel of the stream before the last step; 1 where there is none."""
        return self.late.gain if isinstance(self.late.gain, Tensor) else 1.0


def _steps(probe: Probe, path: str, ffn_path: str | None, x: Tensor, y: Tensor) -> _Steps:
    entered = None if ffn_path is None else _entered(probe, path, ffn_path)
    called = [p for p in probe.recording.calls if p.startswith(path + ".")]
    if ffn_path is None or entered is None or same(entered, x):
        return _Steps(None, x, _sum(probe, path, x, y, called))
    first = f"{path}.fc1" if ffn_path == path else ffn_path
    at = next(i for i, p in enumerate(called) if p == first or p.startswith(first + "."))
    early = _sum(probe, path, x, entered, called[:at])
    return _Steps(early, entered, _sum(probe, path, entered, y, called[at:]))


def _stream_norm(probe: Probe, step: BlockSum) -> Norm | None:
    return probe.norm(step.norm) if step.norm else None


def _mixer(probe: Probe, path: str, part: _Part, constant: Tensor | None) -> AttentionSite:
    output, norm = probe.hf.get_submodule(part.output), part.branch_norm(probe)
    site = mixer_site(probe, path, part.source, part.raw, output, norm, part.multiplier, constant)
    return convolved_mixer(site, part.behind) if part.behind else site


def _feed_forward(
    probe: Probe, path: str, ffn_path: str, part: _Part, x: Tensor, middle: Tensor
) -> tuple[FeedForwardSite, bool]:
    """The FFN, and whether it reads what entered the block."""
    output = probe.hf.get_submodule(part.output)
    site, parallel = feed_forward_site(probe, path, ffn_path, part.raw, x, middle, part.branch, part.multiplier, output)
    if part.channels is not None:
        site = replace(site, branch_norm=part.branch_norm(probe))
    return convolved_ffn(site, part.behind) if part.behind else site, parallel


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
        behind = before_convolution(probe, output)
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
