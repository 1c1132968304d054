"""The agreement of value vectors with triggers in gated layers, for each sign of the coefficient."""

from __future__ import annotations

import numpy as np

from unembed.document.exhibits import by_layer, exhibit
from unembed.document.intervals import Measured, share_of
from unembed.document.model import Section
from unembed.reports.geva2021 import paper
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.quantities import Part


def poles_section(m: Measurements) -> Section | None:
    """Show agreement for the stronger and the weaker sign of coefficients; None unless all layers are gated."""
    if not m.triggers.signed.all():
        return None
    series = {"stronger": "sign of the largest coefficient", "weaker": "the other sign"}
    cells = {
        "layer": range(m.n_layers),
        **{name: [_rate(m, layer, half) for layer in range(m.n_layers)] for half, name in enumerate(series)},
    }
    title = "Agreement of values with their keys' first triggers, at each sign of the coefficient"
    return Section(
        "Each sign by itself",
        (
            "A coefficient of a gated layer is the product of an activation and a linear factor, so it can have either "
            "sign (with the paper's ReLU, it is never negative). A memory with a negative coefficient adds its negated "
            "value. Because the sign in the weights is only a convention, signs are compared by strength: the stronger "
            "sign of a memory is that of its largest coefficient in the text.",
        ),
        (exhibit("agreement_poles", title, cells, m.provenance, percent=tuple(series)),),
        (by_layer("agreement_poles", title, "agreement_poles", series, "values", published=paper.NO_FIGURE),),
    )


def _rate(m: Measurements, layer: int, half: int) -> Measured:
    """Return the agreement rate of a layer's keys with the stronger sign (`half` 0) or the weaker sign (`half` 1)."""
    rows = m.agreement.layer(layer)
    agrees, known = (np.split(x[rows], 2)[half] for x in (m.agreement.agrees, m.agreement.target >= 0))
    return share_of(int(agrees.sum()), int(known.sum()))


PARTS = (Part(poles_section),)
