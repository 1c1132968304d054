"""The sections of the report on Geva et al. 2021, one module for each."""

from __future__ import annotations

from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.parts import aggregation, keys, poles, refinement, settings, values
from unembed.reports.quantities import Part

PARTS: tuple[Part[Measurements], ...] = (
    *keys.PARTS,
    *values.PARTS,
    *poles.PARTS,
    *aggregation.PARTS,
    *refinement.PARTS,
    *settings.PARTS,
)
"""The sections, in the order of the report."""
