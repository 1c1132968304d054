"""The claims of Geva et al. 2021: one row each, with what is measured for it and the test that judges it."""

from __future__ import annotations

from unembed.reports.claims import Claim
from unembed.reports.geva2021.findings import aggregation, keys, refinement, values
from unembed.reports.geva2021.measurements import Measurements

CLAIMS: tuple[Claim[Measurements], ...] = (
    *keys.CLAIMS,
    *values.CLAIMS,
    *aggregation.CLAIMS,
    *refinement.CLAIMS,
)
"""Every claim of the study, in reading order."""
