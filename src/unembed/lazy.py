"""Import the public names of a package on first use, so that importing the package stays fast."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def import_on_first_use(
    package: str, homes: Mapping[str, str], modules: str = "", offered: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package.

    Type checkers do not run this function, so the package also imports its names under `if TYPE_CHECKING`;
    `tests/test_lazy.py` compares the two lists. No name may equal the name of a submodule, because Python would find
    the submodule first.

    Args:
        package: the `__name__` of the package.
        homes: maps the name of a module (relative to the package, or beginning with `unembed.`) to its public names,
            separated by spaces.
        modules: submodules that are public themselves, separated by spaces.
        offered: the names that tab completion offers, separated by spaces; None for all.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    public = sorted([*home_of, *modules.split()] if offered is None else offered.split())

    def get(name: str) -> Any:
        if name in home_of:
            home = home_of[name]
            module = importlib.import_module(home if home.startswith("unembed.") else f"{package}.{home}")
            value = getattr(module, name)
        elif name in modules.split():
            value = importlib.import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: public, public


def offers(names: str) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that restricts tab completion to these names, separated by spaces.

    Public attributes that are not among these names are for use inside this package, and may change. `docs/python.md`
    lists the names that tab completion offers.
    """
    offered = sorted(names.split())

    def decorate(cls: type[T]) -> type[T]:
        cls.__dir__ = lambda self: offered
        return cls

    return decorate
