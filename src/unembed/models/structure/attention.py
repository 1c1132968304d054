"""The attention of one block, found on the tensors of a dry run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unembed.models.norms import Norm
from unembed.models.structure.attention_layout import (
    find_layout,
    find_scores,
    heads_of,
    projections_of,
    relative,
)
from unembed.models.structure.families import facts_of
from unembed.models.structure.probe import Look, called_linears, same
from unembed.models.structure.rotary import rotary_candidates
from unembed.models.structure.structure import AttentionSite

_QK_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_layernorm", "key_layernorm"))


def attention_path_of(look: Look, path: str, module: nn.Module) -> str:
    """The path of the module that mixes positions in a block."""
    called = [
        name
        for name, _ in module.named_modules()
        if re.search(r"(^|\.)(self_)?(attn|attention|self_attention|multi_head_attention)$", name)
        and f"{path}.{name}" in look.recording.calls
    ]
    if not called:
        raise look.fail(f"block {path}", "no attention module found in it (state-space and recurrent layers have none)")
    # GPT-Neo wraps its attention in another attention: the innermost one does the work.
    return f"{path}.{max(called, key=lambda n: n.count('.'))}"


def out_projection(look: Look, path: str, module: nn.Module) -> tuple[str, nn.Module]:
    """The projection that writes the heads' mixed values into the stream."""
    returned = look.recording.returned(path)
    last = None
    for name, part in called_linears(look, path, module):
        if same(look.recording.returned(name), returned):
            return name, part
        if (out := look.recording.returned(name)) is not None and out.shape[-1] == look.d_model:
            last = name, part
    if last is None:
        raise look.fail(path, "no projection inside it writes a vector of the stream's width")
    return last  # Bloom adds the stream inside its attention; the sum over the block proves the choice


def attention_site(
    look: Look,
    path: str,
    attention_path: str,
    module: nn.Module,
    out_path: str,
    out_proj: nn.Module,
    branch_norm: Norm | None,
    multiplier: float,
) -> AttentionSite:
    """The attention of a block: its heads, told apart by pattern @ V = z, and how their scores come about."""
    call = look.recording.calls[attention_path]
    z = look.recording.given(out_path)
    if call.weights is None or z is None:
        raise look.fail(
            attention_path,
            "eager attention returns no weights, so its heads cannot be told apart",
            # Before transformers 5.13.0 Nemotron chooses its attention when it is built, and keeps it.
            'Build it with attn_implementation="eager" and give load() the model, or use a newer transformers '
            "(Nemotron: 5.13.0)",
        )
    pattern, z = call.weights[0], z[0]
    projections = projections_of(look.recording, attention_path, module, out_proj, look.d_model)
    clip = getattr(look.config, "clip_qkv", None) or getattr(
        getattr(look.config, "attn_config", None), "clip_qkv", None
    )

    def clamped(t: Tensor) -> Tensor:
        return t.clamp(-clip, clip) if clip else t

    found = find_layout(projections, pattern, z, clamped)
    if found is None or found[1] > 10 * look.tolerance:
        raise look.fail(
            attention_path,
            f"its values could not be found in {', '.join(projections) or 'any projection'}: pattern times values "
            "does not give what the out-projection receives",
        )
    projected = found[0]
    n_heads = pattern.shape[0]
    value_input = next(g for part, g, _ in projections.values() if part is projected.layout.v)[None]
    query_input = next(g for part, g, _ in projections.values() if part is projected.layout.q)[None]
    pre_norm = look.norm_returning(value_input, path + ".")
    window = _window(look, path, module)
    scores, q_norm, k_norm, after = _scores(look, attention_path, module, pattern, projected, clamped, window)
    alibi_lies = facts_of(look.config.model_type).eager_alibi_is_doubled and scores is not None
    slopes = None if scores is None else scores.alibi_slopes
    if alibi_lies and slopes is not None:
        slopes = slopes / 2
    return AttentionSite(
        module=module,
        out_proj=out_proj,
        layout=projected.layout,
        pre_norm=look.norm(pre_norm) if pre_norm else None,
        branch_norm=branch_norm,
        multiplier=multiplier,
        n_heads=n_heads,
        n_kv_heads=projected.n_kv_heads,
        d_head=z.shape[-1] // n_heads,
        scale=scores.scale if scores else float("nan"),
        rotary=scores.rotary if scores else None,
        q_norm=q_norm,
        k_norm=k_norm,
        norm_after_rotary=after,
        softcap=scores.softcap if scores else None,
        alibi_slopes=slopes,
        window=window,
        clip=clip,
        scores_understood=scores is not None,
        positions_read=not torch.equal(query_input, value_input),
    )


