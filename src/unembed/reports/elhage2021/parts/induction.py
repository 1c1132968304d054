"""Induction heads, by their behaviour and their weights, and in-context learning (mostly from Olsson et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

from unembed.attention.behaviour.head_scores import ROLE
from unembed.attention.behaviour.in_context import (
    InContext,
    in_context,
    in_context_section,
    matched_heads,
    scores_on_text,
)
from unembed.attention.behaviour.induction import InductionEvidence, induction_missing, induction_section
from unembed.attention.behaviour.source_effects import effects_section, source_effects
from unembed.document.intervals import mean_of
from unembed.document.model import Section
from unembed.document.numbers import percent, signed
from unembed.errors import Unsupported
from unembed.names import head_name
from unembed.reports.elhage2021.measurements import Measurements
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, Row, above, judged, judged_if, once
from unembed.results import format_number, format_percent, format_setting, format_signed, format_with_interval, visible

IN_CONTEXT = 0.1
"""Smallest difference in loss, in nats, between early and late tokens that counts as in-context learning."""
MUCH = 0.5
"""Smallest share of in-context learning (how much later tokens are easier to predict) that counts as "much of it"."""


def induction_heads(m: Measurements) -> Numbers | None:
    """Return the evidence of induction for every head, and the highest induction score; None for a one-layer model."""
    if not m.evidence:
        return None
    best = max(m.evidence, key=lambda e: e.induction)
    return Numbers(evidence=m.evidence, most=m.score_of("induction", (best.layer, best.head)))


def judge_induction_heads(n: Numbers) -> Judgement:
    """Judge whether a head attends to the token that followed the earlier occurrence of the current token."""
    found = sorted((e for e in n.evidence if e.induction >= ROLE), key=lambda e: -e.induction)
    best = max(n.evidence, key=lambda e: e.induction)
    names = ", ".join(f"{head_name(e.layer, e.head)} ({format_percent(e.induction, 0)})" for e in found[:6])
    here = (
        f"On repeated random tokens {len(found)} of {len(n.evidence)} heads above the first layer put at least "
        f"{format_percent(ROLE, 0)} of their attention on what followed the earlier occurrence: {names}."
        if found
        else f"No head reaches {format_percent(ROLE, 0)}; the most is {head_name(best.layer, best.head)} with "
        f"{percent(n.most)}."
    )
    return judged(here, above(n.most, ROLE))


def by_weights(m: Measurements) -> Numbers | None:
    """Return the evidence of induction for every head; None for a model of one layer.

    Raises:
        Unsupported: the weights of no head can be tested for induction.
    """
    if m.evidence and all(e.by_weights is None for e in m.evidence):
        why = " ".join(induction_missing(m.lm, m.basis)).rstrip(".")
        raise Unsupported(f"induction by weights in {m.lm.name}", why=why)
    return Numbers(evidence=m.evidence) if m.evidence else None


def judge_by_weights(n: Numbers) -> Judgement:
    """Judge whether the heads that behave as induction heads also show induction in their weights."""
    known = [e for e in n.evidence if e.by_weights is not None]
    found = [e for e in known if e.induction >= ROLE]
    signs = [e for e in found if e.by_weights and (e.partner_previous_token or 0.0) >= ROLE]
    first = max(known, key=lambda e: e.by_weights or 0.0)
    here = (
        f"Found by attention on repeated tokens: {_names(found)}. Of these, copying and matching through the earlier "
        f"head that its keys read most, which attends to the previous token with at least {format_percent(ROLE, 0)}: "
        f"{_names(signs)}."
        if found
        else "No induction head was found by attention on repeated tokens."
    )
    return judged_if(
        bool(found),
        f"{here} The highest by weights alone, {head_name(first.layer, first.head)}, attends to what followed with "
        f"{format_percent(first.induction, 0)}.",
        len(signs) == len(found),
        first.induction >= ROLE,
    )


def explain_by_weights(m: Measurements) -> str:
    """State why some heads that behave as induction heads do not show it in their weights."""
    found = [e for e in m.evidence if e.by_weights is not None and e.induction >= ROLE]
    negative = [e for e in found if not e.by_weights]
    partner = [e for e in found if e.by_weights and (e.partner_previous_token or 0.0) < ROLE]
    apart = ""
    if partner:
        most = max(e.partner_previous_token or 0.0 for e in partner)
        apart = (
            f"; {len(partner)} read most an earlier head that attends to the previous token with at most "
            f"{format_percent(most, 0)}"
        )
    return (
        f"Of the {len(found)} heads {len(negative)} have a score of 0 or less for copying, composition or "
        f"matching{apart}."
    )


def _names(heads: Sequence[InductionEvidence]) -> str:
    return ", ".join(head_name(e.layer, e.head) for e in heads) or "none"


def induction_section_of(m: Measurements) -> Section:
    """Compare induction heads by weights and by behaviour, on random tokens and in the corpus."""
    on_text = scores_on_text(m.lm, m.corpus, max_windows=min(16, m.options.windows))
    return induction_section(m.circuits, m.evidence, m.basis, m.provenance, 24, on_text)


@once
def one_position(m: Measurements) -> Numbers | None:
    """Find where the strongest induction head attends most at the end of a repeated text.

    Also measure how much this raises the logit of the token that comes next in the repetition.
    """
    if m.lm.n_layers < 2:
        return None
    best = max(m.evidence, key=lambda e: e.induction)
    tokens = m.example[0]
    position = len(tokens) - 1
    expected = position - (len(tokens) + 1) // 2 + 1
    effects = source_effects(
        m.circuits, m.example, best.layer, best.head, position, int(tokens[expected]), carried=m.carried
    )
    names = [visible(name) for name in m.lm.token_strings(tokens)]
    at = int(effects.attention.argmax())
    return Numbers(
        head=head_name(best.layer, best.head),
        induction=best.induction,
        attention=float(effects.attention[at]),
        effect=float(effects.effect[at]),
        attended=(at, names[at]),
        expected=(expected, names[expected]),
        last=names[-1],
        effects=effects,
    )


def judge_one_position(n: Numbers) -> Judgement:
    """Judge whether the strongest induction head attends to the right position and raises the token there."""
    (at, token), (expected, wanted) = n.attended, n.expected
    return judged_if(
        n.induction >= ROLE,
        f"Head {n.head} gives most attention ({format_percent(n.attention, 0)}) to position {at}, `{token}`, which "
        f"adds {format_signed(n.effect)} to the logit of `{wanted}`.",
        at == expected,
        n.attention >= ROLE,
        n.effect > 0,
    )


def one_position_section(m: Measurements) -> Section:
    """Show where the strongest induction head attends at one position, and how that changes the logits."""
    n, tokens = one_position(m), m.example[0]
    assert n is not None
    text = (
        f"A text of {(len(tokens) + 1) // 2} tokens, repeated. At the last token, `{n.last}`, head {n.head} should "
        f"attend to the token after the earlier occurrence, `{n.expected[1]}`, and raise it.",
    )
    return effects_section(m.lm, tokens, n.effects, n.head, m.provenance, "source_effects", text=text)


@once
def losses(m: Measurements) -> Numbers | None:
    """Measure the loss at each position with all heads, without induction heads, and without control heads.

    The control heads are heads of the same layers whose outputs have the most similar norm. The result is None if no
    document has 32 tokens.
    """
    whole = m.loss_in_context
    if whole is None:
        return None
    best = sorted(m.evidence, key=lambda e: -e.induction)
    heads = [(e.layer, e.head) for e in best if e.induction >= ROLE] or [(e.layer, e.head) for e in best[:1]]
    if not heads:
        return Numbers(whole=whole, without=None, others=None, seed=m.seed)
    others = matched_heads(m.output_lengths, heads)

    def ablated(chosen: list[tuple[int, int]]) -> InContext:
        return in_context(m.lm, m.corpus, chosen, window=whole.window, max_windows=m.options.windows)

    return Numbers(whole=whole, without=ablated(heads), others=ablated(others) if others else None, seed=m.seed)


def loss_rows(n: Numbers) -> tuple[Row, ...]:
    """Return rows with the losses at early and late positions, and with the losses of recurring and new next tokens."""
    whole: InContext = n.whole
    each = {
        f"loss around position {whole.early}": whole.around(whole.early),
        f"loss around position {whole.late}": whole.around(whole.late),
        "loss of next tokens that occurred earlier in the window": whole.losses_of(repeated=True),
        "loss of new next tokens": whole.losses_of(repeated=False),
    }
    return tuple(Row(name, mean_of(loss.tolist(), seed=n.seed), unit="nats") for name, loss in each.items())


def judge_in_context(n: Numbers) -> Judgement:
    """Judge whether the loss is lower late in the window than early in it."""
    gain = mean_of((-n.whole.differences).tolist(), seed=n.seed)
    return judged(
        f"The loss around position {n.whole.late} is {signed(gain)} nats below that around {n.whole.early} "
        f"({n.whole.n_windows} windows).",
        above(gain, IN_CONTEXT) if n.whole.n_windows > 1 else None,
    )


def judge_ablation(n: Numbers) -> Judgement | None:
    """Judge whether removing induction heads shrinks the lead of late tokens more than removing control heads.

    The lead is how much lower the loss of late tokens is than that of early tokens.
    """
    if n.without is None:
        return None
    gain = mean_of((-n.whole.differences).tolist(), seed=n.seed)
    here = (
        f"Late tokens gain {format_number(gain.value)} nats on early ones; without {_ablated(n.without)} they gain "
        f"{format_number(-n.without.score)}"
    )
    if gain.value <= 0:
        return Judgement(f"{here}. There is no gain to lose a share of.", "not applicable")
    share = mean_of(((n.without.differences - n.whole.differences) / gain.value).tolist(), seed=n.seed)
    here += f", a loss of {format_with_interval(share.value, share.low, share.high, percent=True, decimals=0)}."
    beyond = None
    if n.others is not None:
        beside = mean_of((n.without.differences - n.others.differences).tolist(), seed=n.seed)
        here += (
            f" Without {_ablated(n.others)}, nearest to them in output length, they gain "
            f"{format_number(-n.others.score)}."
        )
        beyond = above(beside, 0.0)
    learns = above(gain, IN_CONTEXT) if n.whole.n_windows > 1 else None
    return judged(here, *((above(share, MUCH), beyond) if learns else (None,)))


def _ablated(found: InContext) -> str:
    return ", ".join(head_name(a, h) for a, h in found.ablated)


def in_context_section_of(m: Measurements) -> Section | None:
    """Show the loss at each position; None if the documents are too short."""
    n = losses(m)
    return None if n is None else in_context_section(n.whole, n.without, n.others, m.provenance)


PARTS: tuple[Part[Measurements], ...] = (
    Part(
        induction_section_of,
        (
            Quantity(
                "induction heads",
                "Two-layer models have induction heads: on repeated random tokens they attend to the token after the "
                "earlier occurrence.",
                where="Two-layer models: induction heads",
                what="Mean attention from the second half of repeated random tokens to the token after the earlier "
                "occurrence.",
                published="in words",
                test=f"Some head reaches {format_percent(ROLE, 0)}, with its interval over sequences; uniform "
                "attention gives about 1 %.",
                measure=induction_heads,
                judge=judge_induction_heads,
                rows=lambda n: (Row("largest attention of a head to what followed, on repeated tokens", n.most),),
                extends=lambda m: m.lm.n_layers > 2,
            ),
            Quantity(
                "induction by weights",
                "Induction heads show in the weights: a copying OV circuit, K-composition with a previous-token head, "
                "and a QK circuit that matches through it.",
                where="Two-layer models: how induction heads work",
                what="Eigenvalue scores of OV and of QK through the earlier head that the keys read most, and that "
                "head's attention to the previous token.",
                published="in words",
                test="All heads found by what they do have positive scores and composition above random, and an "
                f"earlier head that attends to the previous token with at least {format_percent(ROLE, 0)}; and the "
                "highest by weights is one of them.",
                measure=by_weights,
                judge=judge_by_weights,
                explain=explain_by_weights,
                extends=lambda m: m.lm.n_layers > 2,
            ),
        ),
        compared="induction_measured",
        title="The strongest induction head",
        name="induction",
        when=lambda m: m.lm.n_layers > 1,
    ),
    Part(
        one_position_section,
        (
            Quantity(
                "one position",
                "An induction head attends to the token after an earlier occurrence and raises it.",
                where="Two-layer models: induction heads",
                what="The strongest induction head's attention, and its effect on the logit, at the last token of "
                "repeated text.",
                published="in words",
                test=f"Most attention, at least {format_percent(ROLE, 0)}, goes to the token after the earlier "
                f"occurrence and raises its logit. A head below {format_percent(ROLE, 0)} on repeated random tokens "
                "is no induction head and is not judged.",
                measure=one_position,
                judge=judge_one_position,
                extends=lambda m: m.lm.n_layers > 2,
            ),
        ),
        name="one position",
        when=lambda m: m.lm.n_layers > 1,
    ),
    Part(
        in_context_section_of,
        (
            Quantity(
                "in-context learning",
                "Models learn in context: later tokens are predicted better than earlier ones.",
                where="Olsson et al. 2022: in-context learning score",
                what="Loss early in a window less loss late in it.",
                published="in words",
                test=f"The difference is above {format_setting(IN_CONTEXT)} nats, with its interval over windows.",
                measure=losses,
                judge=judge_in_context,
                rows=loss_rows,
            ),
            Quantity(
                "ablation",
                "Induction heads account for much of in-context learning.",
                where="Olsson et al. 2022: ablation of induction heads",
                what="Share of the in-context gain that is lost without the induction heads.",
                published="in words",
                test=f"More than {format_percent(MUCH, 0)} of the gain is lost, and more than without the heads of "
                "the same layers whose output is nearest in length, both with their intervals over windows.",
                measure=losses,
                judge=judge_ablation,
            ),
        ),
        compared="losses_measured",
        title="Loss with all heads",
        name="in-context learning",
    ),
)
