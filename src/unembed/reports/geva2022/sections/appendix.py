"""Appendix A.1 and A.3: what the final norm changes (Fig. 4), and what share dominant sub-updates have (Fig. 6)."""

from __future__ import annotations

from unembed.document.intervals import columns, mean_of
from unembed.document.model import Exhibit, Figure, Finding, Section
from unembed.reports.geva2022 import published
from unembed.reports.geva2022.measurements import Measurements
from unembed.results import Table

_OVERLAPS = {
    "values": "value, both readings",
    "random": "random vector, both readings",
    "value_with_random": "value raw, random vector through the norm",
    "random_with_value": "random vector raw, value through the norm",
}


def norm_section(m: Measurements, findings: tuple[Finding, ...]) -> Section:
    """App. A.1."""
    cells: dict[str, list] = {"layer": list(range(m.lm.n_layers))}
    for name in _OVERLAPS:
        cells |= columns(name, [mean_of(row, seed=m.seed, share=True) for row in m.overlaps[name]])
    table = Table("Overlap of the top 30 tokens with and without the final norm (Fig. 4)", cells, m.provenance)
    text = (
        "Intersection over union of the 30 top tokens of a vector read raw, `E v`, and through the final norm, "
        "`E LN(v)`, its gain and bias included. Random vectors have the mean and the deviation of the layer's values. "
        "The contrast is between a value and itself and a value and a random vector, with the norm on either.",
    )
    figure = Figure(
        "fig4",
        "Overlap of top tokens",
        "line",
        "fig4",
        "layer",
        tuple(_OVERLAPS),
        tuple(_OVERLAPS.values()),
        x_label="layer",
        y_label="intersection over union",
        percent=True,
        y_range=(0, 1),
        published=published.NO_VALUES,
    )
    exhibits = (Exhibit("fig4", table, "", tuple(_OVERLAPS)),)
    return Section("The norm before the readout (App. A.1)", text, exhibits, (figure,), findings)


def contribution_section(m: Measurements, findings: tuple[Finding, ...]) -> Section:
    """App. A.3."""
    sample = m.sample
    cells: dict[str, list] = {"layer": list(range(sample.n_layers))}
    dominant = [mean_of(row, seed=m.seed, published=published.CONTRIBUTION, share=True) for row in sample.contribution]
    cells |= columns("dominant", dominant)
    cells |= columns("random", [mean_of(row, seed=m.seed, share=True) for row in sample.random_contribution])
    negative = (sample.coefficients < 0).mean(axis=-1)  # layer example
    cells |= columns("negative", [mean_of(row, seed=m.seed, share=True) for row in negative])
    table = Table("Share of the 10 dominant sub-updates in the sum of |m| |v| (Fig. 6)", cells, m.provenance)
    figure = Figure(
        "fig6",
        "Share of ten sub-updates in each FFN update",
        "line",
        "fig6",
        "layer",
        ("dominant", "random"),
        ("10 dominant", "10 random"),
        x_label="layer",
        y_label="share of the sum of |m| |v|",
        percent=True,
        references=(published.TENTH,),
    )
    text = (
        "A sub-update's contribution is |m| times the length of its value, before a norm that follows the FFN. "
        "`negative` is the share of negative coefficients among the ten dominant ones.",
    )
    exhibits = (Exhibit("fig6", table, "", ("dominant", "random", "negative")),)
    return Section("Contribution of the dominant sub-updates (App. A.3)", text, exhibits, (figure,), findings)
