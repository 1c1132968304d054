"""Numbers of the paper, as printed. Shares are shares here, not percent; None where no confirmed number is at hand."""

from __future__ import annotations

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
EVENTS = {"saturation": {"gpt2": 1579, "wikilm": 1184}, "elimination": {"gpt2": 1996, "wikilm": 1909}}
"""Sec. 5.1: events in 2,000 examples."""
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
"""Fig. 6: the top 10 of 4,096 typically make up about 5 % of the sum."""
EXTREME_SHARE = {"gpt2": 0.017, "wikilm": 0.011}
"""Sec. 5.2: share of value vectors that the extreme clusters cover."""
EXTREME_THRESHOLD = {"gpt2": 10.0, "wikilm": 5.0}


def for_model(n_layers: int) -> str | None:
    """Which of the paper's two models a model's depth matches, for tables by layer."""
    return {16: "wikilm", 24: "gpt2"}.get(n_layers)


PRINTED, SUMMARY, READ_OFF = (
    "printed in the paper's text or tables",
    "a third party's summary of the paper, not checked against it",
    "read off a figure, by us or others",
)
ORIGINS: tuple[tuple[str, str, str, str], ...] = (
    ("share of top tokens in a concept", "36.7, 16, 11.8 % (GPT2); 55.1, 22.7, 19.7 % (WikiLM)", "Tab. 2", PRINTED),
    ("the same with stop words", "37, 46 % (GPT2); 55.1, 39.4 % (WikiLM)", "Tab. 2", PRINTED),
    ("share in a concept, by layer", "20 to 65 % (GPT2), 40 to 70 % (WikiLM)", "Fig. 2", READ_OFF),
    ("saturations, eliminations", "1,579, 1,996 (GPT2); 1,184, 1,909 (WikiLM)", "Sec. 5.1", PRINTED),
    ("largest score of a saturation", "8.5 (GPT2), 1.2 (WikiLM)", "Tab. 4", SUMMARY),
    ("saturation by layer", "24 and 16 percentages", "Tab. 9, 10", PRINTED),
    ("share of values in extreme clusters", "1.7 % (GPT2), 1.1 % (WikiLM)", "Sec. 5.2", PRINTED),
    ("threshold of extreme scores", "10 (GPT2), 5 (WikiLM)", "Sec. 5.2", SUMMARY),
    ("length of a short prefix", "three tokens", "Sec. 5.2", SUMMARY),
    ("share of the ten dominant sub-updates", "about 5 %, over 10 % in some layers", "App. A.3", PRINTED),
    ("early exit", "94.1 ± 1.4 %, 3.2 ± 0.3 of 16 layers", "Tab. 6", PRINTED),
    ("toxicity and perplexity", "58.5 to 30.8 %, 21.7 to 25.3, and more", "Tab. 5", PRINTED),
)
"""What each published value is, where it stands in the paper, and how we have it."""
