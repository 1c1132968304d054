"""Find a block's token mixer (attention, or another module that mixes positions) in a recorded forward pass."""

from __future__ import annotations

import re
from dataclasses import replace

from torch import Tensor, nn

from unembed.models.norms import Norm
from unembed.models.structure.attention_layout import Mixing, ModuleCall, Projected, find_layout, projections_of
from unembed.models.structure.attention_scores import score_rule
from unembed.models.structure.block_writers import BlockWriter
from unembed.models.structure.exotic import differential_pattern, without_layout
from unembed.models.structure.families import facts_of
from unembed.models.structure.probe import Probe, called_linears, same
from unembed.models.structure.structure import AttentionSite, ScoreRule, ValueSource

_HEAD_COUNTS = ("num_v_heads", "num_heads", "n_heads", "num_attention_heads", "nheads", "n_mamba_heads")
_NO_WEIGHTS = (
    "its attention returns no weights, so sources and values cannot be found; build it with "
    # Before transformers 5.13.0, Nemotron chooses its attention implementation when the model is built, and cannot
    # change it later.
    'attn_implementation="eager" and pass load() the model, or use a newer transformers (Nemotron: 5.13.0)'
)


def mixer_site(writer: BlockWriter, block: str, constant: Tensor | None) -> AttentionSite:
    """Return the description of a block's token mixer: its heads, values and scores, as far as they were found.

    Args:
        writer: the mixer, as one of the modules whose output the block adds to the stream.
        block: the path of the block.
        constant: a bias that the block adds after the mixer, if there is one.
    """
    mixing = _mixing(writer, block)
    site = _one_component(mixing, writer, constant)
    if mixing.pattern is None or mixing.z is None or not mixing.n_heads or mixing.out_projection is None:
        return site
    projections = projections_of(mixing)
    projected = find_layout(mixing, projections) if mixing.differential is None else None
    if projected is None:
        return without_layout(mixing, site, projections)
    return _with_layout(mixing, site, projected, projections)


def _mixing(writer: BlockWriter, block: str) -> Mixing:
    probe = writer.probe
    attention_path = _attention_path(probe, block, writer.source)
    module = probe.hf.get_submodule(attention_path)
    weights, differential = probe.recording.calls[attention_path].weights, differential_pattern(module)
    if weights is not None and differential is not None:
        weights = differential.combined(weights)
    out_path, out_projection = _out_projection(probe, attention_path, module, writer.raw)
    z = None if out_path is None else probe.recording.given(out_path)
    attention_config = getattr(probe.config, "attn_config", None)
    return Mixing(
        probe=probe,
        block=block,
        path=attention_path,
        module=module,
        out_projection=out_projection,
        pattern=None if weights is None else weights[0],
        z=None if z is None else z[0],
        n_heads=_head_count(probe, module, weights, z),
        clip=getattr(probe.config, "clip_qkv", None) or getattr(attention_config, "clip_qkv", None),
        differential=differential,
    )


def _one_component(mixing: Mixing, writer: BlockWriter, constant: Tensor | None) -> AttentionSite:
    facts, n_heads = facts_of(mixing.probe.config.model_type), mixing.n_heads
    is_attention = mixing.pattern is not None or (n_heads > 0 and _computes_weights(mixing.probe, mixing.module))
    kind = type(mixing.module).__name__
    no_scores = facts.no_scores or (ScoreRule.missing if mixing.differential is None else mixing.differential.no_scores)
    return AttentionSite(
        path=mixing.path,
        module=mixing.module,
        output=writer.module,
        branch_norm=writer.norm,
        multiplier=writer.multiplier,
        constant=constant,
        differential=mixing.differential,
        pre_norm=_pre_norm(mixing, mixing.probe.recording.given(mixing.path)),
        out_projection=mixing.out_projection if n_heads else None,
        no_heads=facts.no_values if mixing.out_projection is None else "",
        n_heads=n_heads,
        n_kv_heads=max(n_heads, 1),
        d_head=mixing.d_head,
        is_attention=is_attention,
        values_missing=facts.no_values
        or (_NO_WEIGHTS if is_attention else f"{kind} mixes positions without attention weights"),
        scores=ScoreRule(missing=no_scores),
    )


