"""Find the transformers model inside a compiled model, a PEFT model, an nnsight model or a TransformerBridge."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

from torch import nn
from transformers import PreTrainedModel

_INNER = ("_orig_mod", "_module", "original_model")
"""Attributes that hold the transformers model in a compiled model, an nnsight model and a TransformerBridge."""
_BRIDGED = "_original_component"
"""Attribute of each module of a TransformerBridge that holds the original module that it replaces."""
_WATCHED = "__nnsight__"
"""Attribute that nnsight sets on each module whose `forward` it replaces."""


def unwrapped(model: Any) -> Any:
    """Return the transformers model inside a wrapper of another library; anything else is returned unchanged.

    A TransformerBridge inserts its own modules into the model, and nnsight replaces the `forward` of each module. In
    these cases a copy without such changes is returned. It shares its weights with the given model, which is not
    changed.
    """
    while not isinstance(model, PreTrainedModel):
        inner = [held for name in _INNER if isinstance(held := getattr(model, name, None), nn.Module)]
        if inner:
            model = inner[0]
        elif callable(base := getattr(model, "get_base_model", None)):
            model = base()
        else:
            return model
    if any(name.endswith(_BRIDGED) or _WATCHED in vars(part) for name, part in model.named_modules()):
        return _bare(model, {})
    return model


def _bare(module: nn.Module, done: dict[int, nn.Module]) -> nn.Module:
    """Return a copy of a module and its children, with the same tensors, as they were before they were wrapped.

    Modules that a TransformerBridge inserted are replaced by the original ones, and a `forward` that nnsight set is
    removed.
    """
    while (original := module._modules.get(_BRIDGED)) is not None:
        module = original
    if id(module) not in done:
        made = done[id(module)] = copy.copy(module)
        if vars(made).pop(_WATCHED, None) is not None:
            vars(made).pop("forward", None)
        made._forward_hooks = OrderedDict(module._forward_hooks)
        made._forward_pre_hooks = OrderedDict(module._forward_pre_hooks)
        made._modules = {name: None if part is None else _bare(part, done) for name, part in module._modules.items()}
    return done[id(module)]
