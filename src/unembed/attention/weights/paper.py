"""What pages say of the paper that the analyses of circuits follow; its models are not public."""

SOURCE = "Elhage, Nanda, Olsson et al.: A Mathematical Framework for Transformer Circuits. 2021."
NO_NUMBERS = "The paper's picture is of its own model; no numbers of it are at hand."
NOT_IN_PAPER = "The paper has no such picture."
COPYING_HEADS = "10 of 12 heads"
"""Heads of the one-layer model that copy, as published."""
SAMPLE = "wikitext sample"
"""What the provenance of a page names where no corpus was given."""
