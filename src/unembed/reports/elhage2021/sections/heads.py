"""Sections about single heads and pairs of heads: scores, eigenvalues, composition, induction."""

from __future__ import annotations

import torch

from unembed.attention.behaviour.head_scores import heads_section
from unembed.attention.behaviour.induction import induction_section
from unembed.attention.behaviour.source_effects import effects_section
from unembed.attention.weights.composition import MODES, composition_section
from unembed.attention.weights.copying import eigenvalue_section
from unembed.document.model import Section
from unembed.errors import Unsupported
from unembed.reports.elhage2021.measurements import Measurements
from unembed.results import visible


def all_heads(m: Measurements) -> list[Section]:
    """Scores of every head on repeated random tokens."""
    return [heads_section(m.circuits, m.scores, m.basis, m.provenance)]


def copying(m: Measurements) -> list[Section]:
    """Eigenvalues of the heads that copy most and least."""
    try:
        score = m.copying.score
    except Unsupported as refused:
        return [Section("Copying", (f"Not available: {refused.why}.",))]
    known = (~score.isnan()).sum()
    order = score.nan_to_num(-torch.inf).flatten().argsort(descending=True)[:known].tolist()
    shown = [divmod(i, score.shape[1]) for i in dict.fromkeys([*order[:3], *order[-1:]])]
    return [eigenvalue_section(m.circuits, shown, m.basis, m.provenance, "Copying")]


def composition(m: Measurements) -> list[Section]:
    """Q-, K- and V-composition of all pairs."""
    return [composition_section(m.circuits, MODES, 10, m.basis, m.seed, m.provenance)]


def induction(m: Measurements) -> list[Section]:
    """Induction heads by weights and by behaviour."""
    return [induction_section(m.circuits, m.evidence, m.basis, m.provenance, 24, m.on_text)]


def one_position(m: Measurements) -> list[Section]:
    """Where the strongest induction head attends at one position, and how that changes the logits."""
    one = m.one_position
    names = [visible(name) for name in m.lm.token_strings(one.tokens)]
    text = (
        f"A text of {(len(names) + 1) // 2} tokens, repeated. At the last token, `{names[-1]}`, head "
        f"L{one.layer}H{one.head} should attend to the token after the earlier occurrence, `{names[one.expected]}`, "
        "and raise it.",
    )
    head = f"L{one.layer}H{one.head}"
    return [effects_section(m.lm, one.tokens, one.effects, head, m.provenance, "source_effects", text=text)]
