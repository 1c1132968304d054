"""Suppressing toxic text with values that promote other words, compared with known baselines.

Contains the selection of values, the baselines, the scorers and the evaluation. Source: Geva et al. 2022, section 6.1.
"""

from unembed.control.toxicity.baselines import SelfDebiasing, WordFilter, read_words
from unembed.control.toxicity.comments import read_comments
from unembed.control.toxicity.evaluation import (
    Arm,
    Evaluation,
    evaluate,
    plain,
    published_table,
    with_self_debiasing,
    with_values,
    with_word_filter,
)
from unembed.control.toxicity.prompts import Prompt, read_prompts
from unembed.control.toxicity.scorers import Classifier, Lexicon, Linear, Scorer, StoredScores, open_scorer
from unembed.control.toxicity.selection import (
    PAPER_VALUES,
    Selection,
    by_scorer,
    greedy,
    manual,
    paper_values,
    value_scores,
)

__all__ = [
    "PAPER_VALUES",
    "Arm",
    "Classifier",
    "Evaluation",
    "Lexicon",
    "Linear",
    "Prompt",
    "Scorer",
    "Selection",
    "SelfDebiasing",
    "StoredScores",
    "WordFilter",
    "by_scorer",
    "evaluate",
    "greedy",
    "manual",
    "open_scorer",
    "paper_values",
    "plain",
    "published_table",
    "read_comments",
    "read_prompts",
    "read_words",
    "value_scores",
    "with_self_debiasing",
    "with_values",
    "with_word_filter",
]
