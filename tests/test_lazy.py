"""The public names of a package are in a table, imported on first use, and declared to type checkers by imports."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import unembed

ROOT = Path(unembed.__file__).parent
LAZY = sorted(
    ".".join(path.parent.relative_to(ROOT.parent).parts)
    for path in ROOT.rglob("__init__.py")
    if "import_on_first_use(" in path.read_text(encoding="utf-8")
)
WHOLE = ("annotation", "early_exit", "steering", "toxicity")
"""The modules that are public as a whole."""


def declared(package: str) -> dict[str, str]:
    """The module of each name that is imported for type checkers only."""
    source = importlib.import_module(package).__file__
    assert source is not None
    blocks = (node for node in ast.parse(Path(source).read_text("utf-8")).body if isinstance(node, ast.If))
    imports = (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom))
    return {node.names[0].name: str(node.module) for node in imports}


def test_many_packages_are_seen() -> None:
    assert len(LAZY) > 12 and "unembed" in LAZY


@pytest.mark.parametrize("package", LAZY)
def test_the_table_of_names_is_what_type_checkers_see(package: str) -> None:
    module, names = importlib.import_module(package), declared(package)
    assert module.__all__ == dir(module) and set(module.__all__) <= set(names)
    assert set(module.__all__) == set(names) or package in ("unembed", *(f"unembed.{name}" for name in WHOLE))
    for name, home in names.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)
        assert (importlib.util.find_spec(f"{package}.{name}") is None) == (home != "unembed")
    with pytest.raises(AttributeError, match=rf"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_module_is_imported_as_it_is_written_and_shows_its_names_only(name: str) -> None:
    code = f"import unembed.{name} as found; import unembed; print(found is unembed.{name}, *dir(found))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    same, *names = done.stdout.split()
    module = importlib.import_module(f"unembed.{name}")
    assert same == "True" and names == module.__all__
    assert not set(names) & {"torch", "annotations", "Any", "Tensor"}
    own = [getattr(module, one) for one in names]
    assert all(getattr(one, "__module__", "unembed").startswith("unembed") for one in own)


def test_importing_the_packages_does_not_import_torch() -> None:
    imports = "; ".join(f"import {package}" for package in LAZY if package != "unembed.reports")
    code = f"{imports}; import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
