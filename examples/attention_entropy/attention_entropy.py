"""How evenly each head spreads its attention over a prompt: an analysis that another package adds to unembed.

pip install ./examples/attention_entropy
unembed circuits entropy "The first month of the year is"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unembed.analyses import Analysis, Cost, Needs
from unembed.options import Prompt, Top
from unembed.results import Table

if TYPE_CHECKING:
    from unembed import LanguageModel


def entropy(lm: LanguageModel, prompt: Prompt, *, top: Top = 20) -> Table:
    """List the heads that spread their attention over the fewest tokens, by its entropy in bits.

    The entropy is the mean over the positions of the prompt: 0 where a head attends to one token alone.
    """
    patterns = lm.run(prompt, capture=("pattern",))["pattern"][:, 0]  # layer, head, destination, source
    bits = -(patterns * patterns.clamp_min(1e-30).log2()).sum(-1).mean(-1)
    heads = sorted(
        (float(bits[layer, head]), layer, head) for layer in range(len(bits)) for head in range(len(bits[0]))
    )
    columns = {
        "head": [f"L{layer}H{head}" for _, layer, head in heads[:top]],
        "entropy": [found for found, *_ in heads[:top]],
    }
    return Table(f"Entropy of attention in {lm.name}, bits", columns, lm.provenance())


ANALYSIS = Analysis(
    "circuits entropy",
    entropy,
    Needs.MODEL,
    Cost.SECONDS,
    example='unembed circuits entropy "The first month of the year is"',
    model="attn-2l",
)
