"""From a live model to its `Structure`, by one dry run and the comparison of tensors.

Each question ("which norm does the MLP read through?", "is anything else added to the stream?") is answered by finding
the tensor, and the answer is checked by recomputing the block's output. What is not understood is refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from unembed.errors import ModelNotUnderstood, NotFinite
from unembed.models.attention_layout import (
    find_layout, find_scores, heads_of, projections_of, relative, rotary_candidates,
)
from unembed.models.dry_run import Recording, record
from unembed.models.families import facts_of
from unembed.models.norms import Norm
from unembed.models.structure import AttentionSite, Block, FeedForwardSite, Structure

_HOW_TO_ADD = "Open an issue with the config, or see models/families.py on adding a family"
_TOLERANCE = {torch.float64: 2e-5, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_ACTIVATION_FIELDS = ("hidden_activation", "hidden_act", "activation_function", "activation", "act_fn")


def _not_understood(hf: PreTrainedModel, part: str, why: str) -> ModelNotUnderstood:
    return ModelNotUnderstood(f"{type(hf).__name__}: {part}", why=why, instead=_HOW_TO_ADD)


@dataclass(frozen=True)
class _Look:
    """Everything one resolution looks at."""

    hf: PreTrainedModel
    config: Any
    recording: Recording
    d_model: int
    tolerance: float
    norms: dict[str, nn.Module]

    def norm(self, path: str) -> Norm:
        """The norm at a path, checked against what it did in the dry run."""
        norm = Norm(self.norms[path], path, self.d_model)
        given, returned = self.recording.given(path), self.recording.returned(path)
        assert given is not None and returned is not None
        norm.check(given, returned, max(self.tolerance, 1e-4))
        return norm

    def norm_returning(self, tensor: Tensor | None, within: str) -> str | None:
        """The path of the norm under `within` that returned this tensor."""
        return next((p for p in self.norms if p.startswith(within) and _same(self.recording.returned(p), tensor)), None)

    def norm_given(self, tensor: Tensor | None, within: str) -> str | None:
        """The path of the norm under `within` that received this tensor."""
        return next((p for p in self.norms if p.startswith(within) and _same(self.recording.given(p), tensor)), None)

    def fail(self, part: str, why: str) -> ModelNotUnderstood:
        """An error that names the part of this model."""
        return _not_understood(self.hf, part, why)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape and bool(torch.equal(a, b))


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
        raise _not_understood(hf, "it cannot be opened", facts.refused or facts_of("t5").refused)
    embedding, head = hf.get_input_embeddings(), hf.get_output_embeddings()
    if head is None or embedding is None:
        raise _not_understood(hf, "its readout", "it has no language-model head, so there is no vocabulary to read in")
    blocks_path, blocks = _find_blocks(hf, config)
    d_vocab, d_model = embedding.weight.shape[0], config.hidden_size
    try:
        recording = record(hf, d_vocab)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
        raise _not_understood(hf, "the dry run failed", f"{type(error).__name__}: {str(error)[:160]}") from error
    if not bool(torch.isfinite(recording.logits).all()):
        raise NotFinite(
            f"{type(hf).__name__}'s logits", why="the forward pass on six random tokens gives NaN or infinity",
            instead="Check the weights for NaN, or load with dtype=float32",
        )
    norms = {
        path: module for path, module in hf.named_modules()
        if ("norm" in type(module).__name__.lower() or re.search(r"norm|(^|\.)ln_", path.lower()))
        and not isinstance(module, (nn.Identity, nn.ModuleList)) and not list(module.children())
        and (t := recording.returned(path)) is not None and t.shape == (1, recording.tokens.shape[1], d_model)
    }
    dtype = recording.logits.dtype if recording.logits.dtype in _TOLERANCE else torch.float32
    dtype = next((p.dtype for p in hf.parameters() if p.dtype in _TOLERANCE), dtype)
    look = _Look(hf, config, recording, d_model, _TOLERANCE[dtype], norms)
    x = recording.given(f"{blocks_path}.0")
    if x is None:
        raise look.fail("block 0", "no hidden states reach it")
    position_embedding, embedding_scale = _embedding(look, embedding, blocks_path, x)
    found: list[Block] = []
    for number, module in enumerate(blocks):
        path = f"{blocks_path}.{number}"
        block, x = _block(look, path, module, x)
        found.append(block)
    final_norm, logit_scale, softcap = _readout(look, head, blocks_path, x)
    return Structure(
        family=config.model_type, blocks=tuple(found), embedding=embedding, position_embedding=position_embedding,
        positions=_positions(found, position_embedding), embedding_scale=embedding_scale, final_norm=final_norm,
        head=head, logit_scale=logit_scale, logit_softcap=softcap,
    )


def _find_blocks(hf: PreTrainedModel, config: Any) -> tuple[str, nn.ModuleList]:
    n_layers = config.num_hidden_layers
    decoder = hf.get_decoder() if hasattr(hf, "get_decoder") else hf
    inside = {id(m) for m in decoder.modules()}
    lists = [
        (path, module) for path, module in hf.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == n_layers and id(module) in inside
    ]
    outer = [(p, m) for p, m in lists if not any(p.startswith(q + ".") for q, _ in lists if q != p)]
    if len(outer) != 1:
        raise _not_understood(hf, "its blocks", f"there are {len(outer)} module lists of {n_layers} layers, not one")
    return outer[0]


def _embedding(look: _Look, embedding: nn.Module, blocks_path: str, x: Tensor) -> tuple[nn.Module | None, float | None]:
    """The module that adds positions to the stream, and what W_E is multiplied by."""
    paths = {id(m): p for p, m in look.hf.named_modules()}
    rows = embedding.weight[look.recording.tokens].to(x.dtype) if embedding.weight.shape[-1] == x.shape[-1] else None
    candidates: list[tuple[nn.Module | None, Tensor]] = [(None, torch.zeros_like(x))]
    before_blocks = [p for p in look.recording.calls if not p.startswith(blocks_path + ".")]
    for path in before_blocks:
        module = look.hf.get_submodule(path)
        returned = look.recording.returned(path)
        if module is not embedding and "position" in path.lower().replace("wpe", "position") and returned is not None:
            if returned.dim() == 2:
                returned = returned[None]
            if returned.shape[-2:] == x.shape[-2:]:
                candidates.append((module, returned.expand_as(x).to(x.dtype)))
    if rows is not None:
        for module, added in candidates:
            scale = float(((x - added) * rows).double().sum() / rows.double().square().sum())
            if relative(scale * rows + added, x) <= 10 * look.tolerance:
                return module, _snapped(scale, _embedding_scales(look), look.tolerance)
    if look.norm_returning(x, "") is not None:
        return None, None
    given = look.recording.returned(paths[id(embedding)])
    for module, added in candidates:
        # An embedding that is more than a table (adaptive input): its own output enters the stream.
        if given is not None and given.shape == x.shape:
            scale = float(((x - added) * given).double().sum() / given.double().square().sum())
            if relative(scale * given + added, x) <= 10 * look.tolerance:
                return module, None
    raise look.fail("its embedding", "what enters block 0 is not token embedding (scaled, normalised) plus positions")


def _embedding_scales(look: _Look) -> list[float]:
    configured = [getattr(look.config, n, None) for n in ("embedding_multiplier", "scale_emb")]
    return [1.0, look.d_model**0.5, *(float(v) for v in configured if v is not None)]


def _snapped(value: float, exact: list[float], tolerance: float) -> float:
    """The exact number that a fitted one is a rounding of, or the fitted one."""
    return next((e for e in exact if abs(e - value) <= 10 * tolerance * abs(e)), value)


def _positions(blocks: list[Block], position_embedding: nn.Module | None) -> str:
    sites = [b.attention for b in blocks]
    if position_embedding is not None:
        return "learned"
    if any(s.rotary is not None for s in sites):
        return "rotary"
    if any(s.alibi_slopes is not None for s in sites):
        return "alibi"
    return "qk_learned" if any(s.positions_read for s in sites) else "none"


def _block(look: _Look, path: str, module: nn.Module, x: Tensor) -> tuple[Block, Tensor]:
    y = look.recording.returned(path)
    if y is None or y.shape != x.shape:
        raise look.fail(f"block {path}", "it does not return hidden states of the stream's shape")
    attention_path = _attention_path(look, path, module)
    attention_module = look.hf.get_submodule(attention_path)
    out_path, out_proj = _out_projection(look, attention_path, attention_module)
    attn_raw = look.recording.returned(out_path)
    assert attn_raw is not None
    ffn_path = _ffn_path(look, path, module, attention_path)
    ffn_raw = None if ffn_path is None else _ffn_output(look, path, ffn_path, y)
    attn_branch, ffn_branch = (look.norm_given(t, path + ".") for t in (attn_raw, ffn_raw))
    # A pre-norm of a later part may be given the same tensor only if nothing was added in between: not a branch norm.
    attn_added = look.recording.returned(attn_branch) if attn_branch else attn_raw
    ffn_added = look.recording.returned(ffn_branch) if ffn_branch else ffn_raw
    scales = _multipliers(look, path, x, attn_added, ffn_added, y)
    assert attn_added is not None
    mid = x + scales[0] * attn_added
    attention = _attention(
        look, path, attention_path, attention_module, out_path, out_proj,
        look.norm(attn_branch) if attn_branch else None, scales[0],
    )
    feed_forward, parallel = None, False
    if ffn_path is not None:
        feed_forward, parallel = _feed_forward(look, path, ffn_path, ffn_raw, x, mid, ffn_branch, scales[1])
    return Block(module, attention, feed_forward, parallel), y


def _attention_path(look: _Look, path: str, module: nn.Module) -> str:
    called = [
        name for name, _ in module.named_modules()
        if re.search(r"(^|\.)(self_)?(attn|attention|self_attention|multi_head_attention)$", name)
        and f"{path}.{name}" in look.recording.calls
    ]
    if not called:
        raise look.fail(f"block {path}", "no attention module found in it (state-space and recurrent layers have none)")
    # GPT-Neo wraps its attention in another attention: the innermost one does the work.
    return f"{path}.{max(called, key=lambda n: n.count('.'))}"


def _linear(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return weight is not None and weight.dim() == 2 and not isinstance(module, nn.Embedding)


def _out_projection(look: _Look, path: str, module: nn.Module) -> tuple[str, nn.Module]:
    returned = look.recording.returned(path)
    last = None
    for name, part in _called_linears(look, path, module):
        if _same(look.recording.returned(name), returned):
            return name, part
        if (out := look.recording.returned(name)) is not None and out.shape[-1] == look.d_model:
            last = name, part
    if last is None:
        raise look.fail(path, "no projection inside it writes a vector of the stream's width")
    return last  # Bloom adds the stream inside its attention; the sum over the block proves the choice


def _called_linears(look: _Look, path: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The projections inside a module in the order in which they were called."""
    inside = {f"{path}.{n}": m for n, m in module.named_modules() if n and _linear(m)}
    return [(p, inside[p]) for p in look.recording.calls if p in inside]


