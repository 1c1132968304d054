"""Claims about paths through heads: their sum, how much paths with one or more heads matter, and composition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.attention.behaviour.head_scores import ROLE
from unembed.attention.paths.expansion import expansion_section
from unembed.attention.paths.term_importance import importance_section
from unembed.attention.weights.composition import MODES, composition_section, random_baseline
from unembed.attention.weights.missing_circuits import missing_circuits
from unembed.attention.weights.paper import NO_NUMBERS
from unembed.document.exhibits import drawing, exhibit
from unembed.document.model import Section
from unembed.document.numbers import percent
from unembed.errors import Unsupported
from unembed.names import head_name
from unembed.reports.elhage2021.measurements import Measurements, only
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, above, judged, judged_if, once
from unembed.results import format_error, format_number, format_percent, format_setting, format_signed

MATTERS = 0.05
"""Paths of different order are compared only if some of them lower the loss by at least this much, in nats."""
ONE_DIRECTION = 0.5
"""If one direction has more than this share of the squared Frobenius norm of a weight product, it explains the norm."""
STANDS_OUT = 5.0
"""A composition counts as strong if it is at least this many standard deviations above that of random matrices."""
_TERMS = "Two-layer models: term importance analysis"


def expansion(m: Measurements) -> Numbers | None:
    """Return the error of the sum over paths; None if the sum is exact only with norms or FFN outputs fixed."""
    if not m.expansion.exact:
        return None
    return Numbers(error=m.expansion.error, n_terms=len(m.expansion))


def judge_expansion(n: Numbers) -> Judgement:
    """Judge whether the sum over paths equals the model's logits."""
    here = f"{n.n_terms:,} terms and the remainder give all logits exactly, relative error {format_error(n.error)}."
    return judged(here, n.error < 1e-4)


def term_importance(m: Measurements) -> Numbers | None:
    """Measure how much paths of each order (number of heads), and the heads of each layer, lower the loss.

    The result is None for a model of one layer.
    """
    if m.lm.n_layers < 2:
        return None
    m.require_earlier_heads("paths through two heads")
    found = m.term_importance
    return Numbers(
        reductions=found.reductions.tolist(),
        above_one=float(found.losses[1]) - found.loss,
        per_term=found.reductions_per_term.tolist(),
        by_layer=_known(found.layer_reductions),
        given_others=_known(found.layer_reductions_given_others),
    )


def _known(by_layer: Float[Tensor, " layer"]) -> dict[int, float]:
    """Return a dict from layer to value, without layers whose value is NaN (those without attention)."""
    return {n: value for n, value in enumerate(by_layer.tolist()) if value == value}


def judge_virtual_heads(n: Numbers) -> Judgement:
    """Judge whether paths through one head lower the loss more than paths through several heads."""
    single, virtual = n.reductions[0], n.above_one
    return judged_if(
        single >= MATTERS,
        f"Single heads take {format_signed(single)} nats off the loss, all paths through two or more heads "
        f"{format_signed(virtual)}; on average a single head takes {format_number(n.per_term[0])} off, a pair "
        f"{format_number(n.per_term[1])}.",
        single > 2 * virtual,
    )


def judge_second_layer(n: Numbers) -> Judgement:
    """Judge whether the last layer's heads lower the loss more than the first layer's, given all other layers."""
    parts, alone = (
        ", ".join(f"layer {k} {format_signed(v)}" for k, v in of.items()) for of in (n.given_others, n.by_layer)
    )
    known = list(n.given_others.values())
    return judged_if(
        max(known) >= MATTERS,
        f"Nats that the single heads of a layer take off the loss, given those of the other layers: {parts}; added to "
        f"the direct path alone: {alone}.",
        known[-1] > 2 * known[0],
    )


