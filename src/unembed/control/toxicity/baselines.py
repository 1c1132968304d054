"""Baselines for the selected values: a word filter and self-debiasing, as `LogitsProcessor`s.

Both work in any `transformers` generation. Source: Geva et al. 2022, section 6.1.
"""

from unembed.control.toxicity.self_debiasing import PREFIXES, SelfDebiasing, debiased
from unembed.control.toxicity.word_filter import WordFilter, read_words

__all__ = ["PREFIXES", "SelfDebiasing", "WordFilter", "debiased", "read_words"]
