"""The sections of the report on Geva et al. 2022, one module for each."""

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
"""The sections, in the order of the report."""