@once
def composition(m: Measurements) -> Numbers | None:
    """Find the pair of heads with the largest Q-, K- and V-composition; None for a model of one layer."""
    if m.lm.n_layers < 2:
        return None
    m.require_earlier_heads("composition")
    for mode in MODES:
        if bool(m.compositions[mode].isnan().all()):
            why = next(iter(missing_circuits(m.lm, m.basis).of(mode).values()))
            raise Unsupported(f"{mode.upper()}-composition of {m.lm.name} in the {m.basis} basis", why=why)
    peaks = {mode: _strongest(ratios) for mode, ratios in m.compositions.items()}
    strongest, writer, _ = peaks["k"]
    chance, deviation = random_baseline(m.lm, m.seed)
    half = (strongest - chance) / 2
    return Numbers(
        peaks={mode: (value - chance, a, b) for mode, (value, a, b) in peaks.items()},
        z=(strongest - chance) / deviation,
        previous=m.score_of("previous_token", writer),
        n_reaching_half={mode: int(((ratios - chance) > half).sum()) for mode, ratios in m.compositions.items()},
    )


def _strongest(ratios: Tensor) -> tuple[float, tuple[int, int], tuple[int, int]]:
    """Return the largest composition, the earlier head and the later head, each head as (layer, head)."""
    value, at = ratios.nan_to_num(-torch.inf).flatten().max(dim=0)
    a, h, b, k = (int(i) for i in torch.unravel_index(at, ratios.shape))
    return float(value), (a, h), (b, k)


def judge_k_composition(n: Numbers) -> Judgement:
    """Judge whether the largest K-composition stands out and its earlier head attends to the previous token."""
    value, *ends = n.peaks["k"]
    writer, reader = (head_name(*end) for end in ends)
    return judged(
        f"The strongest K-composition, {writer} read by {reader}, is {format_signed(value, 3)} above random circuits, "
        f"{format_number(n.z, decimals=0)} standard deviations; {writer} attends to the previous token with "
        f"{percent(n.previous)}.",
        n.z >= STANDS_OUT,
        above(n.previous, ROLE),
    )


def judge_small(n: Numbers, mode: str) -> Judgement:
    """Judge whether Q- or V-composition (`mode`) is below half of the largest K-composition."""
    value, *ends = n.peaks[mode]
    writer, reader = (head_name(*end) for end in ends)
    most, pairs = n.peaks["k"][0], n.n_reaching_half[mode]
    return judged_if(
        n.z >= STANDS_OUT,
        f"The strongest {mode.upper()}-composition, {writer} with {reader}, is {format_signed(value, 3)} above random "
        f"circuits, {f'{format_percent(value / most, 0)} of' if 0 <= value < most else 'not below'} the strongest "
        f"K-composition; {pairs} {'pair reaches' if pairs == 1 else 'pairs reach'} half of that.",
        pairs == 0,
    )


def explain_small(m: Measurements, mode: str) -> str:
    """State which share of the largest composition of this kind comes from a single direction."""
    _, (a, h), (b, k) = _strongest(m.compositions[mode])
    reads = m.circuits.ov(b, k, m.basis) if mode == "v" else m.circuits.qk(b, k, basis=m.basis)
    sizes = (m.circuits.ov(a, h, m.basis) @ (reads.T if mode == "k" else reads)).double().singular_values() ** 2
    share = float(sizes.max() / sizes.sum())
    pattern, writer = float(m.scores.previous_token[a, h]), head_name(a, h)
    return (
        f"One direction of {len(sizes)} holds {format_percent(share, 0)} of the squared size of what "
        f"{head_name(b, k)} reads of {writer}'s output; {writer} attends to the previous token with "
        f"{format_percent(pattern, 0)}: "
        + ("one signal makes it large, not a rule for many tokens." if share > ONE_DIRECTION else "why is unexplained.")
    )


def small(mode: str, reads: str) -> Quantity[Measurements]:
    """Return the `Quantity` for the claim that Q- or V-composition (`mode`) is small."""
    return Quantity(
        f"{mode.upper()}-composition",
        f"{mode.upper()}-composition is small in the two-layer model.",
        where="Two-layer models: three kinds of composition",
        what=f"Frobenius ratio of writer and {reads} above random circuits, every pair.",
        published="in words",
        test="In a two-layer model whose strongest K-composition stands out, no pair reaches half of it.",
        measure=only(composition, 2),
        judge=lambda n: judge_small(n, mode),
        explain=lambda m: explain_small(m, mode),
    )


