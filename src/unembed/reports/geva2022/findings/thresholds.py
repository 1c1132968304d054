"""Lines that the claims of sections 5.1 and 5.2 share."""

from __future__ import annotations

FEWEST = 20
"""Events, or sub-updates, below which nothing is judged."""
AT_LEAST = 0.1
"""Score from which on a sub-update matters: it multiplies the odds of its token by 1.1."""