def _ffn_path(look: _Look, path: str, module: nn.Module, attention_path: str) -> str | None:
    children = [
        name for name, _ in module.named_children()
        if f"{path}.{name}" in look.recording.calls and not attention_path.startswith(f"{path}.{name}")
    ]
    children = [n for n in children if f"{path}.{n}" not in look.norms and list(module.get_submodule(n).parameters())]
    named = [n for n in children if re.search(r"mlp|ffn|feed_?forward|moe", n.lower())]
    if len(named) == 1:
        return f"{path}.{named[0]}"
    if any(n in children for n in ("fc1", "fc2")):
        return path
    if not children:
        return None
    raise look.fail(f"block {path}", f"its FFN is not one module of a known shape (children: {', '.join(children)})")


def _ffn_output(look: _Look, path: str, ffn_path: str, block_output: Tensor) -> Tensor:
    returned = look.recording.returned(f"{path}.fc2" if ffn_path == path else ffn_path)
    if _same(returned, block_output):
        # Bloom and MPT add the stream inside the FFN module; what the last projection returned is the update.
        linears = _called_linears(look, ffn_path, look.hf.get_submodule(ffn_path))
        returned = look.recording.returned(linears[-1][0]) if linears else None
    if returned is None:
        raise look.fail(f"block {path}", "its FFN returns no tensor")
    return returned.view(1, -1, returned.shape[-1])


