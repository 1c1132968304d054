"""Run the model once, with an autograd graph whose gradients pass relevance backward by linear rules.

All values of the forward pass are the model's own; the rules change only gradients. Queries and keys are constants, so
that attention is linear in its values. With `qk="shared"` they receive relevance too (`shared_patterns.py`). In that
case, and where the layout of the attention's weights is unknown or values are clipped, the linear pass multiplies the
values by the attention pattern of an earlier forward pass.

A pass is either whole or cut. In a whole pass, gradients flow through all components. In a cut pass, heads and memories
are leaves of the graph: the gradient of one component's input then shows what each other component contributes to it
directly.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unembed.errors import Unsupported
from unembed.linear_model.expert_memories import open_experts
from unembed.linear_model.linear_rules import half_rule, identity_rule, linearized, norm_rule, ratio
from unembed.linear_model.pass_tensors import Closed, LinearPass, OtherNodes, Part, bias_term
from unembed.linear_model.shared_patterns import require_scores, shared_pattern
from unembed.models.decoder import Decoder
from unembed.models.norms import ChannelGain, Norm, OpaqueNorm
from unembed.models.offload import is_offloaded
from unembed.models.structure.structure import AttentionSite, Block, FeedForwardSite
from unembed.names import QKRule
from unembed.stream.capture_points import ForwardPass, has_point
from unembed.stream.decomposition import prove, require_one_stream, tolerance
from unembed.stream.hooks import attach_hooks, change_tensor, memory_guard
from unembed.stream.run import cache_argument, run


def attention_patterns(lm: Decoder, tokens: Int[Tensor, "batch pos"], qk: QKRule = "constant") -> dict[int, Tensor]:
    """Return, by layer, the attention patterns that the linear pass multiplies with the values itself.

    With `qk="shared"`, these are the patterns of all layers whose heads and values are known. Otherwise they are those
    of layers whose head layout is unknown, whose values are clipped, or whose scores may depend on the values.

    Raises:
        Unsupported: with `qk="shared"`, the scores of a layer cannot be computed from its queries and keys.

    Memory: layers * heads * positions squared.
    """
    is_shared = qk == "shared"
    opened = [n for n, block in enumerate(lm.structure.blocks) if _is_open(block.mixer)]
    if is_shared:
        require_scores(lm, opened)
    layers = [n for n in opened if is_shared or not _runs_itself(lm.structure.blocks[n].mixer)]
    if not layers:
        return {}
    seen = run(lm, tokens, ("pattern",), layers=layers)
    return {layer: seen.at("pattern", layer) for layer in layers}


def _is_open(mixer: AttentionSite | None) -> bool:
    """Return whether a token mixer is attention whose heads and values are known."""
    return mixer is not None and mixer.is_attention and mixer.n_heads > 0 and mixer.values is not None


def _runs_itself(mixer: AttentionSite | None) -> bool:
    """Return whether the model's own attention code is linear in the values once queries and keys are constant.

    If scores are computed from more than queries and keys, they may depend on the values too; in Doge they do.
    """
    return mixer is not None and mixer.head_layout is not None and mixer.clip is None and not mixer.scores.missing


def linear_pass(
    lm: Decoder,
    tokens: Int[Tensor, "batch pos"],
    patterns: dict[int, Tensor] | None = None,
    others: OtherNodes | None = None,
    *,
    cut: bool = False,
    qk: QKRule = "constant",
) -> LinearPass:
    """Run the model on prompts of equal length, with an autograd graph that follows the linear rules.

    Args:
        patterns: the result of `attention_patterns` for the same tokens and `qk`; computed when None.
        others: graph nodes that replace the memories of some layers, such as the features of a dictionary.
        cut: make heads, memories and features leaves of the graph, at which gradients stop.
        qk: "constant": queries and keys receive no relevance. "shared": half of a head's relevance goes through its
            attention pattern to queries and keys.

    Raises:
        Unsupported: the model has several residual streams or offloaded weights; or with "shared", a layer's attention
            scores cannot be computed from its queries and keys.
        SumNotProved: the values of a layer's heads, mixed by their pattern, are not what the layer computed; or the
            softmax of the scores from queries and keys is not the layer's pattern.

    Memory: activations of all layers, twice for the norms and FFNs; with "shared", six patterns of each layer.
    """
    require_one_stream(lm, "the linear model of a run")
    if is_offloaded(lm.hf):
        raise Unsupported(
            "the linear model of a run",
            why="weights are offloaded, but its autograd graph needs all weights in memory",
            instead="Open the model on one device",
        )
    patterns = attention_patterns(lm, tokens, qk) if patterns is None else patterns
    made = LinearPass(lm, tokens, cut, patterns, qk)
    hooks: dict[tuple[str, int], Any] = {}
    captures: dict[tuple[str, int], Any] = {}
    last = lm.n_layers - 1
    replaced = frozenset[int]() if others is None else others.layers
    for layer, block in enumerate(lm.structure.blocks):
        if layer:
            captures["resid_pre", layer] = lambda t, n=layer: made.streams.__setitem__(n, t)
        if block.mixer is not None and block.mixer.n_heads and has_point(lm, "z", layer):
            hooks["z", layer] = lambda z, n: _heads(made, z, n)
        ffn = block.feed_forward
        if ffn is not None and ffn.experts is None and ffn.down_proj is not None and layer not in replaced:
            hooks["coefficients", layer] = lambda m, n: _memories(made, m, n)
    if lm.n_layers:
        captures["resid_post", last] = lambda t: setattr(made, "last", t)
        if lm.structure.position_embedding is not None:
            captures["position_embedding", 0] = lambda t: setattr(made, "positions", t.detach().clone())
    behind_norms: dict[tuple[str, int], Any] = {}
    if others is not None:
        read, written = others.hooks(made)
        behind_norms = {key: one for key, one in written.items() if _branch_norm(lm, *key) is not None}
        hooks |= {key: one for key, one in written.items() if key not in behind_norms}
        captures |= {key: _both(captures.get(key), one) for key, one in read.items()}
    # Gradients stop at the output of recurrent layers, so these may overwrite their state in place. With gradients
    # enabled, `cache_argument` would refuse such models.
    with torch.no_grad():
        cache = cache_argument(lm)
    with ExitStack() as stack:
        stack.enter_context(memory_guard(f"a linear pass of {tokens.numel()} tokens"))
        current = stack.enter_context(attach_hooks(lm, captures, (), hooks))
        stack.enter_context(torch.enable_grad())
        if lm.n_layers:
            change_tensor(stack, lm, 0, "resid_pre", lambda t: _begin(made, t))
        for layer, block in enumerate(lm.structure.blocks):
            _install(stack, made, current, layer, block, has_memories=layer not in replaced)
        for (point, layer), change in behind_norms.items():
            _change_normed(stack, lm, point, layer, change)
        out = lm.hf(tokens, **cache, **current.arguments).logits
    made.logits = out.detach()
    return made


def _branch_norm(lm: Decoder, point: str, layer: int) -> Norm | None:
    """Return the norm that a layer's attention or FFN output goes through before it is added to the stream, if any."""
    block = lm.structure.blocks[layer]
    site = {"attn_out": block.mixer, "mlp_out": block.feed_forward}.get(point)
    return None if site is None or isinstance(site.branch_norm, ChannelGain) else site.branch_norm


