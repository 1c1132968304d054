"""The claims of Elhage et al. 2021: one row each, with what is measured for it and the test that judges it.

Claims about the paper's one-layer and two-layer models are judged on models of that depth; elsewhere the numbers are
shown and the verdict is open. All heads are measured, so shares of heads have no interval.
"""

from __future__ import annotations

from unembed.reports.claims import Claim
from unembed.reports.elhage2021.findings import (
    composition,
    in_context,
    induction,
    one_layer,
    paths,
    stream,
    zero_layers,
)
from unembed.reports.elhage2021.measurements import Measurements

CLAIMS: tuple[Claim[Measurements], ...] = (
    *zero_layers.CLAIMS,
    *one_layer.CLAIMS,
    *paths.CLAIMS,
    *composition.CLAIMS,
    *induction.CLAIMS,
    *in_context.CLAIMS,
    *stream.CLAIMS,
)
"""Every claim of the study, in reading order."""