def _with_layout(
    mixing: Mixing, site: AttentionSite, projected: Projected, projections: dict[str, ModuleCall]
) -> AttentionSite:
    """Add to the description the layout of queries, keys and values, and the formula of the attention weights."""
    layout = projected.layout
    value_input = next(p.given for p in projections.values() if p.module is layout.v)[None]
    query_input = next(p.given for p in projections.values() if p.module is layout.q)[None]
    return replace(
        site,
        head_layout=layout,
        n_kv_heads=projected.n_kv_heads,
        values_missing="",
        values=ValueSource(
            module=layout.v,
            form="heads" if layout.kind == "split" else layout.kind,
            n_heads=mixing.n_heads,
            n_kv_heads=projected.n_kv_heads,
            d_head=mixing.d_head,
            factor=1.0,
            clip=mixing.clip,
            gate="",
        ),
        pre_norm=_pre_norm(mixing, value_input),
        scores=score_rule(mixing, projected.q, projected.k, projected.n_kv_heads, site.scores.missing),
        clip=mixing.clip,
        positions_read=not same(query_input, value_input),
    )


def _pre_norm(mixing: Mixing, entered: Tensor | None) -> Norm | None:
    path = mixing.probe.norm_returning(entered, mixing.block + ".")
    return mixing.probe.entry_norm(path) if path else None


def _computes_weights(probe: Probe, module: nn.Module) -> bool:
    """Tell whether a module that returned no attention weights is nevertheless ordinary attention.

    In a model in which some layer returned attention weights, a mixer that returned none is a linear or recurrent one.
    """
    name = type(module).__name__.lower()
    if "attention" not in name or re.search("linear|lightning|delta|mamba|rwkv|retention", name):
        return False
    return all(call.weights is None for call in probe.recording.calls.values())


def _attention_path(probe: Probe, path: str, source: str) -> str:
    """Return the path of the innermost module, around or inside `source`, that returned attention weights.

    If none did, return the path of the whole mixer.
    """
    around = [p for p in probe.recording.calls if p.startswith(path + ".") and (source + ".").startswith(p + ".")]
    inside = [p for p in probe.recording.calls if p.startswith(source + ".")]
    # If several nested modules returned the weights, the innermost computes them (GPT-Neo wraps its attention module).
    weighted = [p for p in (*inside, *around) if probe.recording.calls[p].weights is not None]
    if weighted:
        return max(weighted, key=lambda p: p.count("."))
    outermost = min(around, key=len, default=source)
    return outermost if list(probe.hf.get_submodule(outermost).children()) else source


def _out_projection(probe: Probe, path: str, module: nn.Module, raw: Tensor) -> tuple[str | None, nn.Module | None]:
    for name, part in reversed(called_linears(probe, path, module)):
        returned = probe.recording.returned(name)
        if same(returned, raw) or (returned is not None and same(returned.view(1, -1, returned.shape[-1]), raw)):
            return name, part
    return None, None


def _head_count(probe: Probe, module: nn.Module, weights: Tensor | None, z: Tensor | None) -> int:
    """Return how many heads' outputs are concatenated in z, the out-projection's input; 0 if there are none."""
    if z is None:
        return 0
    if weights is not None:
        counts = [weights.shape[1]]
    else:
        # In xLSTM, the number of heads is an attribute of the norm inside the mixer, not of the mixer itself.
        counts = [getattr(part, name, None) for part in module.modules() for name in _HEAD_COUNTS]
        if "attention" in type(module).__name__.lower():  # it may have no attribute with the number of heads
            counts.append(getattr(probe.config, "num_attention_heads", None))
    return next((n for n in counts if isinstance(n, int) and n > 0 and z.shape[-1] % n == 0), 0)
