"""Changing what is said, and when to stop: steering by memories, suppressing toxic text, leaving the layers early.

The room answers "what happens if these memories are turned on or off?" and "which layers were not needed?". How an edit
is made is left to `unembed.stream`, what a memory means to `unembed.memories`. Source: Geva et al. 2022, section 6.

Public names: the modules `steering`, `toxicity`, `early_exit`, imported on first use.
"""

from __future__ import annotations

import importlib
from types import ModuleType

_MODULES = ("steering", "toxicity", "early_exit")


def __getattr__(name: str) -> ModuleType:
    """Import one of the room's modules when it is first asked for."""
    if name in _MODULES:
        return importlib.import_module(f"unembed.control.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
