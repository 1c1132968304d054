"""Toxic text suppressed by values that promote something better, beside the known baselines, measured.

Owns the choice of values, the baselines, the scorers and the evaluation. Source: Geva et al. 2022, section 6.1.
"""

from unembed.control.toxicity.baselines import SelfDebiasing, WordFilter, read_words

__all__ = ["SelfDebiasing", "WordFilter", "read_words"]
