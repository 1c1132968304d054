"""The parts of the report on Geva et al. 2021: what is published, measured and shown, one module for each section."""

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
"""In reading order."""
