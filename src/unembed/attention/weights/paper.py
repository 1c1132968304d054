"""The citation and wording that all analyses of circuits take from the paper they follow."""

from __future__ import annotations

from collections.abc import Callable

from unembed.analyses import Analysis, Cost, Needs
from unembed.document.model import Answer

SOURCE = "Elhage, Nanda, Olsson et al.: A Mathematical Framework for Transformer Circuits. 2021."
NO_NUMBERS = "The paper's picture is of its own model; no numbers of it are at hand."
NOT_IN_PAPER = "The paper has no such picture."
COPYING_HEADS = "10 of 12 heads"
"""Heads of the one-layer model that copy, as published."""
SAMPLE = "wikitext sample"
"""What the provenance of a page names where no corpus was given."""


def of_circuits(
    name: str,
    function: Callable[..., Answer],
    example: str,
    cost: Cost = Cost.SECONDS,
    *,
    model: str = "attn-2l",
) -> Analysis:
    """Declare an analysis of circuits; `unembed circuits` is put before the example."""
    return Analysis(
        f"circuits {name}",
        function,
        Needs.CIRCUITS,
        cost,
        example=f"unembed circuits {example}",
        model=model,
        source=SOURCE,
    )
