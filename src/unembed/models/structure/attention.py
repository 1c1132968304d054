"""The token mixer of one block: its attention, or another module that mixes positions, found on a dry run's tensors."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unembed.models.norms import Norm
from unembed.models.structure.attention_layout import (
    Output,
    Projected,
    Scores,
    find_layout,
    find_scores,
    find_values,
    heads_of,
    projections_of,
    relative,
)
from unembed.models.structure.differential import DifferentialPattern, differential_pattern
from unembed.models.structure.families import facts_of
from unembed.models.structure.head_readings import ReadHeads, find_readings
from unembed.models.structure.probe import Probe, called_linears, same
from unembed.models.structure.rotary import rotary_candidates
from unembed.models.structure.structure import GATES, AttentionSite, ValueSource

_QK_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_layernorm", "key_layernorm"))
_HEAD_COUNTS = ("num_v_heads", "num_heads", "n_heads", "num_attention_heads", "nheads", "n_mamba_heads")
_NO_WEIGHTS = (
    "its attention returns no weights, so sources and values cannot be found; build it with "
    # Before transformers 5.13.0 Nemotron chooses its attention when it is built.
    'attn_implementation="eager" and pass load() the model, or use a newer transformers (Nemotron: 5.13.0)'
)
_TWO_SOFTMAXES = "its pattern is the difference of two softmaxes, so that a head has two queries and two keys"


def mixer_site(
    probe: Probe,
    path: str,
    source: str,
    raw: Tensor,
    output: nn.Module,
    branch_norm: Norm | None,
    multiplier: float,
    constant: Tensor | None,
) -> AttentionSite:
    """The mixer whose module at `source` returned `raw`, with its heads, values and scores where they are found.

    Args:
        probe: the model and its dry run.
        source: the module that returned the mixer's output, before a branch norm.
        raw: what it returned.
        output: the module whose return value is added to the stream.
        branch_norm: the norm between, if there is one.
        multiplier: factor of the output.
        constant: a bias that the block adds after it.
    """
    attention_path = _attention_path(probe, path, source)
    module = probe.hf.get_submodule(attention_path)
    weights, differential = probe.recording.calls[attention_path].weights, differential_pattern(module)
    weights = weights if weights is None or differential is None else differential.combined(weights)
    facts = facts_of(probe.config.model_type)
    no_values = facts.no_values
    out_path, out_proj = _out_projection(probe, attention_path, module, raw)
    z = None if out_path is None else probe.recording.given(out_path)
    known: dict[str, Any] = dict(
        path=attention_path,
        module=module,
        output=output,
        branch_norm=branch_norm,
        multiplier=multiplier,
        constant=constant,
        differential=differential,
        no_scores=_no_scores(facts.no_scores, differential),
        no_heads=no_values if out_proj is None else "",
    )
    n_heads = _head_count(probe, module, weights, z)
    is_attention = weights is not None or (n_heads > 0 and _computes_weights(probe, module))
    if weights is None or z is None or not n_heads or out_proj is None:
        return _without_values(
            probe,
            path,
            known,
            out_proj if n_heads else None,
            n_heads,
            z,
            is_attention,
            no_values or _missing(module, is_attention),
        )
    pattern, z = weights[0], z[0]
    projections = projections_of(probe.recording, attention_path, module, out_proj, probe.d_model)
    clip = getattr(probe.config, "clip_qkv", None) or getattr(
        getattr(probe.config, "attn_config", None), "clip_qkv", None
    )

    def clamped(t: Tensor) -> Tensor:
        return t.clamp(-clip, clip) if clip else t

    found = find_layout(projections, pattern, z, clamped) if differential is None else None
    # In half precision ten times the tolerance would let a wrong split pass.
    if found is None or found[1] > (10 if probe.tolerance < 1e-3 else 2) * probe.tolerance:
        outputs, inner_norms = _inside(probe, attention_path, module, out_proj)
        # The difference of two similar softmaxes has larger rounding errors than either.
        limit = probe.tolerance * (1 if differential is None else 4)
        values = find_values(outputs, pattern, z, inner_norms, limit)
        shared = None if values is not None else _shared_values(probe, path, pattern, z, inner_norms)
        reason = (
            _TWO_SOFTMAXES
            if values is not None and differential is not None
            else no_values
            or "its values are not a linear map of the stream, or its queries and keys have an unknown layout"
            if values is not None
            else f"it uses the keys and values of another layer ({shared[0]})"
            if shared is not None
            else no_values
            or f"its values were not found in {', '.join(projections) or 'any projection'}: pattern times values is "
            "not what the out-projection receives"
        )
        if shared is not None:
            known["no_scores"] = reason
        site = _without_values(
            probe, path, known, out_proj, n_heads, z[None], True, reason, values or (shared and shared[1])
        )
        return (
            site
            if values is None or differential is not None
            else _with_readings(probe, path, site, values, pattern, clamped)
        )
    projected = found[0]
    value_input = next(g for part, g, _ in projections.values() if part is projected.layout.v)[None]
    query_input = next(g for part, g, _ in projections.values() if part is projected.layout.q)[None]
    pre_norm = probe.norm_returning(value_input, path + ".")
    scores, q_norm, k_norm, after, window = _scores_in_window(
        probe, path, attention_path, module, pattern, projected, clamped
    )
    slopes = None if scores is None else scores.alibi_slopes
    if slopes is not None and facts_of(probe.config.model_type).eager_alibi_is_doubled:
        slopes = slopes / 2
    return AttentionSite(
        **known,
        out_projection=out_proj,
        head_layout=projected.layout,
        values=ValueSource(
            module=projected.layout.v,
            form="heads" if projected.layout.kind == "split" else projected.layout.kind,
            n_heads=n_heads,
            n_kv_heads=projected.n_kv_heads,
            d_head=z.shape[-1] // n_heads,
            factor=1.0,
            clip=clip,
            gate="",
        ),
        values_missing="",
        pre_norm=probe.entry_norm(pre_norm) if pre_norm else None,
        n_heads=n_heads,
        n_kv_heads=projected.n_kv_heads,
        d_head=z.shape[-1] // n_heads,
        is_attention=True,
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


def _with_readings(
    probe: Probe, path: str, site: AttentionSite, values: ValueSource, pattern: Tensor, clamped: Any
) -> AttentionSite:
    """The site with what its heads read, where that is a latent or shares a projection with a gate, and its scores."""
    found = find_readings(probe, site.path, site.module, values, site.out_proj)
    if found is None:
        return site
    latent = found.readings.parts["v"][0].latent
    ways = ["its keys and values are read through a latent that has its own norm"] if latent is not None else []
    ways += ["each head's values are divided by their size"] if found.readings.normed_values else []
    ways += [GATES[values.gate]] if values.gate else []
    reason = " and ".join(ways) or site.values_missing
    site = replace(site, readings=found.readings, values_missing=reason, n_kv_heads=found.n_kv_heads)
    if "q" not in found.readings.parts:
        return site
    scores, q_norm, k_norm, after, window = _scores_in_window(
        probe, path, site.path, site.module, pattern, found, clamped
    )
    if scores is None:
        return replace(site, q_norm=q_norm, k_norm=k_norm)
    return replace(
        site,
        scale=scores.scale,
        rotary=scores.rotary,
        q_norm=q_norm,
        k_norm=k_norm,
        norm_after_rotary=after,
        softcap=scores.softcap,
        alibi_slopes=scores.alibi_slopes,
        window=window,
        scores_understood=True,
    )


def _inside(
    probe: Probe, path: str, module: nn.Module, out_proj: nn.Module
) -> tuple[list[Output], list[tuple[Tensor, Tensor]]]:
    """What the modules inside an attention returned, and what its norms were given and returned."""
    outputs: list[Output] = []
    norms: list[tuple[Tensor, Tensor]] = []
    for name, part in module.named_modules():
        call = probe.recording.calls.get(f"{path}.{name}") if name else None
        if call is None or part is out_proj or call.returned is None:
            continue
        returned = call.returned[None] if call.returned.dim() == 2 else call.returned
        outputs += [(part, item, t) for item, t in enumerate((returned, *call.others))]
        if "norm" in type(part).__name__.lower() and call.given is not None:
            norms.append((call.given, call.returned))
    return outputs, norms


def _computes_weights(probe: Probe, module: nn.Module) -> bool:
    """Whether a module that returned no weights computes some all the same: attention in a model where none did.

    Where attention of another layer returned its weights, a module that does not is a linear or recurrent mixer.
    """
    name = type(module).__name__.lower()
    if "attention" not in name or re.search("linear|lightning|delta|mamba|rwkv|retention", name):
        return False
    return all(call.weights is None for call in probe.recording.calls.values())


def _shared_values(
    probe: Probe, path: str, pattern: Tensor, z: Tensor, norms: list[tuple[Tensor, Tensor]]
) -> tuple[str, ValueSource] | None:
    """The values of an earlier layer that this one mixes (Gemma 3n and 4 share keys and values), and where they lie."""
    for name in reversed([p for p in probe.recording.calls if re.search(r"\bv_(norm|proj)$", p)]):
        returned = probe.recording.calls[name].returned
        if returned is None or name.startswith(path + "."):
            continue
        output = (probe.hf.get_submodule(name), 0, returned[None] if returned.dim() == 2 else returned)
        found = find_values([output], pattern, z, norms, probe.tolerance)
        if found is not None:
            return name, found
    return None


def _no_scores(known: str, differential: DifferentialPattern | None) -> str:
    return known or (AttentionSite.no_scores if differential is None else _TWO_SOFTMAXES)


def _missing(module: nn.Module, is_attention: bool) -> str:
    return _NO_WEIGHTS if is_attention else f"{type(module).__name__} mixes positions without attention weights"


def _without_values(
    probe: Probe,
    path: str,
    known: dict[str, Any],
    out_proj: nn.Module | None,
    n_heads: int,
    z: Tensor | None,
    is_attention: bool,
    reason: str,
    values: ValueSource | None = None,
) -> AttentionSite:
    """A mixer for which only the output, and perhaps the heads' inputs to the out-projection, are known."""
    entered = probe.recording.given(known["path"])
    pre_norm = probe.norm_returning(entered, path + ".")
    return AttentionSite(
        **known,
        out_projection=out_proj,
        head_layout=None,
        values=values,
        values_missing=reason,
        pre_norm=probe.entry_norm(pre_norm) if pre_norm else None,
        n_heads=n_heads,
        n_kv_heads=max(n_heads, 1),
        d_head=z.shape[-1] // n_heads if n_heads and z is not None else 0,
        is_attention=is_attention,
        scale=float("nan"),
        rotary=None,
        q_norm=None,
        k_norm=None,
        norm_after_rotary=False,
        softcap=None,
        alibi_slopes=None,
        window=None,
        clip=None,
        scores_understood=False,
        positions_read=False,
    )


