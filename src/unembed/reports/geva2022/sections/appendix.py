"""Appendix A.1 and A.3: what the final norm changes (Fig. 4), and what share dominant sub-updates have (Fig. 6)."""

from __future__ import annotations

import numpy as np

from unembed.memories.event_sample import DOMINANT, EventSample
from unembed.models.decoder import Decoder
from unembed.reports.claims import row
from unembed.reports.document.intervals import columns, mean_of
from unembed.reports.document.model import Exhibit, Figure, Section
from unembed.reports.geva2022 import published
from unembed.results import Provenance, Table


def norm_section(overlaps: dict[str, np.ndarray], provenance: Provenance) -> Section:
    """App. A.1; `overlaps` has "real" and "random", (layer, vector) each."""
    real, random = overlaps["real"], overlaps["random"]
    cells: dict[str, list] = {"layer": list(range(len(real)))}
    cells |= columns("values", [mean_of(row) for row in real])
    cells |= columns("random_vectors", [mean_of(row) for row in random])
    table = Table("Overlap of the top 30 tokens with and without the final norm (Fig. 4)", cells, provenance)
    mine, chance = float(real.mean()), float(random.mean())
    finding = row(
        "The final norm does not change a value's projection to the vocabulary substantially.",
        f"Mean overlap {mine:.1%} for values, {chance:.1%} for random vectors.",
        bool(mine > 0.5),
        "App. A.1, Fig. 4",
    )
    text = (
        "Intersection over union of the 30 top tokens of each value read raw, `E v`, and through the final norm, "
        "`E LN(v)`, its gain and bias included. Random vectors have the mean and deviation of the layer's values.",
    )
    figure = Figure("fig4", "Overlap of top tokens", "line", "fig4", "layer", ("values", "random_vectors"),
                    ("values", "random vectors"), x_label="layer", y_label="intersection over union", percent=True,
                    y_range=(0, 1))  # fmt: skip
    return Section(
        "The norm before the readout (App. A.1)",
        text,
        (Exhibit("fig4", table, "", ("values", "random_vectors")),),
        (figure,),
        (finding,),
    )


def contribution_section(lm: Decoder, sample: EventSample, provenance: Provenance) -> Section:
    """App. A.3."""
    cells: dict[str, list] = {"layer": list(range(sample.n_layers))}
    cells |= columns("dominant", [mean_of(row) for row in sample.contribution])
    cells |= columns("random", [mean_of(row) for row in sample.random_contribution])
    table = Table("Share of the 10 dominant sub-updates in the sum of |m| |v| (Fig. 6)", cells, provenance)
    share, even = float(sample.contribution.mean()), DOMINANT / lm.d_mlp
    finding = row(
        f"Ten sub-updates of 4,096 (0.24 %) make up about {published.CONTRIBUTION:.0%} of an update's contributions.",
        f"Ten of {lm.d_mlp:,} ({even:.2%}) make up {share:.1%} on average, {share / even:.0f} times an even share.",
        bool(share > 5 * even),
        "App. A.3, Fig. 6",
    )
    figure = Figure("fig6", "Share of ten sub-updates in each FFN update", "line", "fig6", "layer",
                    ("dominant", "random"), ("10 dominant", "10 random"), x_label="layer",
                    y_label="share of the sum of |m| |v|", percent=True)  # fmt: skip
    return Section(
        "Contribution of the dominant sub-updates (App. A.3)",
        ("A sub-update's contribution is |m| times the length of its value, before a norm that follows the FFN.",),
        (Exhibit("fig6", table, "", ("dominant", "random")),),
        (figure,),
        (finding,),
    )
