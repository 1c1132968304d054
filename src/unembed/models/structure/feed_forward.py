"""The FFN of one block, found on the tensors of a dry run: keys, gates, values, and norms and factors around them."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from unembed.models.structure.find_experts import find_experts
from unembed.models.structure.probe import Probe, flat, holds_weights, is_linear, relative, same
from unembed.models.structure.structure import FeedForwardSite

_ACTIVATION_FIELDS = ("hidden_activation", "hidden_act", "activation_function", "activation", "act_fn")


_NAMES = re.compile(r"mlp|ffn|feed_?forward|moe|experts")
_CLASSES = re.compile(r"(mlp|moe|ffn|feedforward|experts|moeblock|sparseblock)$")


def ffn_path_of(probe: Probe, path: str, module: nn.Module) -> str | None:
    """The path of a block's FFN: a module, the block itself (OPT), or None where there is no FFN."""
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


def feed_forward_site(
    probe: Probe,
    path: str,
    ffn_path: str,
    raw: Tensor,
    x: Tensor,
    mid: Tensor,
    branch: str | None,
    multiplier: float,
    output: nn.Module,
) -> tuple[FeedForwardSite, bool]:
    """The FFN, and whether it reads the block's own input (parallel to attention).

    Args:
        probe: the model and its dry run.
        raw: the output of the FFN.
        x: what entered the block.
        mid: the stream after attention.
        branch: the path of the norm on the FFN's output, if there is one.
        multiplier: factor of its output.
        output: the module whose return value is added to the stream.
    """
    module = probe.hf.get_submodule(ffn_path)
    inside = {
        f"{ffn_path}.{n}": m
        for n, m in module.named_modules()
        if n
        and is_linear(m)
        and f"{ffn_path}.{n}" in probe.recording.calls
        and not (ffn_path == path and not n.startswith("fc"))
    }
    inside = {p: m for p, m in inside.items() if not any(p.startswith(f"{outer}.") for outer in inside)}
    down_path = next((p for p in inside if same(flat(probe.recording.returned(p)), flat(raw))), None)
    channel_gate = None
    if down_path is None and (gated := _gated_per_channel(probe, inside, raw)) is not None:
        down_path, gate_path = gated
        channel_gate = inside[gate_path]
    read = probe.recording.given(f"{path}.fc1" if ffn_path == path else ffn_path)
    assert read is not None
    read = read.view(1, -1, read.shape[-1])
    norm_path = probe.norm_returning(read, path + ".")
    entered = probe.recording.given(norm_path) if norm_path else read
    assert entered is not None
    parallel = same(entered, x)
    if not parallel and relative(entered, mid) > 10 * probe.tolerance:
        raise probe.fail(f"block {path}", "its FFN reads neither the block's input nor the stream after attention")
    entry = probe.norms[norm_path] if norm_path else (module if ffn_path != path else module.get_submodule("fc1"))
    site: dict[str, Any] = dict(
        module=module,
        entry=entry,
        output=output,
        pre_norm=probe.entry_norm(norm_path) if norm_path else None,
        branch_norm=probe.norm(branch) if branch else None,
        multiplier=multiplier,
    )
    if down_path is None:
        inner = branch is not None and branch.startswith(f"{ffn_path}.")
        inner_norm = probe.norms[branch] if branch is not None and inner else None
        found = find_experts(probe, ffn_path, raw, _coefficient_formula, inner_norm)
        experts, missing = (
            (None, f"its FFN is a mixture of experts, and {found}") if isinstance(found, str) else (found, "")
        )
        none: dict[str, Any] = dict(down_proj=None, up_proj=None, gate_proj=None, gate_first=False)
        return FeedForwardSite(
            activation="experts", experts=experts, memories_missing=missing, **none, **site
        ), parallel
    m = flat(probe.recording.given(down_path))
    assert m is not None
    readers = {
        p.rsplit(".", 1)[-1]: (q, flat(probe.recording.returned(p)))
        for p, q in inside.items()
        if same(flat(probe.recording.given(p)), flat(read))
    }
    up, gate, gate_first, activation = _coefficient_formula(probe, path, readers, m)
    return FeedForwardSite(
        down_proj=inside[down_path],
        up_proj=up,
        gate_proj=gate,
        gate_first=gate_first,
        activation=activation,
        channel_gate=channel_gate,
        **site,
    ), parallel


def _gated_per_channel(probe: Probe, inside: dict[str, nn.Module], raw: Tensor) -> tuple[str, str] | None:
    """The projections whose product sigmoid(second) * first is what the FFN computed (RWKV), if there are such."""
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
        # Activations with parameters (xIELU) and private ones (BloomGelu) are used as they are.
        if path and not list(part.children()) and re.search(r"(^|\.)(act|act_fn|activation_fn|gelu_impl)$", path):
            found.setdefault(type(part).__name__, part)
    return found


def _coefficient_formula(
    probe: Probe, path: str, readers: dict[str, tuple[nn.Module, Tensor | None]], m: Tensor
) -> tuple[nn.Module | None, nn.Module | None, bool, str]:
    """Which readers make the coefficient, in which order, through which activation; None where no formula fits.

    Values and coefficients do not need the formula: the coefficient is what the down-projection receives.
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
                except TypeError:  # BloomGelu and others take a residual as well: not a function of the key alone
                    continue
                if relative(output if linear is None else output * linear, m) <= probe.tolerance:
                    return up, gate, gate_first, name
    return None, None, False, "unknown"
