"""One head in full: eigenvalues, own tokens, largest entries, partners, skip-trigrams."""

from __future__ import annotations

from typing import Any

from unembed.attention.circuits import Circuits
from unembed.names import HeadBasis
from unembed.reports.document.model import Exhibit, Section
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
    """Everything the weights show about one head."""
    lm = circuits.lm
    layer, head = lm.layer_and_head(layer, head)
    own = circuits.own_token(layer, head, basis, seed=seed)
    copying, matching = circuits.copying(basis), circuits.matching(basis, offset=offset)
    facts = circuits.ov(layer, head, basis).notes
    understood = lm.structure.blocks[layer].attention.scores_understood
    notes = tuple(dict.fromkeys((*facts, *(circuits.qk(layer, head, offset, basis).notes if understood else ()))))
    text = (
        f"Copying score {float(copying.score[layer, head]):+.2f}, {float(copying.positive_fraction[layer, head]):.0%} "
        f"of eigenvalues positive; matching score of its QK circuit {float(matching.score[layer, head]):+.2f}. A "
        f"token's own logit lies {own.mean_z:+.2f} standard deviations from its row's mean, and in the row's top "
        f"{own.k} for {own.top_share:.1%} of {own.n_tokens:,} tokens.",
        *((f"Note: {'; '.join(notes)}.",) if notes else ()),
    )
    exhibits = full_circuit_exhibits(circuits, layer, head, top, basis, provenance, offset)
    partners = _partners(circuits, layer, head, basis, seed, top, provenance)
    summary = Section("Circuits", text, tuple(exhibits))
    made = [summary, eigenvalue_section(circuits, [(layer, head)], basis, provenance)]
    return [*made, Section("Partners", (), (partners,))] if lm.n_layers > 1 else made


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
