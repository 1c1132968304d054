"""The numbers in the paper, and where they are from. Its models are not public, so most results are in words."""

from __future__ import annotations

from unembed.attention.weights.paper import COPYING_HEADS
from unembed.reports.published import RECALLED, SUMMARY, Origin

ORIGINS = (
    Origin("heads of the one-layer model that copy", COPYING_HEADS, "One-layer models", RECALLED),
    Origin("order of paths", "second order need not come first; second-layer heads should", "Two-layer models",
           SUMMARY),
    Origin("composition", "K-composition stands out, Q and V do not", "Two-layer models", SUMMARY),
    Origin("loss by order, in nats", "not in the text at hand", "Two-layer models: term importance", SUMMARY),
    Origin("in-context learning and ablation", "Olsson et al. 2022, in words", "not this paper", SUMMARY),
)  # fmt: skip
"""Each published value: its definition, its place in the paper, and its source."""
