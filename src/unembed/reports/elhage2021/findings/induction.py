"""The claims about induction heads, by what they do and by their weights."""

from __future__ import annotations

from collections.abc import Sequence

from unembed.attention.behaviour.head_scores import ROLE
from unembed.attention.behaviour.induction import InductionEvidence, induction_missing
from unembed.document.intervals import Measured
from unembed.document.numbers import percent
from unembed.errors import Unsupported
from unembed.reports.claims import Claim, Judgement, Numbers, above, verdict_of
from unembed.reports.elhage2021.measurements import Measurements
from unembed.results import visible


def _induction(m: Measurements) -> Numbers | None:
    if m.evidence and all(e.by_weights is None for e in m.evidence):
        why = " ".join(induction_missing(m.lm, m.basis)).rstrip(".")
        raise Unsupported(f"induction by weights in {m.lm.name}", why=why)
    return {"evidence": m.evidence} if m.evidence else None


def _induction_heads(m: Measurements) -> Numbers | None:
    if not m.evidence:
        return None
    best = max(m.evidence, key=lambda e: e.induction)
    return {"evidence": m.evidence, "most": m.score_of("induction", (best.layer, best.head))}


def judge_induction_heads(evidence: Sequence[InductionEvidence], most: Measured) -> Judgement:
    """Heads that attend to the token after the earlier occurrence."""
    found = sorted((e for e in evidence if e.induction >= ROLE), key=lambda e: -e.induction)
    best = max(evidence, key=lambda e: e.induction)
    names = ", ".join(f"L{e.layer}H{e.head} ({e.induction:.0%})" for e in found[:6])
    here = (
        f"On repeated random tokens {len(found)} of {len(evidence)} heads above the first layer put at least "
        f"{ROLE:.0%} of their attention on what followed the earlier occurrence: {names}."
        if found
        else f"No head reaches {ROLE:.0%}; the most is L{best.layer}H{best.head} with {percent(most)}."
    )
    return Judgement(here, verdict_of(above(most, ROLE)))


def judge_induction_by_weights(evidence: Sequence[InductionEvidence]) -> Judgement:
    """The signs of induction in the weights of the heads found by what they do."""
    known = [e for e in evidence if e.by_weights is not None]
    found = [e for e in known if e.induction >= ROLE]
    signs = [e for e in found if e.by_weights and (e.partner_previous_token or 0.0) >= ROLE]
    first = max(known, key=lambda e: e.by_weights or 0.0)
    here = (
        f"Found by attention on repeated tokens: {_names(found)}. Of these, copying and matching through the earlier "
        f"head that its keys read most, which attends to the previous token with at least {ROLE:.0%}: {_names(signs)}."
        if found
        else "No induction head was found by attention on repeated tokens."
    )
    return Judgement(
        f"{here} The highest by weights alone, L{first.layer}H{first.head}, attends to what followed with "
        f"{first.induction:.0%}.",
        verdict_of(None if not found else len(signs) == len(found), None if not found else first.induction >= ROLE),
    )


def _names(heads: Sequence[InductionEvidence]) -> str:
    return ", ".join(f"L{e.layer}H{e.head}" for e in heads) or "none"


def _one_position(m: Measurements) -> Numbers | None:
    if m.lm.n_layers < 2:
        return None
    one = m.one_position
    names = [visible(name) for name in m.lm.token_strings(one.tokens)]
    at = int(one.effects.attention.argmax())
    return {
        "head": f"L{one.layer}H{one.head}",
        "induction": max(e.induction for e in m.evidence),
        "attention": float(one.effects.attention[at]),
        "effect": float(one.effects.effect[at]),
        "attended": (at, names[at]),
        "expected": (one.expected, names[one.expected]),
    }


def judge_one_position(
    head: str, induction: float, attention: float, effect: float, attended: tuple[int, str], expected: tuple[int, str]
) -> Judgement:
    """One position of repeated text."""
    return Judgement(
        f"Head {head} gives most attention ({attention:.0%}) to position {attended[0]}, `{attended[1]}`, which adds "
        f"{effect:+.2f} to the logit of `{expected[1]}`.",
        verdict_of(*(attended[0] == expected[0], attention >= ROLE, effect > 0) if induction >= ROLE else (None,)),
    )


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "induction heads", "induction",
        "Two-layer models have induction heads: on repeated random tokens they attend to the token after the earlier "
        "occurrence.",
        "Two-layer models: induction heads",
        "Mean attention from the second half of repeated random tokens to the token after the earlier occurrence.",
        "in words",
        f"Some head reaches {ROLE:.0%}, with its interval over sequences; uniform attention gives about 1 %.",
        _induction_heads, judge_induction_heads,
    ),
    Claim(
        "induction by weights", "induction",
        "Induction heads show in the weights: a copying OV circuit, K-composition with a previous-token head, and a QK "
        "circuit that matches through it.",
        "Two-layer models: how induction heads work",
        "Eigenvalue scores of OV and of QK through the earlier head that the keys read most, and that head's attention "
        "to the previous token.",
        "in words",
        f"All heads found by what they do have positive scores and composition above random, and an earlier head that "
        f"attends to the previous token with at least {ROLE:.0%}; and the highest by weights is one of them.",
        _induction, judge_induction_by_weights,
    ),
    Claim(
        "one position", "one position",
        "An induction head attends to the token after an earlier occurrence and raises it.",
        "Two-layer models: induction heads",
        "The strongest induction head's attention, and its effect on the logit, at the last token of repeated text.",
        "in words",
        f"Most attention, at least {ROLE:.0%}, goes to the token after the earlier occurrence and raises its logit. A "
        f"head below {ROLE:.0%} on repeated random tokens is no induction head and is not judged.",
        _one_position, judge_one_position,
    ),
)  # fmt: skip
