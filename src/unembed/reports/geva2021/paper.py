"""Facts about WikiLM, the model of the paper, for comparison with the model of the report."""

from __future__ import annotations

N_LAYERS = 16
FIRST_UPPER = 10
"""WikiLM's first "upper layer" (counted from 0), in which value vectors begin to predict the tokens after triggers."""
D_VOCAB = 267_744
"""Number of words in WikiLM's vocabulary."""
N_TOKENS = "103 million"
"""Number of tokens in WikiText-103's training text, which the paper searches for triggers."""
NO_FIGURE = "The paper has no such figure."


def at(*layers: int) -> tuple[float, ...]:
    """Return the relative depth (0 to 1) of layers of WikiLM, which the paper counts from 1."""
    return tuple((layer - 1) / (N_LAYERS - 1) for layer in layers)


def first_upper(n_layers: int) -> int:
    """Return the index of the first "upper layer": at the same relative depth as layer 11 of 16 in the paper."""
    return min(max(1, round(FIRST_UPPER * n_layers / N_LAYERS)), n_layers - 1) if n_layers > 1 else 0
