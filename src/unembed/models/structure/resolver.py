"""From a live model to its `Structure`, by one dry run and the comparison of tensors.

Each question ("which norm does the MLP read through?", "is anything else added to the stream?") is answered by finding
the tensor, and the answer is checked by recomputing the block's output. What is not understood is refused by name.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from unembed.errors import NotFinite
from unembed.models.structure.attention import attention_path_of, attention_site, out_projection
from unembed.models.structure.attention_layout import relative
from unembed.models.structure.dry_run import record, vocabulary_size
from unembed.models.structure.embedding_readout import embedding_of, readout_of
from unembed.models.structure.families import facts_of
from unembed.models.structure.feed_forward import feed_forward_site, ffn_output, ffn_path_of
from unembed.models.structure.probe import Look, not_understood
from unembed.models.structure.rotary import common_style
from unembed.models.structure.structure import Block, Structure

_TOLERANCE = {torch.float64: 2e-5, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@torch.no_grad()
def resolve(hf: PreTrainedModel) -> Structure:
    """The structure of a decoder, checked on a dry run of six random tokens.

    Raises:
        ModelNotUnderstood: some part does more than the description can say; the message names it.
        NotFinite: the model's logits are NaN or infinite.
    """
    config = hf.config.get_text_config()
    facts = facts_of(config.model_type)
    if facts.refused or getattr(hf.config, "is_encoder_decoder", False):
        raise not_understood(hf, "it cannot be opened", facts.refused or facts_of("t5").refused)
    embedding, head = hf.get_input_embeddings(), hf.get_output_embeddings()
    if head is None or embedding is None:
        raise not_understood(hf, "its readout", "it has no language-model head, so there is no vocabulary to read in")
    blocks_path, blocks = _find_blocks(hf, config)
    d_model = config.hidden_size
    try:
        recording = record(hf, vocabulary_size(hf))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        raise not_understood(hf, "the dry run failed", f"{type(error).__name__}: {str(error)[:160]}") from error
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
        and not list(module.children())
        and (t := recording.returned(path)) is not None
        and t.shape == (1, recording.tokens.shape[1], d_model)
    }
    dtype = recording.logits.dtype if recording.logits.dtype in _TOLERANCE else torch.float32
    dtype = next((p.dtype for p in hf.parameters() if p.dtype in _TOLERANCE), dtype)
    look = Look(hf, config, recording, d_model, _TOLERANCE[dtype], norms)
    x = recording.given(f"{blocks_path}.0")
    if x is None:
        raise look.fail("block 0", "no hidden states reach it")
    position_embedding, embedding_scale = embedding_of(look, embedding, blocks_path, x)
    found: list[Block] = []
    for number, module in enumerate(blocks):
        path = f"{blocks_path}.{number}"
        block, x = _block(look, path, module, x)
        found.append(block)
    found = _with_common_rotation(found)
    final_norm, logit_scale, softcap = readout_of(look, head, x)
    return Structure(
        family=config.model_type,
        blocks=tuple(found),
        embedding=embedding,
        position_embedding=position_embedding,
        read_positions=_read_positions(hf, found),
        positions=_positions(found, position_embedding),
        embedding_scale=embedding_scale,
        final_norm=final_norm,
        head=head,
        logit_scale=logit_scale,
        logit_softcap=softcap,
    )


def _find_blocks(hf: PreTrainedModel, config: Any) -> tuple[str, nn.ModuleList]:
    n_layers = config.num_hidden_layers
    decoder = hf.get_decoder() if hasattr(hf, "get_decoder") else hf
    inside = {id(m) for m in decoder.modules()}
    lists = [
        (path, module)
        for path, module in hf.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == n_layers and id(module) in inside
    ]
    outer = [(p, m) for p, m in lists if not any(p.startswith(q + ".") for q, _ in lists if q != p)]
    if len(outer) != 1:
        raise not_understood(hf, "its blocks", f"there are {len(outer)} module lists of {n_layers} layers, not one")
    return outer[0]


def _with_common_rotation(blocks: list[Block]) -> list[Block]:
    """Blocks whose own attention does not show how it is rotated take it from one that does."""
    shown = common_style([block.attention.rotary for block in blocks])
    if shown is None:
        return blocks
    mended = []
    for block in blocks:
        rotary = block.attention.rotary
        if rotary is not None and not rotary.certain:
            rotary = replace(rotary, interleaved=shown.interleaved, sign=shown.sign)
            block = replace(block, attention=replace(block.attention, rotary=rotary))
        mended.append(block)
    return mended


def _positions(blocks: list[Block], position_embedding: nn.Module | None) -> str:
    sites = [b.attention for b in blocks]
    if position_embedding is not None:
        return "learned"
    if any(s.rotary is not None for s in sites):
        return "rotary"
    if any(s.alibi_slopes is not None for s in sites):
        return "alibi"
    return "qk_learned" if any(s.positions_read for s in sites) else "none"


def _read_positions(hf: PreTrainedModel, blocks: list[Block]) -> nn.Module | None:
    if not any(b.attention.positions_read for b in blocks):
        return None
    tables = [m for n, m in hf.named_modules() if n.endswith("embed_positions") and isinstance(m, nn.Embedding)]
    return tables[0] if len(tables) == 1 else None


def _block(look: Look, path: str, module: nn.Module, x: Tensor) -> tuple[Block, Tensor]:
    y = look.recording.returned(path)
    if y is None or y.shape != x.shape:
        raise look.fail(f"block {path}", "it does not return hidden states of the stream's shape")
    attention_path = attention_path_of(look, path, module)
    attention_module = look.hf.get_submodule(attention_path)
    out_path, out_proj = out_projection(look, attention_path, attention_module)
    attn_raw = look.recording.returned(out_path)
    assert attn_raw is not None
    ffn_path = ffn_path_of(look, path, module, attention_path)
    ffn_raw = None if ffn_path is None else ffn_output(look, path, ffn_path, y)
    attn_branch, ffn_branch = (look.norm_given(t, path + ".") for t in (attn_raw, ffn_raw))
    # A pre-norm of a later part may be given the same tensor only if nothing was added in between: not a branch norm.
    attn_added = look.recording.returned(attn_branch) if attn_branch else attn_raw
    ffn_added = look.recording.returned(ffn_branch) if ffn_branch else ffn_raw
    scales = _multipliers(look, path, x, attn_added, ffn_added, y)
    assert attn_added is not None
    mid = x + scales[0] * attn_added
    attention = attention_site(
        look,
        path,
        attention_path,
        attention_module,
        out_path,
        out_proj,
        look.norm(attn_branch) if attn_branch else None,
        scales[0],
    )
    feed_forward, parallel = None, False
    if ffn_path is not None:
        feed_forward, parallel = feed_forward_site(look, path, ffn_path, ffn_raw, x, mid, ffn_branch, scales[1])
    return Block(module, attention, feed_forward, parallel), y


def _multipliers(
    look: Look, path: str, x: Tensor, attn: Tensor | None, ffn: Tensor | None, y: Tensor
) -> tuple[float, float]:
    """What each branch is multiplied by on its way into the stream; the block's output must be their sum."""
    parts = [t.double().flatten() for t in (x, attn, ffn) if t is not None]
    target = y.double().flatten()
    solution = torch.linalg.lstsq(torch.stack(parts, 1).cpu(), target[:, None].cpu()).solution.flatten()
    known = [1.0, *(float(v) for n in ("residual_multiplier",) if (v := getattr(look.config, n, None)) is not None)]
    near = max(100 * look.tolerance, 1e-3)
    fitted = [min(known, key=lambda k: abs(k - s)) for s in solution.tolist()]
    scales = [f if abs(f - s) <= near else s for f, s in zip(fitted, solution.tolist(), strict=True)]
    error = relative(sum((s * p for s, p in zip(scales, parts, strict=True)), torch.zeros_like(target)), target)
    if error > look.tolerance or scales[0] != 1.0:
        raise look.fail(
            f"block {path}",
            f"its output is not stream + attention + FFN (relative error {error:.1e}, stream times {scales[0]:.4g}): "
            "something else is added or the stream itself is rescaled",
        )
    return scales[1], scales[2] if ffn is not None else 1.0
