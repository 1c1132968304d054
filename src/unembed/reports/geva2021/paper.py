"""The paper's model, WikiLM, with which layers and vocabularies are compared."""

from __future__ import annotations

N_LAYERS = 16
FIRST_UPPER = 10
"""The first of its layers (from 0) in which values agree with their keys' triggers."""
N_MEMORIES = 4096
"""Of each of its layers."""
D_VOCAB = 267_744
"""Its words."""
NO_FIGURE = "The paper has no such figure."


def at(*layers: int) -> tuple[float, ...]:
    """Return the paper's layers, counted from 1, as shares of the depth."""
    return tuple((layer - 1) / (N_LAYERS - 1) for layer in layers)


def first_upper(n_layers: int) -> int:
    """Return the first of the "upper layers": the layer at the relative depth of the paper's eleventh of sixteen."""
    return min(max(1, round(FIRST_UPPER * n_layers / N_LAYERS)), n_layers - 1) if n_layers > 1 else 0
