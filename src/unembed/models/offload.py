"""Read parameters wherever they are: in their module, or where accelerate stores them until the module runs.

A model that does not fit on its device is opened with a `device_map` that leaves layers in main memory or on disk.
Between calls, the parameters of such a layer are on the `meta` device, which stores shapes without data. The module's
hook knows where the data are and loads them for each call, so a forward pass needs nothing from this module, but
reading a weight does. A weight that is loaded here is a copy on the device where the module runs. It exists as long as
the caller has a reference, and changing it does not change the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from unembed.errors import Unsupported


def parameter(module: nn.Module, name: str = "weight") -> Tensor | None:
    """Return a module's own tensor of this name, loaded if it is offloaded; None if the module has no such tensor.

    Raises:
        Unsupported: it is on the meta device, and the module has no hook that could load it.
    """
    found = getattr(module, name, None)
    if not isinstance(found, Tensor):
        return None
    if not found.is_meta:
        return found
    hook = _offloading(module)
    return hook.weights_map[name].to(hook.execution_device, found.dtype)


def own(module: nn.Module, name: str = "weight") -> Tensor:
    """Return a module's own tensor of this name, detached, and loaded if it is offloaded. The tensor must exist."""
    found = parameter(module, name)
    assert found is not None
    return found.detach()


def is_readable(module: nn.Module) -> bool:
    """Tell whether all of a module's own parameters are in memory or can be loaded for this module alone."""
    try:
        return all(parameter(module, name) is not None for name, _ in module.named_parameters(recurse=False))
    except Unsupported:
        return False


def device_of(module: nn.Module) -> torch.device | None:
    """Return the device on which a module computes, that of its first parameter; None if it has no parameters.

    Raises:
        Unsupported: the parameter is on the meta device, and its module has no hook that could load it.
    """
    for part in module.modules():
        for first in part.parameters(recurse=False):
            return torch.device(_offloading(part).execution_device) if first.is_meta else first.device
    return None


def is_offloaded(hf: PreTrainedModel) -> bool:
    """Tell whether any parameter is stored outside its module, in main memory or on disk."""
    return any(each.is_meta for each in hf.parameters())


def parameter_names(hf: PreTrainedModel) -> list[str]:
    """Return the names of a model's parameters, as `named_parameters` does: shared parameters appear once.

    Offloading separates shared parameters. Two parameters that the model declares as shared therefore count as one if
    they are equal.
    """
    declared: dict[str, str] = getattr(hf, "all_tied_weights_keys", None) or {}
    given: dict[int, nn.Parameter] = {}
    first: dict[str, str] = {}
    names = []
    for path, each in hf.named_parameters(remove_duplicate=False):
        if id(each) in given:
            continue
        given[id(each)] = each
        source = declared.get(path, path)
        if source in first and _is_parted(hf, first[source], path):
            continue
        first.setdefault(source, path)
        names.append(path)
    return names


def parameter_at(hf: PreTrainedModel, path: str) -> Tensor:
    """Return the parameter with this name, detached, and loaded if it is offloaded."""
    within, _, name = path.rpartition(".")
    return own(hf.get_submodule(within), name)


def _is_parted(hf: PreTrainedModel, one: str, other: str) -> bool:
    a, b = hf.get_parameter(one), hf.get_parameter(other)
    if not (a.is_meta or b.is_meta or a.device != b.device) or a.shape != b.shape:
        return False
    a = parameter_at(hf, one)
    return torch.equal(a, parameter_at(hf, other).to(a.device))


def _offloading(module: nn.Module) -> Any:
    for hook in _flat(getattr(module, "_hf_hook", None)):
        if getattr(hook, "offload", False) and getattr(hook, "weights_map", None) is not None:
            return hook
    raise Unsupported(
        f"the weights of {type(module).__name__}",
        why="they are on the meta device, and this module has no hook of accelerate that could load them",
        instead="Open the model with device_map=, without preload_module_classes",
    )


def _flat(hook: Any) -> Iterator[Any]:
    """Yield a hook, and the hooks that accelerate has combined into it."""
    if hook is not None:
        yield hook
    for inner in getattr(hook, "hooks", ()):
        yield from _flat(inner)
