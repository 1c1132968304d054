"""Save results to safetensors files: tensors as such, and everything else as JSON in the header.

Reading a file does not execute code from it: the file names classes of this package, and the values of their fields.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unembed.errors import InvalidInput, Unsupported, reading_fault
from unembed.results.files import write_whole
from unembed.results.table import Table
from unembed.validation import as_path
from unembed.version import __version__

SCHEMA = "unembed.result/1"
"""The schema of result files; its number increases when the format changes."""
_MOVED = {
    "unembed.causality.pairs:PatchingPairs": "unembed.causality.patching:PatchingPairs",
    "unembed.causality.prompt_ablations:PromptAblations": "unembed.causality.ablation:PromptAblations",
    "unembed.causality.screening:Screening": "unembed.causality.estimated_effects:EstimatedEffects",
}
"""Former names of classes, which older files contain, and their current names."""


def save_result(result: object, path: str | os.PathLike[str]) -> None:
    """Write a result to a safetensors file, which `open_result` reads.

    Raises:
        Unsupported: the result contains a model, or another object that is not plain data.
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    about = {"schema": SCHEMA, "version": __version__, "result": json.dumps(_packed(result, tensors, type(result)))}
    write_whole(path, save(tensors, about))


def open_result(path: str | os.PathLike[str]) -> Any:
    """Read a result from a file that its method `save` wrote; returns an instance of the result's class.

    Raises:
        InvalidInput: the file is missing, or is not a result of this package and version.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(as_path(path), "pt") as file:
            about: Mapping[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InvalidInput(
            f"cannot read {path}", why=reading_fault(error), instead="Give a file written by a result's save method"
        ) from error
    if about.get("schema") != SCHEMA:
        raise InvalidInput(
            f"{path} is not a result",
            why="it was not written by a result's save method",
            instead="Open weights with unembed.load, tables with Table.from_parquet",
        )
    try:
        return _unpacked(json.loads(about["result"]), tensors)
    except (AttributeError, ImportError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"{path}, written by unembed {about.get('version')}",
            why=f"this version, {__version__}, does not have this kind of result ({error})",
            instead=f"Open it with unembed {about.get('version')}",
        ) from error


def _packed(value: Any, tensors: dict[str, Tensor], owner: type) -> Any:
    """Convert a value to JSON that records the types of sequences and objects.

    Tensors are put into `tensors`, and the JSON contains their names.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor) and value.is_complex():
        return {"complex": _packed(torch.view_as_real(value), tensors, owner)}
    if isinstance(value, np.ndarray) and value.dtype.kind == "U":
        return {"texts": value.tolist()}
    if isinstance(value, np.ndarray):
        return {"array": _packed(torch.from_numpy(np.ascontiguousarray(value)), tensors, owner)}
    if isinstance(value, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"named": _name_of(type(value)), "values": [_packed(one, tensors, owner) for one in value]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_packed(one, tensors, owner) for one in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_packed(k, tensors, owner), _packed(v, tensors, owner)] for k, v in value.items()]}
    kind = type(value)
    if is_dataclass(value) and kind.__module__.startswith("unembed."):
        if isinstance(value, Table):  # its columns, arrays or an Arrow table, become lists
            value = Table(value.title, {name: value[name] for name in value.column_names}, value.provenance)
        return {
            "class": _name_of(kind),
            "fields": {
                f.name: _packed(getattr(value, f.name), tensors, owner)
                for f in fields(value)
                if f.metadata.get("saved", True)
            },
        }
    raise Unsupported(
        f"saving a {owner.__name__}",
        why="it contains a live model" if kind is owner else f"it contains a {kind.__name__}, which is not plain data",
        instead="Save its table: .to_table().to_parquet(path)",
    )


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "complex" in value:
        return torch.view_as_complex(_unpacked(value["complex"], tensors))
    if "array" in value:
        return _unpacked(value["array"], tensors).numpy()
    if "texts" in value:
        return np.array(value["texts"], dtype=np.str_)
    if "dict" in value:
        return {_unpacked(k, tensors): _unpacked(v, tensors) for k, v in value["dict"]}
    if "named" in value:
        kind = _class_named(str(value["named"]))
        if kind is None or not issubclass(kind, tuple):
            raise TypeError(f"{value['named']} is not a named tuple of unembed")
        return kind(*(_unpacked(one, tensors) for one in value["values"]))
    if "class" in value:
        kind = _class_named(str(value["class"]))
        if kind is None or not is_dataclass(kind):
            raise TypeError(f"{value['class']} is not a class of results")
        return kind(**{name: _unpacked(one, tensors) for name, one in value["fields"].items()})
    ((name, items),) = value.items()
    return {"list": list, "tuple": tuple}[name](_unpacked(one, tensors) for one in items)


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class_named(name: str) -> type | None:
    """Return the class with a name that `_name_of` gives; None for one that is not in a module of this package."""
    module, _, name = _MOVED.get(name, name).partition(":")
    # Importing `__main__` modules would run programs.
    if not module.startswith("unembed.") or "__main__" in module:
        return None
    kind = getattr(importlib.import_module(module), name)
    return kind if isinstance(kind, type) else None
