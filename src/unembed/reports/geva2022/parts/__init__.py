"""The parts of the report on Geva et al. 2022: what is published, measured and shown, one module for each section."""

from __future__ import annotations

from unembed.reports.geva2022.measurements import Measurements
from unembed.reports.geva2022.parts import appendix, applications, concepts, events, layers, score_effects
from unembed.reports.quantities import Part

PARTS: tuple[Part[Measurements], ...] = (
    *score_effects.PARTS,
    *concepts.PARTS,
    *events.PARTS,
    *layers.PARTS,
    *applications.PARTS,
    *appendix.PARTS,
)
"""In reading order."""
