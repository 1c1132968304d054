"""The citation and the wording that all analyses of attention circuits share."""

from __future__ import annotations

from collections.abc import Callable

from unembed.analyses import Analysis, Cost, Needs
from unembed.document.model import Answer

SOURCE = "Elhage, Nanda, Olsson et al.: A Mathematical Framework for Transformer Circuits. 2021."
NO_NUMBERS = "The paper's picture is of its own model; no numbers of it are at hand."
NOT_IN_PAPER = "The paper has no such picture."
COPYING_HEADS = "10 of 12 heads"
"""How many heads of the one-layer model copy, according to the paper."""
SAMPLE = "wikitext sample"
"""The corpus that a page's provenance names if the user gave none."""


def of_circuits(
    name: str,
    function: Callable[..., Answer],
    example: str,
    cost: Cost = Cost.SECONDS,
    *,
    model: str = "attn-2l",
) -> Analysis:
    """Describe an analysis of circuits as a command; `example` is a command line without `unembed circuits`."""
    return Analysis(
        f"circuits {name}",
        function,
        Needs.CIRCUITS,
        cost,
        example=f"unembed circuits {example}",
        model=model,
        source=SOURCE,
    )
