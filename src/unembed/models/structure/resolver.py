"""Find the `Structure` of a loaded model by running it once and comparing the recorded tensors.

Each question ("which norm does the MLP read through?", "is anything else added to the stream?") is answered by finding
the recorded tensor that fits, and checked by recomputing the block's output. A model whose structure is not recognised
is refused, and the message names the part.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from unembed.errors import ModelNotUnderstood, NotFinite, UnembedError, first_sentence
from unembed.models.offload import is_offloaded
from unembed.models.structure.block import resolve_block
from unembed.models.structure.dry_run import PassFailed, record, vocabulary_size
from unembed.models.structure.embedding_readout import embedding_of, readout_of
from unembed.models.structure.exotic import Streams, blocks_of_streams, streams_of, with_handovers
from unembed.models.structure.families import facts_of
from unembed.models.structure.probe import Probe, not_understood, relative
from unembed.models.structure.projections import check_projections
from unembed.models.structure.rotary import common_style
from unembed.models.structure.structure import Block, Structure

_TOLERANCE = {torch.float64: 2e-5, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


_FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError, AssertionError, StopIteration)


@torch.no_grad()
def resolve(hf: PreTrainedModel) -> Structure:
    """Return the structure of a decoder, checked on one forward pass of six random tokens.

    Raises:
        ModelNotUnderstood: a part of the model does more than a `Structure` can describe; the message names it.
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
    """Return the error for a model whose own forward pass failed."""
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
    last = _read_at_the_end(probe, head)
    if streams is None:
        blocks, leaving = _blocks(probe, blocks_path, modules, x)
        blocks, last = with_handovers(probe, blocks, leaving, last)
    else:
        blocks = blocks_of_streams(probe, blocks_path, modules, streams, last)
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
    """Return the embedding and the language-model head; refuse a model without one, and unsupported families."""
    refused = facts_of(config.model_type).refused or facts_of(hf.config.model_type).refused
    if refused or getattr(hf.config, "is_encoder_decoder", False):
        raise not_understood(hf, "it cannot be opened", refused or facts_of("t5").refused)
    embedding, head = hf.get_input_embeddings(), hf.get_output_embeddings()
    if head is None or embedding is None:
        raise not_understood(hf, "its readout", "it has no language-model head, so its stream cannot be read as tokens")
    return embedding, head


def _probe(hf: PreTrainedModel, config: Any) -> Probe:
    """Record a forward pass, and collect the norms that were applied to vectors of d_model channels."""
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
    """Tell whether a module is a norm by its class or path.

    A module with children counts only if it is a gated norm.
    """
    kind = type(module).__name__.lower()
    return (
        bool("norm" in kind or re.search(r"norm|(^|\.)ln_", path.lower()))
        and not isinstance(module, (nn.Identity, nn.ModuleList))
        and bool(not list(module.children()) or re.search(r"gated\w*norm$", kind))
    )


def _entering(probe: Probe, blocks_path: str, embedding: nn.Module, streams: Streams | None) -> Tensor:
    """Return the stream that enters the first block, or the first of several streams.

    In a model without blocks, the output of the embedding is returned. Anything added to it is found when the
    unembedding is checked.
    """
    first = f"{blocks_path}.0"
    has_blocks = first in dict(probe.hf.named_modules())
    x = probe.recording.given(first) if has_blocks else probe.recording.returned(probe.path_of(embedding))
    if streams is not None and x is not None:
        x = streams.split(x)[..., 0, :]
    if x is None or x.shape != (1, probe.recording.tokens.shape[1], probe.d_model):
        raise probe.fail("block 0", "it does not read one stream of shape (batch, pos, d_model)")
    return x


def _blocks(probe: Probe, blocks_path: str, modules: nn.ModuleList, x: Tensor) -> tuple[list[Block], Tensor]:
    found: list[Block] = []
    for number, module in enumerate(modules):
        path = f"{blocks_path}.{number}"
        if path in probe.recording.calls:  # Mllama leaves its cross-attention out of a pass without an image
            entering = probe.recording.given(path)
            block, x = resolve_block(probe, path, module, x if entering is None else entering)
            found.append(block)
    return found, x


def _find_blocks(hf: PreTrainedModel, config: Any) -> tuple[str, nn.ModuleList]:
    n_layers = config.num_hidden_layers
    # The tables of an adaptive embedding (one for each band) also form a list of modules. They are not blocks, even if
    # there are as many of them as blocks.
    embedding = hf.get_input_embeddings()
    tables = set() if embedding is None else {id(m) for m in embedding.modules()}
    inside = {id(m) for m in hf.get_decoder().modules()} - tables
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
    entered = probe.recording.given(probe.path_of(head))
    norm = probe.norm_returning(entered, "")
    last = probe.recording.given(norm) if norm else entered
    assert last is not None
    return last


def _with_common_rotation(blocks: list[Block]) -> list[Block]:
    """Return the blocks; where a pattern does not show how rotary angles are applied, use the way of another block."""
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
