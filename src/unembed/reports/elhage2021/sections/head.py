"""One head in full: eigenvalues, own tokens, largest entries, partners, skip-trigrams."""

from __future__ import annotations

from typing import Any

from unembed.attention.circuits import Circuits
from unembed.attention.weights.composition import MODES
from unembed.document.model import Exhibit, Section
from unembed.errors import Unsupported
from unembed.names import HeadBasis
from unembed.reports.elhage2021.sections.heads import eigenvalue_section, full_circuit_exhibits
from unembed.results import Provenance, Table


def head_sections(
    circuits: Circuits,
    layer: int,
    head: int,
    top: int,
    basis: HeadBasis,
    seed: int,
    provenance: Provenance,
    offset: int = 0,
) -> list[Section]:
    """Everything the weights show about one head: a circuit that it does not have is left out, with the reason.

    Raises:
        OutOfRange: there is no such head.
        Unsupported: it has neither circuit.
    """
    lm = circuits.lm
    layer, head = lm.layer_and_head(layer, head)
    scores, own_logit, refused = [], "", []
    notes: dict[str, None] = {}
    try:
        notes |= dict.fromkeys(circuits.ov(layer, head, basis).notes)
        own = circuits.own_token(layer, head, basis, seed=seed)
        copying = circuits.copying(basis)
        share = f"{float(copying.positive_fraction[layer, head]):.0%}"
        scores.append(f"copying score {float(copying.score[layer, head]):+.2f}, {share} of eigenvalues positive")
        own_logit = (
            f" A token's own logit lies {own.mean_z:+.2f} standard deviations from its row's mean, and in the row's "
            f"top {own.k} for {own.top_share:.1%} of {own.n_tokens:,} tokens."
        )
    except Unsupported as error:
        refused.append(error)
    has_ov = not refused
    try:
        notes |= dict.fromkeys(circuits.qk(layer, head, offset, basis).notes)
        matching = float(circuits.matching(basis, offset=offset).score[layer, head])
        scores.append(f"matching score of its QK circuit {matching:+.2f}")
    except Unsupported as error:
        refused.append(error)
    if not scores:
        raise refused[0]
    line = "; ".join(scores)
    text = (
        f"{line[0].upper()}{line[1:]}.{own_logit}",
        *(f"Not available: {error}" for error in refused),
        *((f"Note: {'; '.join(notes)}.",) if notes else ()),
    )
    exhibits = full_circuit_exhibits(circuits, layer, head, top, basis, provenance, offset)
    made = [Section("Circuits", text, tuple(exhibits))]
    if has_ov:
        made.append(eigenvalue_section(circuits, [(layer, head)], basis, provenance))
    if len(lm.attention_layers) < 2:
        return made
    try:
        missing = circuits.missing(basis)
        absent = tuple(
            f"{mode.upper()}-composition with other heads: not available, because {missing.of(mode)[layer]}."
            for mode in MODES
            if layer in missing.of(mode)
        )
        return [*made, Section("Partners", absent, (_partners(circuits, layer, head, basis, seed, top, provenance),))]
    except Unsupported as error:
        return [*made, Section("Partners", (f"Not available: {error}",))]


def _partners(
    circuits: Circuits, layer: int, head: int, basis: HeadBasis, seed: int, top: int, provenance: Provenance
) -> Exhibit:
    """The heads that this one reads or that read it most, above random circuits."""
    best = circuits.partners(layer, head, basis, baseline=True, seed=seed)[:top]
    columns: dict[str, list[Any]] = {
        "relation": [p.relation for p in best],
        "head": [f"L{p.layer}H{p.head}" for p in best],
        "composition": [p.mode.upper() for p in best],
        "above_random": [p.composition for p in best],
    }
    return Exhibit("partners", Table(f"Heads that compose most with L{layer}H{head}", columns, provenance))
