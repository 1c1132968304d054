"""Import the public names of a package on first use, so that importing the package stays fast."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def import_on_first_use(
    package: str, offered: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package.

    The package lists its public names once, for type checkers: under `if TYPE_CHECKING`, each on a line of its own,
    such as `from unembed.stream.run import run as run`. This function reads these lines from the source of the package.
    No name may equal the name of a submodule, because Python would find the submodule first.

    Args:
        package: the `__name__` of the package.
        offered: the names that tab completion offers, separated by spaces; None for all.
    """
    module: Any = sys.modules[package]
    source: str = module.__spec__.loader.get_source(package)
    imports = re.findall(r"^    from (\S+) import (\w+) as \2$", source, re.MULTILINE)
    home_of = {name: home for home, name in imports}
    public = sorted(home_of if offered is None else offered.split())

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = home_of[name]
        is_module = home == package
        value = importlib.import_module(f"{home}.{name}") if is_module else getattr(importlib.import_module(home), name)
        setattr(module, name, value)
        return value

    return get, lambda: public, public


def offers(names: str) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that restricts tab completion to these names, separated by spaces.

    Other attributes without an underscore are for use inside this package, and may change. `docs/python.md` lists the
    names that are offered.
    """
    offered = sorted(names.split())

    def decorate(cls: type[T]) -> type[T]:
        cls.__dir__ = lambda self: offered
        return cls

    return decorate
