"""The claims about paths: the sum that gives the logits, and how much each order matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from unembed.reports.claims import Claim, Judgement, Numbers, at_depth, verdict_of
from unembed.reports.elhage2021.measurements import Measurements

MATTERS = 0.05
"""Nats that the heads must take off the loss before their orders are compared."""


_TERMS = "Two-layer models: term importance analysis"


def _expansion(m: Measurements) -> Numbers:
    return {"exact": m.expansion.exact, "error": m.expansion.error, "n_terms": len(m.expansion)}


def judge_expansion(exact: bool, error: float, n_terms: int) -> Judgement:
    """The sum over paths against the model's logits."""
    kind = "exactly" if exact else "with patterns and norm scales frozen"
    return Judgement(
        f"{n_terms:,} terms and the remainder give all logits {kind}, relative error {error:.0e}.",
        verdict_of(error < 1e-4 if exact else None),
    )


def _term_importance(m: Measurements) -> Numbers | None:
    if m.lm.n_layers < 2:
        return None
    m.require_earlier_heads("paths through two heads")
    found = m.term_importance
    return {
        "reductions": found.reductions.tolist(),
        "per_term": found.reductions_per_term.tolist(),
        "by_layer": _known(found.layer_reductions),
        "given_others": _known(found.layer_reductions_given_others),
        "n_layers": m.lm.n_layers,
    }


def _known(by_layer: Float[Tensor, " layer"]) -> dict[int, float]:
    """The numbers of the layers with attention."""
    return {n: value for n, value in enumerate(by_layer.tolist()) if value == value}


def judge_virtual_heads(reductions: Sequence[float], per_term: Sequence[float], **_: Any) -> Judgement:
    """All orders above 1 compared with order 1."""
    single, virtual = reductions[0], sum(reductions[1:])
    return Judgement(
        f"Single heads take {single:+.2f} nats off the loss, all paths through two or more heads {virtual:+.2f}; on "
        f"average a single head takes {per_term[0]:.4f} off, a pair {per_term[1]:.4f}.",
        verdict_of(single > 2 * virtual if single >= MATTERS else None),
    )


def judge_second_layer(
    n_layers: int, by_layer: Mapping[int, float], given_others: Mapping[int, float], **_: Any
) -> Judgement:
    """The single heads of each layer, given those of the others."""
    parts, alone = (", ".join(f"layer {n} {v:+.2f}" for n, v in found.items()) for found in (given_others, by_layer))
    known = list(given_others.values())
    condition = known[-1] > 2 * known[0] if max(known) >= MATTERS else None
    return Judgement(
        f"Nats that the single heads of a layer take off the loss, given those of the other layers: {parts}; added to "
        f"the direct path alone: {alone}.",
        verdict_of(*at_depth(n_layers, 2, condition)),
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "path expansion", "path expansion",
        "The logits of an attention-only model are a sum over paths through heads.",
        "Path expansion of logits",
        "Relative error of the sum of all terms against the model's logits.",
        "an identity",
        "The error is below 1e-4 where there is no norm or FFN between. An identity of the architecture: random "
        "weights pass it too.",
        _expansion, judge_expansion,
    ),
    Claim(
        "virtual heads", "term importance",
        "Virtual attention heads, the paths through two or more heads, take much less off the loss than single heads.",
        _TERMS,
        "Loss by the highest order of path, patterns frozen.",
        "in words",
        f"All orders above 1 together take off less than half of what order 1 does, where that is at least {MATTERS:g} "
        "nats; below, there is nothing to compare.",
        _term_importance, judge_virtual_heads,
    ),
    Claim(
        "second layer", "term importance",
        "Of the single heads of the two-layer model, those of the second layer matter most.",
        _TERMS,
        "Loss of the direct path with the heads of one layer.",
        "in words",
        "In a two-layer model the second layer's heads take off more than twice what the first layer's do, where "
        f"either takes off at least {MATTERS:g} nats.",
        _term_importance, judge_second_layer,
    ),
)  # fmt: skip