def composition_sections(m: Measurements) -> Section:
    """Show the pairs of heads that compose most; for deep models, also heat maps of the maximum by pair of layers."""
    made = composition_section(m.circuits, MODES, 10, m.basis, m.seed, m.provenance)
    if len(m.lm.attention_layers) < 3:
        return made
    layers, chance = m.lm.attention_layers, random_baseline(m.lm, m.seed)[0]
    pairs = [(a, b) for a in layers for b in layers if b > a]
    cells: dict[str, list[Any]] = {"writer": [a for a, _ in pairs], "reader": [b for _, b in pairs]}
    for mode in MODES:
        strongest = m.compositions[mode].nan_to_num(0.0).amax(dim=(1, 3))
        cells[f"{mode}_composition"] = [float(strongest[pair]) - chance for pair in pairs]
    most = max(abs(value) for mode in MODES for value in cells[f"{mode}_composition"])
    table = "composition_of_layers"
    axes = {"rows": "writer", "x_label": "layer that reads", "y_label": "layer that writes"}
    shown = {"y_range": (-most, most), "published": NO_NUMBERS, **axes}
    figures = tuple(
        drawing("heat", f"{column}_of_layers", f"{what} of the strongest pair", "reader", column, table, **shown)
        for column, what in ((f"{mode}_composition", f"{mode.upper()}-composition") for mode in MODES)
    )
    title = "The strongest pair of heads of each two layers, above random circuits"
    every = exhibit(table, title, cells, m.provenance, folded=True)
    return replace(made, exhibits=(*made.exhibits, every), figures=(*made.figures, *figures))


PARTS: tuple[Part[Measurements], ...] = (
    Part(
        lambda m: expansion_section(m.circuits, m.expansion, m.predicted, 20, m.provenance),
        (
            Quantity(
                "path expansion",
                "The logits of an attention-only model are a sum over paths through heads.",
                where="Path expansion of logits",
                what="Relative error of the sum of all terms against the model's logits.",
                published="an identity",
                test="The error is below 1e-4 where there is no norm or FFN between. An identity of the architecture: "
                "random weights pass it too.",
                measure=expansion,
                judge=judge_expansion,
            ),
        ),
        name="path expansion",
    ),
    Part(
        lambda m: importance_section(m.term_importance, m.provenance),
        (
            Quantity(
                "virtual heads",
                "Virtual attention heads, the paths through two or more heads, take much less off the loss than single "
                "heads.",
                where=_TERMS,
                what="Loss by the highest order of path, patterns frozen.",
                published="in words",
                test="All orders above 1 together take off less than half of what order 1 does, where that is at least "
                f"{format_setting(MATTERS)} nats; below, there is nothing to compare.",
                measure=only(term_importance, 2),
                judge=judge_virtual_heads,
            ),
            Quantity(
                "second layer",
                "Of the single heads of the two-layer model, those of the second layer matter most.",
                where=_TERMS,
                what="Loss of the direct path with the heads of one layer.",
                published="in words",
                test="In a two-layer model the second layer's heads take off more than twice what the first layer's "
                f"do, where either takes off at least {format_setting(MATTERS)} nats.",
                measure=only(term_importance, 2),
                judge=judge_second_layer,
            ),
        ),
        name="term importance",
        absent="How much each order of path matters",
        when=lambda m: m.lm.n_layers > 1,
    ),
    Part(
        composition_sections,
        (
            Quantity(
                "K-composition",
                "The K-composition that stands out is with a previous-token head.",
                where="Two-layer models: three kinds of composition",
                what="Frobenius ratio of every pair above random circuits, and the earlier head's attention to the "
                "previous token.",
                published="in words",
                test=f"The strongest pair is at least {format_setting(STANDS_OUT)} standard deviations of random "
                "circuits above their mean, and its earlier head attends to the previous token with at least "
                f"{format_percent(ROLE, 0)}, with its interval over sequences; uniform attention gives less than 5 %.",
                measure=only(composition, 2),
                judge=judge_k_composition,
            ),
            small("q", "queries"),
            small("v", "values"),
        ),
        name="composition",
        when=lambda m: m.lm.n_layers > 1,
    ),
)