def _attention_path(probe: Probe, path: str, source: str) -> str:
    """The innermost module around or inside `source` that returned attention weights, else the mixer's own module."""
    around = [p for p in probe.recording.calls if p.startswith(path + ".") and (source + ".").startswith(p + ".")]
    inside = [p for p in probe.recording.calls if p.startswith(source + ".")]
    # GPT-Neo wraps its attention in another attention: the innermost one does the work.
    weighted = [p for p in (*inside, *around) if probe.recording.calls[p].weights is not None]
    if weighted:
        return max(weighted, key=lambda p: p.count("."))
    outermost = min(around, key=len, default=source)
    return outermost if list(probe.hf.get_submodule(outermost).children()) else source


def _out_projection(probe: Probe, path: str, module: nn.Module, raw: Tensor) -> tuple[str | None, nn.Module | None]:
    """The projection inside the mixer that returned its output."""
    for name, part in reversed(called_linears(probe, path, module)):
        returned = probe.recording.returned(name)
        if same(returned, raw) or (returned is not None and same(returned.view(1, -1, returned.shape[-1]), raw)):
            return name, part
    return None, None


def _head_count(probe: Probe, module: nn.Module, weights: Tensor | None, z: Tensor | None) -> int:
    """How many heads share the input of the out-projection; 0 where they do not."""
    if z is None:
        return 0
    if weights is not None:
        counts = [weights.shape[1]]
    else:
        # xLSTM's mixer names its heads in the norm inside it.
        counts = [getattr(part, name, None) for part in module.modules() for name in _HEAD_COUNTS]
        if "attention" in type(module).__name__.lower():  # its heads are those of the config, where it names none
            counts.append(getattr(probe.config, "num_attention_heads", None))
    return next((n for n in counts if isinstance(n, int) and n > 0 and z.shape[-1] % n == 0), 0)


