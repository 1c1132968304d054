"""The thresholds that tests of sections 5.1 and 5.2 share.

Scores are in logits: a sub-update of score s multiplies the odds of its token by exp(s) (Sec. 3, Eq. 2).
"""

from __future__ import annotations

FEWEST = 20
"""Events, or sub-updates, below which nothing is judged."""
AT_LEAST = 0.1
"""Score from which on a sub-update matters: it multiplies the odds of its token by 1.1."""
