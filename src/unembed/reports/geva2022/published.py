"""Numbers as printed in the paper. Shares are fractions, not percent."""

from __future__ import annotations

from unembed.document.model import Reference

GPT2_VOCAB = 50_257
"""Number of tokens in the vocabulary of GPT2."""
COVERAGE = {
    "sub-updates": {"gpt2": 0.367, "wikilm": 0.551},
    "random vectors": {"gpt2": 0.16, "wikilm": 0.227},
    "updates": {"gpt2": 0.118, "wikilm": 0.197},
}
"""Tab. 2: share of the top 30 tokens in a concept."""
COVERAGE_WITH_STOP_WORDS = {
    "sub-updates": {"gpt2": 0.37, "wikilm": 0.551},
    "updates": {"gpt2": 0.46, "wikilm": 0.394},
}
"""Tab. 2, rows "+ stopwords"."""
EXAMPLES = 2000
"""Sec. 5.1: number of prefixes in which events are counted."""
EVENTS = {"saturation": {"gpt2": 1579, "wikilm": 1184}, "elimination": {"gpt2": 1996, "wikilm": 1909}}
"""Sec. 5.1: number of events of each kind in these prefixes."""
SATURATION_MAX = {"gpt2": 8.5, "wikilm": 1.2}
"""Tab. 4: mean over saturation events of the largest score among the 10 dominant sub-updates."""
SATURATION = {
    "wikilm": (6.70, 5.25, 13.74, 3.13, 1.02, 1.07, 1.86, 2.60, 2.96, 3.78, 4.74, 7.45, 10.79, 9.88, 9.81, 15.22),
    "gpt2": (
        *(2.21, 0.77, 1.06, 0.74, 0.85, 0.83, 0.83, 0.72, 0.93, 0.99, 1.16, 1.32, 1.24, 1.62, 2.37, 2.72, 2.99, 3.80),
        *(4.15, 5.21, 5.67, 9.31, 14.52, 34.15),
    ),
}
"""Tab. 9 and 10: percent of 10,000 examples by layer (WikiLM 16 layers, GPT2 medium 24, whose row sums to 100.16)."""
CONTRIBUTION = 0.05
"""Fig. 6: the ten largest of 4,096 sub-updates typically make up about 5 % of the sum of |m| |v|."""
EXTREME = {"GPT2": 10.0, "WikiLM": 5.0}
"""Sec. 5.2: absolute score above which a sub-update is extreme."""
EXTREME_SHARE = {"gpt2": 0.017, "wikilm": 0.011}
"""Sec. 5.2: share of all value vectors that lie in the frequently active clusters of extreme sub-updates."""

FEWEST = 20
"""Smallest number of events, or of sub-updates, that is judged."""
AT_LEAST = 0.1
"""Smallest score that matters: a change of a logit by 0.1 multiplies the odds of the token by about 1.1 (Eq. 2). If the
model has a final norm, this minimum is compared with scores to which the norm has been applied."""

NO_VALUES = "The figure's values are not in the text at hand."
NOT_IN_PAPER = "The paper has no such figure."


def saturation_lines() -> tuple[Reference, ...]:
    """Return the shares in Tab. 9 and 10 as lines for figures, by relative depth (0: first layer, 1: last layer)."""
    names = {"wikilm": "WikiLM (published)", "gpt2": "GPT2 medium (published)"}
    return tuple(
        Reference(names[model], tuple(s / 100 for s in rows), at=tuple(i / (len(rows) - 1) for i in range(len(rows))))
        for model, rows in SATURATION.items()
    )


def for_model(n_layers: int) -> str | None:
    """Return which of the paper's two models has this number of layers ("wikilm" or "gpt2"); None if neither."""
    return {16: "wikilm", 24: "gpt2"}.get(n_layers)


CONTRADICTION = (
    "The paper counts 1,579 saturations before the last layer in 2,000 examples of GPT2; its Tab. 10 leaves 65.9 % of "
    "the examples before the last layer, 1,317 of 2,000. Both cannot be shares of the same examples, and the text at "
    "hand does not state what differs."
)
