"""The claims about learning in context, most of them of Olsson et al. 2022."""

from __future__ import annotations

from unembed.attention.behaviour.in_context import InContext
from unembed.document.intervals import mean_of
from unembed.document.numbers import signed
from unembed.reports.claims import Claim, Judgement, Numbers, above, verdict_of
from unembed.reports.elhage2021.measurements import Measurements

IN_CONTEXT = 0.1
"""Nats by which late tokens must be predicted better than early ones."""
MUCH = 0.5
"""Share of the in-context gain that is counted as "much of it"."""


def _in_context(m: Measurements) -> Numbers | None:
    found = m.in_context
    return None if found is None else {"whole": found.model, "seed": m.seed}


def judge_in_context(whole: InContext, seed: int = 0) -> Judgement:
    """Late tokens compared with early ones."""
    gain = mean_of((-whole.differences).tolist(), seed=seed)
    return Judgement(
        f"The loss around position {whole.late} is {signed(gain)} nats below that around {whole.early} "
        f"({whole.n_windows} windows).",
        verdict_of(above(gain, IN_CONTEXT) if whole.n_windows > 1 else None),
    )


def _ablation(m: Measurements) -> Numbers | None:
    found = m.in_context
    if found is None or found.without is None:
        return None
    return {"whole": found.model, "without": found.without, "others": found.without_others, "seed": m.seed}


def judge_ablation(whole: InContext, without: InContext, others: InContext | None, seed: int = 0) -> Judgement:
    """The in-context gain without induction heads, and without those nearest in output length."""
    gain = mean_of((-whole.differences).tolist(), seed=seed)
    share = mean_of(((without.differences - whole.differences) / max(gain.value, 1e-9)).tolist(), seed=seed)
    here = (
        f"Late tokens gain {gain.value:.2f} nats on early ones; without {_heads(without)} they gain "
        f"{-without.score:.2f}, a loss of {share.value:.0%} [{share.low:.0%}, {share.high:.0%}]."
    )
    beyond = None
    if others is not None:
        beside = mean_of((without.differences - others.differences).tolist(), seed=seed)
        here += f" Without {_heads(others)}, nearest to them in output length, they gain {-others.score:.2f}."
        beyond = above(beside, 0.0)
    many = whole.n_windows > 1
    learns = above(gain, IN_CONTEXT) if many else None
    conditions = (above(share, MUCH), beyond) if many and learns else (None,)
    return Judgement(here, verdict_of(*conditions))


def _heads(found: InContext) -> str:
    return ", ".join(f"L{a}H{h}" for a, h in found.ablated)


CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "in-context learning", "in-context learning",
        "Models learn in context: later tokens are predicted better than earlier ones.",
        "Olsson et al. 2022: in-context learning score",
        "Loss early in a window less loss late in it.",
        "in words",
        f"The difference is above {IN_CONTEXT:g} nats, with its interval over windows.",
        _in_context, judge_in_context,
    ),
    Claim(
        "ablation", "in-context learning",
        "Induction heads account for much of in-context learning.",
        "Olsson et al. 2022: ablation of induction heads",
        "Share of the in-context gain that is lost without the induction heads.",
        "in words",
        f"More than {MUCH:.0%} of the gain is lost, and more than without the heads of the same layers whose "
        "output is nearest in length, both with their intervals over windows.",
        _ablation, judge_ablation,
    ),
)  # fmt: skip
