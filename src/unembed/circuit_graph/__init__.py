"""The circuit of a behaviour: a graph of memories (FFN neurons) and heads whose contributions add up, and its tests.

The package is not named `circuits`, because `unembed.circuits` is about the QK and OV circuits of single heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.lazy import import_on_first_use

if TYPE_CHECKING:
    from unembed.circuit_graph.build import circuit as circuit
    from unembed.circuit_graph.cases import read_case as read_case
    from unembed.circuit_graph.flow_view import FlowView as FlowView
    from unembed.circuit_graph.graph import CircuitGraph as CircuitGraph
    from unembed.circuit_graph.removal_of_each import Removal as Removal
    from unembed.circuit_graph.tested_picture import changed as changed
    from unembed.circuit_graph.tested_picture import picture as picture
    from unembed.circuit_graph.tested_picture import prompt_picture as prompt_picture
else:
    __getattr__, __dir__, __all__ = import_on_first_use(
        __name__,
        {
            "build": "circuit",
            "cases": "read_case",
            "flow_view": "FlowView",
            "graph": "CircuitGraph",
            "tested_picture": "changed picture prompt_picture",
            "removal_of_each": "Removal",
        },
    )