def _multipliers(
    look: _Look, path: str, x: Tensor, attn: Tensor | None, ffn: Tensor | None, y: Tensor
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


def _attention(
    look: _Look, path: str, attention_path: str, module: nn.Module, out_path: str, out_proj: nn.Module,
    branch_norm: Norm | None, multiplier: float,
) -> AttentionSite:
    call = look.recording.calls[attention_path]
    z = look.recording.given(out_path)
    if call.weights is None or z is None:
        raise look.fail(attention_path, "eager attention returns no weights, so its heads cannot be told apart")
    pattern, z = call.weights[0], z[0]
    projections = projections_of(look.recording, attention_path, module, out_proj, look.d_model)
    clip = getattr(look.config, "clip_qkv", None) or getattr(
        getattr(look.config, "attn_config", None), "clip_qkv", None)

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
    scores, q_norm, k_norm, after = _scores(
        look, attention_path, module, pattern, projected, clamped, window)
    alibi_lies = facts_of(look.config.model_type).eager_alibi_is_doubled and scores is not None
    slopes = None if scores is None else scores.alibi_slopes
    if alibi_lies and slopes is not None:
        slopes = slopes / 2
    return AttentionSite(
        module=module, out_proj=out_proj, layout=projected.layout, pre_norm=look.norm(pre_norm) if pre_norm else None,
        branch_norm=branch_norm, multiplier=multiplier, n_heads=n_heads, n_kv_heads=projected.n_kv_heads,
        d_head=z.shape[-1] // n_heads, scale=scores.scale if scores else float("nan"),
        rotary=scores.rotary if scores else None, q_norm=q_norm, k_norm=k_norm, norm_after_rotary=after,
        softcap=scores.softcap if scores else None, alibi_slopes=slopes, window=window, clip=clip,
        scores_understood=scores is not None, positions_read=not torch.equal(query_input, value_input),
    )


def _window(look: _Look, path: str, module: nn.Module) -> int | None:
    number = int(path.rsplit(".", 1)[-1])
    kinds = getattr(look.config, "layer_types", None)
    if kinds is not None:
        return getattr(look.config, "sliding_window", None) if "sliding" in kinds[number] else None
    local = getattr(look.config, "attention_layers", None)
    if local is not None:
        return look.config.window_size if local[number] == "local" else None
    if hasattr(module, "sliding_window"):
        return module.sliding_window
    in_use = getattr(look.config, "use_sliding_window", True)
    return getattr(look.config, "sliding_window", None) if in_use else None


_QK_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_layernorm", "key_layernorm"))


def _scores(
    look: _Look, attention_path: str, module: nn.Module, pattern: Tensor, projected: Any, clamped: Any,
    window: int | None,
) -> tuple[Any, nn.Module | None, nn.Module | None, bool]:
    n_heads, n_kv = pattern.shape[0], projected.n_kv_heads
    d_head = projected.q.shape[-1] // n_heads
    cap = getattr(look.config, "attn_logit_softcapping", None)
    scales = [s for s in (
        getattr(module, "scaling", None), getattr(module, "softmax_scale", None), d_head**-0.5, 1.0,
        d_head**-0.5 / (getattr(module, "layer_idx", 0) + 1 if getattr(module, "layer_idx", None) is not None else 1),
    ) if isinstance(s, float)]
    buffer_dim = getattr(look.config, "rotary_dim", None) if facts_of(look.config.model_type).rotary_in_buffer else None
    rotaries = rotary_candidates(look.recording.calls[attention_path].rotary, buffer_dim)
    pair = next((p for p in _QK_NORMS if hasattr(module, p[0]) and _called(look, attention_path, module, p[0])), None)
    common = dict(scales=scales, softcap=cap, window=window, tolerance=look.tolerance)
    if pair is None:
        q, k = heads_of(clamped(projected.q), n_heads), heads_of(clamped(projected.k), n_kv)
        return find_scores(pattern, q, k, rotaries=rotaries, **common), None, None, False
    q_norm, k_norm = (getattr(module, n) for n in pair)
    q, k = (_normed(look, f"{attention_path}.{n}", h) for n, h in zip(pair, (n_heads, n_kv), strict=True))
    if q is None or k is None:
        return None, q_norm, k_norm, False
    scores = find_scores(pattern, q, k, rotaries=rotaries, **common)
    turned = look.recording.calls[f"{attention_path}.{pair[0]}"].given if rotaries else None
    if scores is None or scores.rotary is not None or turned is None or turned.shape[1:] != (n_heads, *q.shape[1:]):
        return scores, q_norm, k_norm, False
    # No rotation left to do after the norm: it was done before it, if the norm was given rotated queries.
    where, plain = torch.arange(q.shape[1], device=q.device), heads_of(clamped(projected.q), n_heads).double()
    rotary = next((r for r in rotaries if relative(r.rotate(plain, where), turned[0]) <= look.tolerance), None)
    return replace(scores, rotary=rotary), q_norm, k_norm, rotary is not None


def _called(look: _Look, attention_path: str, module: nn.Module, name: str) -> bool:
    part = getattr(module, name)
    return part is not None and any(
        f"{attention_path}.{name}{'.' + sub if sub else ''}" in look.recording.calls for sub, _ in part.named_modules())


def _normed(look: _Look, path: str, n_heads: int) -> Tensor | None:
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


def _feed_forward(
    look: _Look, path: str, ffn_path: str, raw: Tensor | None, x: Tensor, mid: Tensor, branch: str | None,
    multiplier: float,
) -> tuple[FeedForwardSite, bool]:
    module = look.hf.get_submodule(ffn_path)
    inside = {
        f"{ffn_path}.{n}": m for n, m in module.named_modules()
        if n and _linear(m) and f"{ffn_path}.{n}" in look.recording.calls
        and not (ffn_path == path and not n.startswith("fc"))
    }
    down_path = next((p for p in inside if _same(_flat(look.recording.returned(p)), _flat(raw))), None)
    read = look.recording.given(f"{path}.fc1" if ffn_path == path else ffn_path)
    assert read is not None
    read = read.view(1, -1, read.shape[-1])
    norm_path = look.norm_returning(read, path + ".")
    entered = look.recording.given(norm_path) if norm_path else read
    assert entered is not None
    parallel = _same(entered, x)
    if not parallel and relative(entered, mid) > 10 * look.tolerance:
        raise look.fail(f"block {path}", "its FFN reads neither the block's input nor the stream after attention")
    entry = look.norms[norm_path] if norm_path else (module if ffn_path != path else module.fc1)
    site = dict(
        module=module, entry=entry, pre_norm=look.norm(norm_path) if norm_path else None,
        branch_norm=look.norm(branch) if branch else None, multiplier=multiplier,
    )
    if down_path is None:
        return FeedForwardSite(
            down_proj=None, up_proj=None, gate_proj=None, gate_first=False, activation="experts", **site), parallel
    m = _flat(look.recording.given(down_path))
    assert m is not None
    readers = {
        p.rsplit(".", 1)[-1]: (q, _flat(look.recording.returned(p))) for p, q in inside.items()
        if _same(_flat(look.recording.given(p)), _flat(read))
    }
    up, gate, gate_first, activation = _coefficient_formula(look, path, readers, m)
    return FeedForwardSite(
        down_proj=inside[down_path], up_proj=up, gate_proj=gate, gate_first=gate_first, activation=activation, **site,
    ), parallel


def _flat(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.reshape(-1, t.shape[-1])


def _activations(look: _Look, module_hint: str) -> dict[str, Any]:
    named = [v for f in _ACTIVATION_FIELDS if isinstance(v := getattr(look.config, f, None), str)]
    known = ["gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "relu", "relu2"]
    found: dict[str, Any] = {name: ACT2FN[name] for name in [*named, *known] if name in ACT2FN}
    for path, part in look.hf.get_submodule(module_hint).named_modules():
        # Activations with parameters of their own (xIELU) and private ones (BloomGelu) are used as they stand.
        if path and not list(part.children()) and re.search(r"(^|\.)(act|act_fn|activation_fn|gelu_impl)$", path):
            found.setdefault(type(part).__name__, part)
    return found


def _coefficient_formula(
    look: _Look, path: str, readers: dict[str, tuple[nn.Module, Tensor | None]], m: Tensor
) -> tuple[nn.Module, nn.Module | None, bool, str]:
    """Which readers make the coefficient, in which order, through which activation."""
    width = m.shape[-1]
    forms: list[tuple[nn.Module, nn.Module | None, bool, Tensor, Tensor | None]] = []
    for _, (module, out) in readers.items():
        if out is not None and out.shape[-1] == width:
            forms.append((module, None, False, out, None))
            for _, (other, second) in readers.items():
                if other is not module and second is not None and second.shape[-1] == width:
                    forms.append((other, module, False, out, second))
        if out is not None and out.shape[-1] == 2 * width:
            first, second = out.chunk(2, dim=-1)
            forms += [(module, module, True, first, second), (module, module, False, second, first)]
    with torch.no_grad():
        for name, act in _activations(look, path).items():
            for up, gate, gate_first, acted, linear in forms:
                try:
                    said = act(acted)
                except TypeError:  # BloomGelu and others take a residual as well: not a function of the key alone
                    continue
                if relative(said if linear is None else said * linear, m) <= look.tolerance:
                    return up, gate, gate_first, name
    raise look.fail(
        f"the FFN of block {path}",
        "what its down-projection receives is neither activation(key) nor activation(gate) * up for a known activation",
    )


def _readout(
    look: _Look, head: nn.Module, blocks_path: str, last: Tensor
) -> tuple[Norm | None, float, float | None]:
    head_path = next(p for p, m in look.hf.named_modules() if m is head)
    entered, out = look.recording.given(head_path), look.recording.returned(head_path)
    assert entered is not None and out is not None
    norm_path = look.norm_returning(entered, "")
    if norm_path is not None:
        final_norm = look.norm(norm_path)
        if not _same(look.recording.given(norm_path), last):
            raise look.fail("its readout", f"{norm_path} does not read the last block's output")
    elif _same(entered, last):
        final_norm = None
    else:
        raise look.fail("its readout", "the head reads neither the last block's output nor a norm of it")
    scale = float((look.recording.logits * out).double().sum() / out.double().square().sum())
    configured = [v for n in ("logit_scale", "logits_scaling") if (v := getattr(look.config, n, None))]
    scale = _snapped(scale, [1.0, *configured, *(1 / v for v in configured)], look.tolerance)
    if relative(scale * out, look.recording.logits) <= look.tolerance:
        return final_norm, scale, None
    for cap in (getattr(look.config, "final_logit_softcapping", None), 30.0, 15.0):
        if cap and relative(cap * torch.tanh(out / cap), look.recording.logits) <= look.tolerance:
            return final_norm, 1.0, float(cap)
    raise look.fail("its readout", "the logits are neither the head's output, scaled, nor soft-capped")
