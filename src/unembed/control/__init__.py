"""Controlling generation with memories (FFN neurons): steering, suppressing toxic text, and early exit.

The effect of turning memories on or off, and the layers that a token does not need. Edits are applied by
`unembed.stream`; `unembed.memories` reads what a memory promotes. Source: Geva et al. 2022, section 6.

Public names: the modules `steering`, `toxicity`, `early_exit`, imported on first use.
"""

from __future__ import annotations

import importlib
from types import ModuleType

_MODULES = ("steering", "toxicity", "early_exit")


def __getattr__(name: str) -> ModuleType:
    """Import one of the package's modules on first use."""
    if name in _MODULES:
        return importlib.import_module(f"unembed.control.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