def _window(look: Look, path: str, module: nn.Module) -> int | None:
    number = int(path.rsplit(".", 1)[-1])
    kinds = getattr(look.config, "layer_types", None)
    if kinds is not None:
        return getattr(look.config, "sliding_window", None) if "sliding" in kinds[number] else None
    local = getattr(look.config, "attention_layers", None)
    if local is not None:
        return look.config.window_size if local[number] == "local" else None
    if hasattr(module, "sliding_window"):
        window = module.sliding_window
        return window if isinstance(window, int) else None
    in_use = getattr(look.config, "use_sliding_window", True)
    return getattr(look.config, "sliding_window", None) if in_use else None


def _scores(
    look: Look,
    attention_path: str,
    module: nn.Module,
    pattern: Tensor,
    projected: Any,
    clamped: Any,
    window: int | None,
) -> tuple[Any, nn.Module | None, nn.Module | None, bool]:
    n_heads, n_kv = pattern.shape[0], projected.n_kv_heads
    d_head = projected.q.shape[-1] // n_heads
    cap = getattr(look.config, "attn_logit_softcapping", None)
    scales = [
        s
        for s in (
            getattr(module, "scaling", None),
            getattr(module, "softmax_scale", None),
            d_head**-0.5,
            1.0,
            d_head**-0.5
            / (getattr(module, "layer_idx", 0) + 1 if getattr(module, "layer_idx", None) is not None else 1),
        )
        if isinstance(s, float)
    ]
    buffer_dim = getattr(look.config, "rotary_dim", None) if facts_of(look.config.model_type).rotary_in_buffer else None
    angles = look.recording.calls[attention_path].rotary
    if not getattr(module, "use_rope", True):
        angles = None  # SmolLM3 gives every layer the angles, and some do not use them
    rotaries = rotary_candidates(look.hf, angles, buffer_dim)
    pair = next((p for p in _QK_NORMS if hasattr(module, p[0]) and _called(look, attention_path, module, p[0])), None)
    common: dict[str, Any] = dict(scales=scales, softcap=cap, window=window, tolerance=look.tolerance)
    if pair is None:
        q, k = heads_of(clamped(projected.q), n_heads), heads_of(clamped(projected.k), n_kv)
        return find_scores(pattern, q, k, rotaries=rotaries, **common), None, None, False
    q_norm, k_norm = (getattr(module, n) for n in pair)
    q, k = (_normed(look, f"{attention_path}.{n}", h) for n, h in zip(pair, (n_heads, n_kv), strict=True))
    if q is None or k is None:
        return None, q_norm, k_norm, False
    # A norm that is given rotated queries leaves no rotation to do after it.
    given = look.recording.calls[f"{attention_path}.{pair[0]}"].given if rotaries else None
    earlier = None
    if given is not None and given.shape[1:] == (n_heads, *q.shape[1:]):
        where, plain = torch.arange(q.shape[1], device=q.device), heads_of(clamped(projected.q), n_heads).double()
        if relative(plain, given[0]) > look.tolerance:
            earlier = next((r for r in rotaries if relative(r.rotate(plain, where), given[0]) <= look.tolerance), None)
    scores = find_scores(pattern, q, k, rotaries=[] if earlier else rotaries, **common)
    if scores is None or earlier is None:
        return scores, q_norm, k_norm, False
    return replace(scores, rotary=earlier), q_norm, k_norm, True


def _called(look: Look, attention_path: str, module: nn.Module, name: str) -> bool:
    part = getattr(module, name)
    return part is not None and any(
        f"{attention_path}.{name}{'.' + sub if sub else ''}" in look.recording.calls for sub, _ in part.named_modules()
    )


def _normed(look: Look, path: str, n_heads: int) -> Tensor | None:
    returned = look.recording.calls[path].returned if path in look.recording.calls else None
    if returned is None:
        return None
    pos = look.recording.tokens.shape[1]
    returned = returned[0] if returned.dim() > 2 and returned.shape[0] == 1 else returned
    if returned.dim() == 3 and returned.shape[0] == n_heads and returned.shape[1] == pos:
        return returned
    if returned.dim() == 3 and returned.shape[:2] == (pos, n_heads):
        return returned.transpose(0, 1)
    return heads_of(returned, n_heads) if returned.dim() == 2 and returned.shape[0] == pos else None
