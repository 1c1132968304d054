"""Find the FFN of one block in a recorded forward pass: keys, gates, values, and the norms and factors around them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from unembed.models.structure.block_writers import BlockWriter
from unembed.models.structure.find_experts import find_experts
from unembed.models.structure.probe import Probe, flat, holds_weights, is_linear, relative, same
from unembed.models.structure.structure import FeedForwardSite

_ACTIVATION_FIELDS = ("hidden_activation", "hidden_act", "activation_function", "activation", "act_fn")


_NAMES = re.compile(r"mlp|ffn|feed_?forward|moe|experts")
_CLASSES = re.compile(r"(mlp|moe|ffn|feedforward|experts|moeblock|sparseblock)$")


def ffn_path_of(probe: Probe, path: str, module: nn.Module) -> str | None:
    """Return the path of a block's FFN, or None if it has none.

    In OPT, whose fc1 and fc2 are direct children of the block, the path of the block is returned.
    """
    children = {
        name: child
        for name, child in module.named_children()
        if f"{path}.{name}" in probe.recording.calls and f"{path}.{name}" not in probe.norms and holds_weights(child)
    }
    named = [n for n in children if _NAMES.search(n.lower()) and "norm" not in n.lower()]
    named += [n for n, c in children.items() if n not in named and _CLASSES.search(type(c).__name__.lower())]
    if named:
        return f"{path}.{named[0]}"
    return path if any(n in children for n in ("fc1", "fc2")) else None


def ffn_input(probe: Probe, block: str, path: str) -> tuple[Tensor, str | None, Tensor] | None:
    """Return an FFN's input, the path of the norm that computes it (or None), and the stream before that norm.

    Return None if they were not recorded. `block` and `path` are the paths of the block and of the FFN.
    """
    read = probe.recording.given(f"{block}.fc1" if path == block else path)
    if read is None:
        return None
    read = read.view(1, -1, read.shape[-1])
    norm_path = probe.norm_returning(read, block + ".")
    stream = probe.recording.given(norm_path) if norm_path else read
    return None if stream is None else (read, norm_path, stream)


def feed_forward_site(writer: BlockWriter, block: str, path: str) -> FeedForwardSite:
    """Return the description of a block's FFN.

    Args:
        writer: the FFN, as one of the modules whose output the block adds to the stream.
        block: the path of the block.
        path: the path of the FFN; the block's own path where the FFN is not a separate module (OPT).
    """
    probe, module = writer.probe, writer.probe.hf.get_submodule(path)
    inside = _projections(probe, block, path)
    recorded = ffn_input(probe, block, path)
    assert recorded is not None
    read, norm_path, _ = recorded
    entry = probe.norms[norm_path] if norm_path else (module if path != block else module.get_submodule("fc1"))
    site = FeedForwardSite(
        module=module,
        entry=entry,
        output=writer.module,
        pre_norm=probe.entry_norm(norm_path) if norm_path else None,
        branch_norm=writer.norm,
        multiplier=writer.multiplier,
    )
    down_path = next((p for p in inside if same(flat(probe.recording.returned(p)), flat(writer.raw))), None)
    if down_path is None and (gated := _gated_per_channel(probe, inside, writer.raw)) is not None:
        down_path, gate_path = gated
        site = replace(site, channel_gate=inside[gate_path])
    if down_path is None:
        return _with_experts(writer, path, site)
    return _with_keys(probe, block, site, inside, down_path, read)


def _projections(probe: Probe, block: str, path: str) -> dict[str, nn.Module]:
    """Return the linear layers of an FFN that were called, by path, without those inside a wrapper such as LoRA's."""
    inside = {
        f"{path}.{n}": m
        for n, m in probe.hf.get_submodule(path).named_modules()
        if n
        and is_linear(m)
        and f"{path}.{n}" in probe.recording.calls
        and not (path == block and not n.startswith("fc"))
    }
    return {p: m for p, m in inside.items() if not any(p.startswith(f"{outer}.") for outer in inside)}


def _with_experts(writer: BlockWriter, path: str, site: FeedForwardSite) -> FeedForwardSite:
    """Add to the description the experts, or the reason why they cannot be read as memories."""
    probe, norm = writer.probe, writer.norm_path
    inner_norm = probe.norms[norm] if norm is not None and norm.startswith(f"{path}.") else None
    found = find_experts(probe, path, writer.raw, _coefficient_formula, inner_norm)
    if isinstance(found, str):
        return replace(site, activation="experts", memories_missing=f"its FFN is a mixture of experts, and {found}")
    return replace(site, activation="experts", experts=found)


def _with_keys(
    probe: Probe, block: str, site: FeedForwardSite, inside: dict[str, nn.Module], down_path: str, read: Tensor
) -> FeedForwardSite:
    """Add to the description the down-projection, and the projections that compute its input."""
    m = flat(probe.recording.given(down_path))
    assert m is not None
    readers = {
        p.rsplit(".", 1)[-1]: (q, flat(probe.recording.returned(p)))
        for p, q in inside.items()
        if same(flat(probe.recording.given(p)), flat(read))
    }
    up, gate, gate_first, activation = _coefficient_formula(probe, block, readers, m)
    return replace(
        site, down_proj=inside[down_path], up_proj=up, gate_proj=gate, gate_first=gate_first, activation=activation
    )


def _gated_per_channel(probe: Probe, inside: dict[str, nn.Module], raw: Tensor) -> tuple[str, str] | None:
    """Return two linear layers with sigmoid(second) * first equal to the FFN's output (RWKV), or None."""
    whole = raw.reshape(-1, raw.shape[-1])
    returned = [(p, flat(probe.recording.returned(p))) for p in inside]
    same_width = [(p, t) for p, t in returned if t is not None and t.shape == whole.shape]
    for path, t in same_width:
        for other, gate in same_width:
            if other != path and relative(torch.sigmoid(gate) * t, whole) <= probe.tolerance:
                return path, other
    return None


def _activations(probe: Probe, module_hint: str) -> dict[str, Any]:
    named = [v for f in _ACTIVATION_FIELDS if isinstance(v := getattr(probe.config, f, None), str)]
    known = ["gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "relu", "relu2"]
    found: dict[str, Any] = {name: ACT2FN[name] for name in [*named, *known] if name in ACT2FN}
    for path, part in probe.hf.get_submodule(module_hint).named_modules():
        # ACT2FN cannot give an activation that has parameters (xIELU) or that it does not contain (BloomGelu), so the
        # FFN's own activation module is tried too.
        if path and not list(part.children()) and re.search(r"(^|\.)(act|act_fn|activation_fn|gelu_impl)$", path):
            found.setdefault(type(part).__name__, part)
    return found


def _coefficient_formula(
    probe: Probe, path: str, readers: dict[str, tuple[nn.Module, Tensor | None]], m: Tensor
) -> tuple[nn.Module | None, nn.Module | None, bool, str]:
    """Find which projections give the down-projection's input `m`, and how: act(up), act(gate) * up, or neither.

    Returns the up-projection, the gate projection, whether the gate is the first half of a fused weight, and the name
    of the activation. Both projections are None if no formula fits. Value vectors and coefficients are then still
    available, because `m` itself is captured.
    """
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
        for name, act in _activations(probe, path).items():
            for up, gate, gate_first, acted, linear in forms:
                try:
                    output = act(acted)
                except TypeError:  # a module that needs a further argument is not a function of one projection's output
                    continue
                if relative(output if linear is None else output * linear, m) <= probe.tolerance:
                    return up, gate, gate_first, name
    return None, None, False, "unknown"