def _window(probe: Probe, path: str, module: nn.Module) -> int | None:
    number = int(path.rsplit(".", 1)[-1])
    kinds = getattr(probe.config, "layer_types", None)
    if kinds is not None:
        return getattr(probe.config, "sliding_window", None) if "sliding" in kinds[number] else None
    local = getattr(probe.config, "attention_layers", None)
    if local is not None:
        return probe.config.window_size if local[number] == "local" else None
    if hasattr(module, "sliding_window"):
        window = module.sliding_window
        return window if isinstance(window, int) else None
    in_use = getattr(probe.config, "use_sliding_window", True)
    return getattr(probe.config, "sliding_window", None) if in_use else None


def _own_angles(probe: Probe, attention_path: str) -> tuple[Tensor, Tensor] | None:
    """Cosines and sines that the attention computes itself (RecurrentGemma)."""
    call = probe.recording.calls.get(f"{attention_path}.rotary_emb")
    return None if call is None or call.returned is None or len(call.others) != 1 else (call.returned, call.others[0])


def _scores_in_window(
    probe: Probe,
    path: str,
    attention_path: str,
    module: nn.Module,
    pattern: Tensor,
    projected: Projected | ReadHeads,
    clamped: Any,
) -> tuple[Scores | None, nn.Module | None, nn.Module | None, bool, int | None]:
    """The scores, and the window within which they give the pattern; that of the config is not always in use."""
    stated, named = _window(probe, path, module), getattr(probe.config, "sliding_window", None)
    others = [w for w in dict.fromkeys((named if isinstance(named, int) else None, None)) if w != stated]
    tries = ((*_scores(probe, attention_path, module, pattern, projected, clamped, w), w) for w in (stated, *others))
    first = next(tries)
    return first if first[0] is not None else next((one for one in tries if one[0] is not None), first)


