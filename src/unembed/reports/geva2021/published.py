"""Numbers of the paper's figures and text, with how they are known. Places are shares of the depth of its 16 layers."""

from __future__ import annotations

from unembed.document.model import Reference
from unembed.reports.published import PRINTED, READ_OFF, SUMMARY, Origin

D_VOCAB = 267_744
"""Words of WikiLM."""


def _at(*layers: int) -> tuple[float, ...]:
    """Layers of the paper, counted from 1, as shares of the depth."""
    return tuple((layer - 1) / 15 for layer in layers)


COVERED = Reference("in a pattern, published", (0.65,), (0.8,))
"""Fig. 2: the top of the patterns' stack."""
PERTURBATION = (
    Reference("first, published", (-0.15,), (-0.1,), series=0),
    Reference("last, published", (-0.7, -0.2), (-0.65, -0.2), _at(1, 16), series=1),
    Reference("random, published", (-0.2,), (-0.15,), series=2),
)
"""Fig. 3."""
AGREEMENT = Reference(
    "published", (0.0, 0.0, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035), at=_at(1, 10, 11, 12, 13, 14, 15, 16), series=0
)
"""Fig. 4: close to zero in layers 1 to 10, then rising to 3.5 %; the layers between read off the figure."""
RANKS = ((10_000, 10_000, 0, 0), (15_000, 15_000, 2_000, 2_000), _at(1, 7, 14, 16))
"""Fig. 5: median ranks in layers 1 to 7 and 14 to 16."""
BY_PROBABILITY = Reference("published", (0.0, 0.95), at=(0.0, 1.0), series=0)
"""Fig. 6: from the lowest bin to the highest."""
ACTIVE = Reference("median, published", (0.4, 0.4, 0.1, 0.15, 0.15), (0.5, 0.5, 0.15, 0.2, 0.2), _at(1, 5, 10, 11, 16))
"""Fig. 7."""
ZERO = Reference("least, published", (0.68,))
"""Fig. 8."""
MATCH = Reference("published", (1 / 3, 0.95), at=_at(4, 16), series=0)
"""Fig. 9: a third in the bottom few layers, about 95 % in the last."""
PROBABILITY = Reference("median, published", (0.0, 0.0, 0.6, 0.6), (0.0, 0.0, 0.8, 0.8), _at(1, 7, 14, 16))
"""Fig. 10."""
RESIDUAL = Reference("residual alone, published", (0.6,), (0.85,), series=0)
"""Fig. 11."""


def ranks_for(d_vocab: int) -> Reference:
    """The ranks of Fig. 5 as shares of another vocabulary."""
    low, high, at = RANKS
    scale = d_vocab / D_VOCAB
    return Reference(
        "published, scaled to this vocabulary", tuple(v * scale for v in low), tuple(v * scale for v in high), at
    )


NOT_IN_PAPER = "The paper has no such figure."
ORIGINS = (
    Origin("patterns per key, keys with one", "3.6 on average, every key", "Sec. 3.2", SUMMARY),
    Origin("prefixes in a pattern", "65 to 80 %", "Sec. 3.2, Fig. 2", SUMMARY),
    Origin("layers of shallow and of semantic patterns", "1 to 9, and 10 to 16", "Sec. 3.2, Fig. 2", SUMMARY),
    Origin("change without a token", "first −10 to −15 %, random −15 to −20 %, last −70 to −20 %", "Fig. 3", READ_OFF),
    Origin("agreement rate", "close to zero in layers 1 to 10, then rising to 3.5 %", "Sec. 4.1, Fig. 4", SUMMARY),
    Origin("agreement rate, layers 11 to 15", "1.0, 1.5, 2.0, 2.5, 3.0 %", "Fig. 4", READ_OFF),
    Origin("agreement of a random token", "0.0004 %", "Sec. 4.1", SUMMARY),
    Origin("rank of the next token", "medians of 10,000 to 15,000 in layers 1 to 7, to 2,000 in 14 to 16", "Fig. 5",
           READ_OFF),
    Origin("agreement by probability", "from near 0 to about 0.95", "Fig. 6", READ_OFF),
    Origin("the 100 most predictive values", "97 in layers 11 to 16, 46 with an agreeing trigger", "Sec. 4.2", SUMMARY),
    Origin("active memories", "10 to 50 %, fewest in layer 10", "Sec. 5.1, Fig. 7", SUMMARY),
    Origin("active memories by layer", "40 to 50 % (1 to 5), 10 to 15 % (10), 15 to 20 % (11 to 16)", "Fig. 7",
           READ_OFF),
    Origin("zero agreement", "at least about 68 % in every layer", "Sec. 5.1, Fig. 8", SUMMARY),
    Origin("agreeing cases", "60 % stop words, 43 % prefixes of fewer than five tokens", "Sec. 5.1", SUMMARY),
    Origin("decided in the bottom layers", "roughly a third", "Sec. 5.2, Fig. 9", SUMMARY),
    Origin("residual equal to the prediction, layer 16", "about 95 %", "Fig. 9", READ_OFF),
    Origin("probability in the residual", "medians near 0 up to layer 7, 0.6 to 0.8 in 14 to 16", "Fig. 10", READ_OFF),
    Origin("output that follows the residual alone", "60 to 85 %", "Fig. 11", READ_OFF),
    Origin("compositions of the last layer", "66 of 100 distant, 34 related", "Sec. 5.2", SUMMARY),
    Origin("words of the model", "267,744", "released dictionary", PRINTED),
)  # fmt: skip
"""Each published value: its definition, its place in the paper, and its source."""
