"""The negative pole: what the keys and values of gated layers do if the coefficient is negative."""

from __future__ import annotations

from unembed.document.exhibits import boxes, by_layer, exhibit, means
from unembed.document.model import Section
from unembed.reports.geva2021 import paper
from unembed.reports.geva2021.measurements import Measurements
from unembed.reports.geva2021.parts.keys import perturbation_exhibit
from unembed.reports.geva2021.parts.values import predictive_exhibit, ranks, rates
from unembed.reports.quantities import Part


def poles_section(m: Measurements) -> Section | None:
    """Show the negative pole where coefficients are signed; None elsewhere."""
    if m.negative is None or m.agreement_negative is None or m.changes_negative is None:
        return None
    negative, found = m.agreement_negative, m.patterns_negative
    rate = "Agreement rate at both poles"
    series = {"positive": "positive pole", "negative": "negative pole", "negative_by_chance": "negative, by chance"}
    agreement = {
        "layer": range(m.n_layers),
        "positive": rates(m.agreement),
        "negative": rates(negative),
        "negative_by_chance": [negative.by_chance(n) for n in range(m.n_layers)],
        **boxes("rank", ranks(negative)),
    }
    shares = {
        "covered": 1 - found["none"],
        "shallow": found["shallow"] + found["both"],
        "semantic": found["semantic"] + found["both"],
    }
    covered = {
        name: means([share[found["layer"] == n] for n in range(m.n_layers)], m.seed) for name, share in shares.items()
    }
    return Section(
        "The negative pole",
        (
            "Here coefficients are products of an activation and a linear factor and take both signs (the paper's ReLU "
            "has one). A memory with a negative coefficient adds its value negated, so each key has a second list of "
            "triggers, the prefixes with its most negative coefficients, and each value a second reading, "
            "softmax(−v E), whose first token is the one that the value suppresses most. Everything in this section "
            "pairs these two; the sections before it pair the positive pole with the value as it is.",
        ),
        (
            exhibit(
                "agreement_poles",
                "Agreement of values with their keys' first triggers, at both poles",
                agreement,
                m.provenance,
                percent=tuple(series),
            ),
            exhibit(
                "patterns_negative",
                "Prefixes in a pattern, by rule, in triggers of the negative pole",
                {"layer": range(m.n_layers), **covered},
                m.provenance,
                percent=tuple(shares),
            ),
            perturbation_exhibit(
                "perturbation_negative",
                "Relative change of negative coefficients by layer, triggers of the negative pole shortened",
                m,
                m.changes_negative,
                "−100 %: the coefficient is 0; below that it has turned positive.",
            ),
            predictive_exhibit(
                "predictive_negated_values",
                "negated values with the largest probability",
                m,
                negative,
                m.negative,
                "Token: the first of −v. Precision: the share of the key's negative triggers that it follows.",
            ),
        ),
        (by_layer("agreement_poles", rate, "agreement_poles", series, "values", published=paper.NO_FIGURE),),
    )


PARTS = (Part(poles_section),)
