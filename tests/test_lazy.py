"""The public names of a package are those that its type-checking imports declare, imported on first use."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

LIGHT = ("attention", "concepts", "concepts.annotation", "index", "models", "stream", "trace", "training")


def declared(package: str) -> dict[str, str]:
    """The module of each name that is imported for type checkers only."""
    source = importlib.import_module(f"unembed.{package}").__file__
    assert source is not None
    (block,) = (node for node in ast.parse(Path(source).read_text()).body if isinstance(node, ast.If))
    return {node.names[0].name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("package", [*LIGHT, "reports"])
def test_declared_names_are_found_and_none_has_the_name_of_a_submodule(package: str) -> None:
    module, names = importlib.import_module(f"unembed.{package}"), declared(package)
    assert names
    for name, home in names.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)
        assert importlib.util.find_spec(f"unembed.{package}.{name}") is None
    with pytest.raises(AttributeError, match=rf"module 'unembed\.{package}' has no attribute 'nothing'"):
        _ = module.nothing


def test_importing_the_packages_does_not_import_torch() -> None:
    imports = "; ".join(f"import unembed.{package}" for package in LIGHT)
    code = f"{imports}; import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
