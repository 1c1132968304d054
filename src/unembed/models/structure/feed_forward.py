"""The FFN of one block, found on the tensors of a dry run: keys, gates, values and what stands around them."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from unembed.models.structure.attention_layout import relative
from unembed.models.structure.probe import Look, called_linears, flat, is_linear, same
from unembed.models.structure.structure import FeedForwardSite

_ACTIVATION_FIELDS = ("hidden_activation", "hidden_act", "activation_function", "activation", "act_fn")


def ffn_path_of(look: Look, path: str, module: nn.Module, attention_path: str) -> str | None:
    """The path of a block's FFN: a module, the block itself (OPT), or None for an attention-only block."""
    children = [
        name
        for name, _ in module.named_children()
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


def ffn_output(look: Look, path: str, ffn_path: str, block_output: Tensor) -> Tensor:
    """What the FFN computes before a norm or multiplier of its branch."""
    returned = look.recording.returned(f"{path}.fc2" if ffn_path == path else ffn_path)
    if same(returned, block_output):
        # Bloom and MPT add the stream inside the FFN module; what the last projection returned is the update.
        linears = called_linears(look, ffn_path, look.hf.get_submodule(ffn_path))
        returned = look.recording.returned(linears[-1][0]) if linears else None
    if returned is None:
        raise look.fail(f"block {path}", "its FFN returns no tensor")
    return returned.view(1, -1, returned.shape[-1])


def feed_forward_site(
    look: Look,
    path: str,
    ffn_path: str,
    raw: Tensor | None,
    x: Tensor,
    mid: Tensor,
    branch: str | None,
    multiplier: float,
) -> tuple[FeedForwardSite, bool]:
    """The FFN, and whether it reads the block's own input (parallel to attention).

    Args:
        look: the model and its dry run.
        path: the block.
        ffn_path: its FFN.
        raw: what the FFN computed.
        x: what entered the block.
        mid: the stream after attention.
        branch: the path of the norm on the FFN's output, if there is one.
        multiplier: what its output is multiplied by.
    """
    module = look.hf.get_submodule(ffn_path)
    inside = {
        f"{ffn_path}.{n}": m
        for n, m in module.named_modules()
        if n
        and is_linear(m)
        and f"{ffn_path}.{n}" in look.recording.calls
        and not (ffn_path == path and not n.startswith("fc"))
    }
    down_path = next((p for p in inside if same(flat(look.recording.returned(p)), flat(raw))), None)
    read = look.recording.given(f"{path}.fc1" if ffn_path == path else ffn_path)
    assert read is not None
    read = read.view(1, -1, read.shape[-1])
    norm_path = look.norm_returning(read, path + ".")
    entered = look.recording.given(norm_path) if norm_path else read
    assert entered is not None
    parallel = same(entered, x)
    if not parallel and relative(entered, mid) > 10 * look.tolerance:
        raise look.fail(f"block {path}", "its FFN reads neither the block's input nor the stream after attention")
    entry = look.norms[norm_path] if norm_path else (module if ffn_path != path else module.get_submodule("fc1"))
    site: dict[str, Any] = dict(
        module=module,
        entry=entry,
        pre_norm=look.norm(norm_path) if norm_path else None,
        branch_norm=look.norm(branch) if branch else None,
        multiplier=multiplier,
    )
    if down_path is None:
        return FeedForwardSite(
            down_proj=None, up_proj=None, gate_proj=None, gate_first=False, activation="experts", **site
        ), parallel
    m = flat(look.recording.given(down_path))
    assert m is not None
    readers = {
        p.rsplit(".", 1)[-1]: (q, flat(look.recording.returned(p)))
        for p, q in inside.items()
        if same(flat(look.recording.given(p)), flat(read))
    }
    up, gate, gate_first, activation = _coefficient_formula(look, path, readers, m)
    return FeedForwardSite(
        down_proj=inside[down_path],
        up_proj=up,
        gate_proj=gate,
        gate_first=gate_first,
        activation=activation,
        **site,
    ), parallel


def _activations(look: Look, module_hint: str) -> dict[str, Any]:
    named = [v for f in _ACTIVATION_FIELDS if isinstance(v := getattr(look.config, f, None), str)]
    known = ["gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "relu", "relu2"]
    found: dict[str, Any] = {name: ACT2FN[name] for name in [*named, *known] if name in ACT2FN}
    for path, part in look.hf.get_submodule(module_hint).named_modules():
        # Activations with parameters of their own (xIELU) and private ones (BloomGelu) are used as they stand.
        if path and not list(part.children()) and re.search(r"(^|\.)(act|act_fn|activation_fn|gelu_impl)$", path):
            found.setdefault(type(part).__name__, part)
    return found


def _coefficient_formula(
    look: Look, path: str, readers: dict[str, tuple[nn.Module, Tensor | None]], m: Tensor
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
