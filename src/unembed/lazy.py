"""Public names of a package that are imported on first use, so that importing the package stays light."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def declared_names(package: str) -> dict[str, str]:
    """The module of each name that a package imports under `if TYPE_CHECKING`, read from its source.

    No name may be that of a submodule, which Python would find first.
    """
    spec = sys.modules[package].__spec__
    source = spec.loader.get_source(package)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname: str(node.module) for node in imports for alias in node.names if alias.asname}


def import_on_first_use(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package: imports what `declared_names` finds.

    Args:
        package: its `__name__`.
    """
    homes = declared_names(package)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name])
        if not hasattr(module, name):
            importlib.import_module(f"{homes[name]}.{name}")  # a submodule
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return get
