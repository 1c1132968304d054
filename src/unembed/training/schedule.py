"""Warm-up, plateau, linear decay to zero: the end may be moved while training runs, which a cosine does not allow."""

from __future__ import annotations


def lr_factor(step: int, *, warmup: int, steps: int, decay: int) -> float:
    """Share of the peak learning rate at a step: up over `warmup`, one, then down to zero over the last `decay` of `steps`."""
    rising = min(1.0, (step + 1) / warmup) if warmup else 1.0
    falling = min(1.0, max(0.0, (steps - step) / decay)) if decay else 1.0
    return min(rising, falling)