def _scores(
    probe: Probe,
    attention_path: str,
    module: nn.Module,
    pattern: Tensor,
    projected: Projected | ReadHeads,
    clamped: Any,
    window: int | None,
) -> tuple[Scores | None, nn.Module | None, nn.Module | None, bool]:
    n_heads, n_kv = pattern.shape[0], projected.n_kv_heads
    d_head = projected.q.shape[-1] // n_heads
    cap = getattr(probe.config, "attn_logit_softcapping", None)
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
    in_buffer = facts_of(probe.config.model_type).rotary_in_buffer
    buffer_dim = getattr(probe.config, "rotary_dim", None) if in_buffer else None
    angles = probe.recording.calls[attention_path].rotary or _own_angles(probe, attention_path)
    if not getattr(module, "use_rope", True):
        angles = None  # SmolLM3 gives every layer the angles, and some do not use them
    rotaries = rotary_candidates(probe.hf, angles, buffer_dim)
    pair = next((p for p in _QK_NORMS if hasattr(module, p[0]) and _called(probe, attention_path, module, p[0])), None)
    common: dict[str, Any] = dict(scales=scales, softcap=cap, window=window, tolerance=probe.tolerance)
    if pair is None:
        q, k = heads_of(clamped(projected.q), n_heads), heads_of(clamped(projected.k), n_kv)
        return find_scores(pattern, q, k, rotaries=rotaries, **common), None, None, False
    q_norm, k_norm = (getattr(module, n) for n in pair)
    q, k = (_normed(probe, f"{attention_path}.{n}", h) for n, h in zip(pair, (n_heads, n_kv), strict=True))
    if q is None or k is None:
        return None, q_norm, k_norm, False
    # A norm that is given rotated queries leaves no rotation to do after it.
    given = probe.recording.calls[f"{attention_path}.{pair[0]}"].given if rotaries else None
    earlier = None
    if given is not None and given.shape[1:] == (n_heads, *q.shape[1:]):
        where, plain = torch.arange(q.shape[1], device=q.device), heads_of(clamped(projected.q), n_heads).double()
        if relative(plain, given[0]) > probe.tolerance:
            earlier = next((r for r in rotaries if relative(r.rotate(plain, where), given[0]) <= probe.tolerance), None)
    scores = find_scores(pattern, q, k, rotaries=[] if earlier else rotaries, **common)
    if scores is None or earlier is None:
        return scores, q_norm, k_norm, False
    return replace(scores, rotary=earlier), q_norm, k_norm, True


def _called(probe: Probe, attention_path: str, module: nn.Module, name: str) -> bool:
    part = getattr(module, name)
    return part is not None and any(
        f"{attention_path}.{name}{'.' + sub if sub else ''}" in probe.recording.calls for sub, _ in part.named_modules()
    )


def _normed(probe: Probe, path: str, n_heads: int) -> Tensor | None:
    returned = probe.recording.calls[path].returned if path in probe.recording.calls else None
    if returned is None:
        return None
    pos = probe.recording.tokens.shape[1]
    returned = returned[0] if returned.dim() > 2 and returned.shape[0] == 1 else returned
    if returned.dim() == 3 and returned.shape[0] == n_heads and returned.shape[1] == pos:
        return returned
    if returned.dim() == 3 and returned.shape[:2] == (pos, n_heads):
        return returned.transpose(0, 1)
    return heads_of(returned, n_heads) if returned.dim() == 2 and returned.shape[0] == pos else None
