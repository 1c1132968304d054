"""The sections of the report on Elhage et al. 2021, one module for each topic.

The paper's claims about one-layer and two-layer models are judged only on models with that many layers. For deeper
models, `deeper` replaces each claim with a related one, marked as an extension. All heads are measured, so shares of
heads have no confidence interval.
"""

from __future__ import annotations

from dataclasses import replace

from unembed.attention.behaviour.head_scores import heads_section
from unembed.attention.weights.by_offset import positions_section
from unembed.reports.elhage2021.measurements import Measurements
from unembed.reports.elhage2021.parts import (
    heads,
    induction,
    natural_text,
    one_layer,
    paths,
    stream,
    virtual,
    zero_layers,
)
from unembed.reports.elhage2021.parts.deeper import with_extensions
from unembed.reports.quantities import Part

_WITH_LAYERS: tuple[Part[Measurements], ...] = (
    Part(lambda m: heads_section(m.circuits, m.scores, m.basis, m.provenance), name="heads"),
    Part(lambda m: positions_section(m.circuits, m.basis, m.provenance), name="positions"),
    *heads.PARTS,
    *(with_extensions(part) for part in (*one_layer.PARTS, *paths.PARTS)),
    *virtual.PARTS,
    *induction.PARTS,
    *natural_text.PARTS,
    *stream.PARTS,
)
PARTS: tuple[Part[Measurements], ...] = (
    *zero_layers.PARTS,
    *(replace(part, when=lambda m, part=part: m.lm.n_layers > 0 and part.when(m)) for part in _WITH_LAYERS),
)
"""The sections, in the order of the report. A model without layers has only the first ones, on the direct path."""
