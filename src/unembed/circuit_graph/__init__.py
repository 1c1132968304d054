"""A behaviour as a circuit of memories and heads: a graph whose numbers add up, and a test by ablation.

The package is not named `circuits`, because `unembed.circuits` reads single heads as circuits (QK and OV).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.circuit_graph.build import circuit as circuit
    from unembed.circuit_graph.graph import CircuitGraph as CircuitGraph
else:
    __getattr__, __dir__, __all__ = import_on_first_use(__name__, {"build": "circuit", "graph": "CircuitGraph"})