def _change_normed(stack: ExitStack, lm: Decoder, point: str, layer: int, change: Callable[[Tensor, int], Any]) -> None:
    """Apply `change` to what a layer's attention or FFN adds to the stream, where that is the output of a norm."""
    block = lm.structure.blocks[layer]
    site = block.mixer if point == "attn_out" else block.feed_forward
    norm = _branch_norm(lm, point, layer)
    assert site is not None and norm is not None
    factor = site.multiplier
    _change_output(stack, norm.module, lambda _x, y: change(y * factor, layer) / factor)


def _both(first: Callable[[Tensor], None] | None, second: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    def call(t: Tensor) -> None:
        if first is not None:
            first(t)
        second(t)

    return call


def _begin(made: LinearPass, t: Tensor) -> Tensor:
    made.start = t.detach().clone().requires_grad_()
    made.streams[0] = made.start
    return made.start.clone()


def _install(
    stack: ExitStack, made: LinearPass, current: ForwardPass, layer: int, block: Block, *, has_memories: bool
) -> None:
    """Install the hooks of one block: on norms, biases, attention, FFN, and modules whose outputs become leaves."""
    norms = _norms_of(block)
    rule = None if block.mixer is None else block.mixer.scores
    scores = {norm for norm in (rule.q_norm, rule.k_norm) if norm is not None} if rule is not None else set[nn.Module]()
    inner = _inner_norms(block, {*scores, *(norm.module for norm in norms)})
    for norm in (*norms, *inner):
        factor = made.bias(layer, "norm") if norm.bias is not None and norm not in inner else None
        _change_output(stack, norm.module, lambda x, y, n=norm, s=factor: _normed(n, x, y, s))
    for module in block.module.modules():
        bias = module._parameters.get("bias")
        if (
            bias is not None
            and bias.dim() == 1
            and module not in {*scores, *(norm.module for norm in (*norms, *inner))}
        ):
            _add_bias(stack, made, module, bias, layer, block)
    for norm in _all_norms_of(block):
        # An OpaqueNorm may have a gate (A.X K2's has): gate and scale together are a constant factor from the run.
        if isinstance(norm, OpaqueNorm):
            _change_output(stack, norm.module, lambda x, y: linearized(y, x * ratio(y, x).to(x.dtype)))
    if block.mixer is not None and block.mixer.constant is not None:
        constant = block.mixer.constant.to(made.lm.device) / block.mixer.multiplier
        _add_bias(stack, made, block.mixer.output, constant, layer, block)
    _install_mixer(stack, made, current, layer, block.mixer)
    if has_memories:
        _install_ffn(stack, made, current, layer, block.feed_forward)
    for number, writer in enumerate((*block.early_writers, *block.late_writers)):
        _close(stack, made, layer, writer.module, f"{writer.label} {layer}")
        made.unopened.append(f"writer {number} of layer {layer} ({type(writer.module).__name__})")


def _install_mixer(
    stack: ExitStack, made: LinearPass, current: ForwardPass, layer: int, mixer: AttentionSite | None
) -> None:
    if mixer is None:
        return
    if layer in made.patterns:
        if mixer.head_layout is not None:
            for which in "qk":

                def keep_one(_x: Tensor, y: Tensor, which: str = which) -> Tensor:
                    if made.qk == "shared":
                        made.live[which, layer] = mixer.split_heads(current.by_position(y), which)
                    return y if mixer.layout.v is getattr(mixer.layout, which) else y.detach().clone()

                _change_output(stack, getattr(mixer.head_layout, which), keep_one)

        first = _first_with_values_of(made.lm, layer)
        if first < layer:
            made.values_of[layer] = first

        def keep(own: Tensor) -> Tensor:
            made.live["values", layer] = current.by_position(own)
            # OLMo then clips the values in place; on a copy, this does not overwrite the recorded tensor.
            return own.detach().clone()

        change_tensor(stack, made.lm, layer, "values", keep)
        return
    if _is_open(mixer) and _runs_itself(mixer):
        assert mixer.head_layout is not None
        for module in {mixer.head_layout.q, mixer.head_layout.k, mixer.head_layout.v}:
            _change_output(stack, module, lambda _x, y, m=module: _values_alone(mixer, m, y))
        return
    made.unopened.append(f"{made.lm.mixer_name(layer)} of layer {layer}")
    if not (mixer.n_heads and has_point(made.lm, "z", layer)):
        _close(stack, made, layer, mixer.output, f"{made.lm.mixer_name(layer)} {layer}")


def _first_with_values_of(lm: Decoder, layer: int) -> int:
    """Return the layer that computes the values of this one; Gemma 4's last layers use those of an earlier layer."""
    sources = [None if block.mixer is None else block.mixer.values for block in lm.structure.blocks[: layer + 1]]
    own = sources[layer]
    assert own is not None
    return next(n for n, source in enumerate(sources) if source is not None and source.module is own.module)


def _values_alone(mixer: AttentionSite, module: nn.Module, y: Tensor) -> Tensor:
    """Return a projection's output in which only the values have gradients; queries and keys are constants."""
    if module is not mixer.layout.v:
        return y.detach()
    columns = mixer.split_heads(torch.arange(y.shape[-1], device=y.device), "v").flatten()
    return y.detach().clone().index_copy(-1, columns, y[..., columns])


def _install_ffn(
    stack: ExitStack, made: LinearPass, current: ForwardPass, layer: int, ffn: FeedForwardSite | None
) -> None:
    if ffn is None:
        return
    if ffn.channel_gate is not None:
        _change_output(stack, ffn.channel_gate, lambda _x, y: y.detach())
    if not ffn.has_memories:
        made.unopened.append(f"FFN of layer {layer}")
        _close(stack, made, layer, ffn.output, f"FFN {layer}")
    elif ffn.experts is not None:
        open_experts(stack, made, current, layer, ffn, ffn.experts)
    elif ffn.up_proj is None:
        made.unopened.append(f"keys of layer {layer}")
    else:
        for module in {ffn.up_proj, ffn.gate_proj} - {None}:

            def keep(_x: Tensor, y: Tensor, module: nn.Module = module) -> Tensor:
                for which, one in (("up", ffn.up_proj), ("gate", ffn.gate_proj)):
                    if one is module:
                        made.live[which, layer] = ffn.half(current.by_position(y), which)
                return y.detach().clone()

            _change_output(stack, module, keep)


def _heads(made: LinearPass, z: Float[Tensor, "batch pos head d_head"], layer: int) -> Tensor:
    """Return z of a layer's heads as a linear function of the values, and record it in `made.parts`."""
    own = z.detach()
    mixer = made.lm.structure.blocks[layer].mixer
    if layer not in made.patterns:
        read = z if _is_open(mixer) and _runs_itself(mixer) else None
    else:
        assert mixer is not None and mixer.values is not None
        source = mixer.values
        values = replace(source, clip=None).split(made.live.pop(("values", layer)))
        if source.clip is not None:
            clipped = values.detach().clamp(-source.clip * source.factor, source.clip * source.factor)
            values = values * ratio(clipped, values).to(values.dtype)
        values = values.repeat_interleave(source.n_heads // source.n_kv_heads, dim=1)
        read = torch.einsum("bhqk,bhkd->bqhd", made.patterns[layer].to(values.dtype), values)
        if ("q", layer) in made.live:
            q, k = made.live.pop(("q", layer)), made.live.pop(("k", layer))
            pattern = shared_pattern(made, layer, q, k, made.patterns[layer])
            read = 0.5 * (read + torch.einsum("bhqk,bhkd->bqhd", pattern, values.detach().to(pattern)))
        if source.gated:
            read = read * ratio(own, read).to(read.dtype)
        what = f"the heads of layer {layer} of {made.lm.name}"
        prove(what, read.detach().float(), own.float(), tolerance(made.lm))
    node = made.node(own, read)
    made.parts["head", layer] = Part("head", layer, node, read)
    return node


def _memories(made: LinearPass, m: Float[Tensor, "batch pos d_mlp"], layer: int) -> Tensor:
    """Return a layer's coefficients as a linear function of the FFN's input, and record them in `made.parts`."""
    own, read = m.detach(), None
    ffn = made.lm.feed_forward(layer)
    up, gate = made.live.pop(("up", layer), None), made.live.pop(("gate", layer), None)
    if up is not None:
        read = identity_rule(own, up, ffn.activation) if gate is None else half_rule(own, gate, up)
    node = made.node(own, read)
    made.parts["memory", layer] = Part("memory", layer, node, read)
    return node


def _norms_of(block: Block) -> list[Norm]:
    """Return the norms of a block, each once, except those that only apply channel gains or are not understood."""
    return [norm for norm in _all_norms_of(block) if not isinstance(norm, ChannelGain | OpaqueNorm)]


def _all_norms_of(block: Block) -> list[Norm]:
    sites = [site for site in (block.mixer, block.feed_forward) if site is not None]
    found = [norm for site in sites for norm in (site.pre_norm, site.branch_norm)]
    once = {norm.module: norm for norm in (*found, block.entry_norm, block.middle_norm) if norm is not None}
    return list(once.values())


def _inner_norms(block: Block, known: set[nn.Module]) -> list[Norm]:
    """Return the norms inside an attention module that are not in `known`, such as that of a compressed latent."""
    if not _is_open(block.mixer) or block.mixer is None:
        return []
    found: list[Norm] = []
    for path, module in block.mixer.module.named_modules():
        weight = getattr(module, "weight", None)
        is_norm = "norm" in type(module).__name__.lower() and isinstance(weight, Tensor) and weight.dim() == 1
        if is_norm and isinstance(weight, Tensor) and module not in known:
            found.append(Norm(module, f"{block.mixer.path}.{path}", weight.shape[0]))
    source = block.mixer.values
    # The norm of Gemma 4's values has no gain, so the loop above does not find it.
    if source is not None and "norm" in type(source.module).__name__.lower() and not list(source.module.parameters()):
        found.append(Norm(source.module, f"{block.mixer.path}, values", source.d_head))
    return found


def _normed(norm: Norm, x: Tensor, y: Tensor, factor: Tensor | None) -> Tensor:
    out = norm_rule(norm, x, y)
    return out if factor is None or norm.bias is None else out + bias_term(factor, norm.bias, out)


def _add_bias(stack: ExitStack, made: LinearPass, module: nn.Module, bias: Tensor, layer: int, block: Block) -> None:
    ffn = block.feed_forward
    of_ffn = ffn is not None and any(module is part for part in ffn.module.modules())
    factor = made.bias(layer, "FFN" if of_ffn else "attention")
    _change_output(
        stack,
        module,
        lambda _x, y: y + bias_term(factor, bias, y) if y.shape[:-1].numel() == factor.numel() else y,
    )


def _close(stack: ExitStack, made: LinearPass, layer: int, module: nn.Module, label: str) -> None:
    """Make a module's output a leaf of the graph, at which gradients stop."""

    def change(_x: Tensor, y: Tensor) -> Tensor:
        leaf = y.detach().clone().requires_grad_()
        made.closed.append(Closed(layer, label, leaf))
        return leaf

    _change_output(stack, module, change)


def _change_output(stack: ExitStack, module: nn.Module, change: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Replace a module's output by `change(input, output)`.

    `change` may call the module itself; the output of that call is not replaced.
    """
    state = {"busy": False}

    def after(_m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        if state["busy"]:
            return None
        state["busy"] = True
        try:
            given = next((t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)), None)
            if isinstance(out, Tensor):
                return change(out if given is None else given, out)
            at = next(i for i, part in enumerate(out) if isinstance(part, Tensor))
            changed = change(out[at] if given is None else given, out[at])
            return type(out)([*out[:at], changed, *out[at + 1 :]])
        finally:
            state["busy"] = False

    stack.callback(module.register_forward_hook(after, with_kwargs=True).remove)
