"""What the paper found beside what was found here, and whether it agrees."""

from __future__ import annotations

from torch import Tensor

from unembed.attention.circuits import Circuits
from unembed.attention.direct_path import DirectPath
from unembed.attention.erasing import MemoryManagement
from unembed.attention.expansion import Expansion
from unembed.attention.head_scores import HeadScores
from unembed.attention.importance import TermImportance
from unembed.attention.in_context import InContext
from unembed.attention.induction import Evidence
from unembed.reports.elhage2021_heads import ROLE
from unembed.reports.parts import Finding, Section

COPIES = 0.5
"""From this copying score on a head counts as significantly copying; the paper does not state its line."""


def direct_path_findings(found: DirectPath) -> tuple[Finding, ...]:
    """The direct path stands for bigrams."""
    return (
        Finding(
            "A zero-layer model, and the direct path of larger ones, approximates bigram log-likelihoods.",
            f"Rank correlation with bigram counts {found.mean_spearman:.2f} (weighted by occurrences); cross-entropy "
            f"{found.cross_entropy:.2f} nats, bigram model {found.bigram_cross_entropy:.2f}, frequencies alone "
            f"{found.unigram_cross_entropy:.2f}.",
            found.cross_entropy < found.unigram_cross_entropy and found.mean_spearman > 0,
            "Zero-layer transformers",
        ),
    )


def copying_findings(scores: Tensor) -> tuple[Finding, ...]:
    """Most heads copy."""
    n, copies = scores.numel(), int((scores >= COPIES).sum())
    return (
        Finding(
            "10 of the 12 heads of the one-layer model copy significantly: the eigenvalues of their OV circuits are "
            "mostly positive.",
            f"{copies} of {n} heads have a copying score of at least {COPIES:g}; the median is "
            f"{float(scores.median()):+.2f}.",
            copies > n / 2,
            "Summarizing OV/QK matrices",
        ),
    )


def skip_trigram_findings(sections: list[Section]) -> tuple[Finding, ...]:
    """What the weights say happens in text."""
    rows = [row for s in sections for e in s.exhibits for row in e.table.rows()]
    seen = [r for r in rows if r["times"]]
    higher = [r for r in seen if r["rate_without"] is None or r["rate_with_source"] > r["rate_without"]]
    return (
        Finding(
            "One-layer models are bigrams and skip-trigrams, which can be read off the weights.",
            f"Of the {len(rows)} largest triples {len(seen)} occur in the corpus; for {len(higher)} of these the "
            "output follows the destination more often when the source stands earlier.",
            len(higher) > len(seen) / 2 if seen else None,
            "One-layer models: skip-trigrams",
        ),
    )


def bug_findings(section: Section) -> tuple[Finding, ...]:
    """Factored tables raise what they should not."""
    n = len(section.exhibits[0].table)
    return (
        Finding(
            "Heads raise crossed pairs by mistake, as (keep ... in, bay) beside (keep ... in, mind).",
            f"{n} crossed pairs that never occur are raised." if n else "No crossed pair among those compared.",
            n > 0,
            "Skip-trigram bugs",
        ),
    )


def expansion_findings(found: Expansion) -> tuple[Finding, ...]:
    """Logits are sums over paths."""
    kind = "exactly" if found.exact else "with patterns and norm scales frozen"
    return (
        Finding(
            "The logits of an attention-only model are a sum over paths through heads.",
            f"{len(found)} terms and the remainder give all logits {kind}, relative error {found.error:.0e}.",
            found.error < 1e-4 if found.exact else None,
            "Path expansion of logits",
        ),
    )


def importance_findings(found: TermImportance) -> tuple[Finding, ...]:
    """Single heads matter most, virtual heads little."""
    reductions = found.reductions.tolist()
    layers = found.layer_reductions.tolist()
    first = Finding(
        "Virtual attention heads (paths through two heads) take off much less of the loss than single heads.",
        f"Single heads take off {reductions[0]:+.2f} nats, pairs {reductions[1]:+.2f}; per term "
        f"{float(found.reductions_per_term[0]):.1e} and {float(found.reductions_per_term[1]):.1e}.",
        reductions[0] > 2 * reductions[1],
        "How much does each term matter",
    )
    best = max(range(len(layers)), key=lambda n: layers[n])
    second = Finding(
        "Of the single heads, those of the second layer matter most.",
        "Alone on the direct path, the heads of each layer take off "
        + ", ".join(f"{v:.2f} (layer {n})" for n, v in enumerate(layers))
        + " nats.",
        best == 1 if len(layers) == 2 else None,
        "How much does each term matter",
    )
    return first, second


def composition_findings(circuits: Circuits, scores: HeadScores, basis: str, seed: int) -> tuple[Finding, ...]:
    """K-composition with a previous-token head stands out."""
    tops = {m: circuits.composition(m, baseline=True, basis=basis, seed=seed) for m in "qkv"}
    best = int(tops["k"].flatten().argmax())
    heads, layers = circuits.lm.n_heads, circuits.lm.n_layers
    writer = divmod(best // (layers * heads), heads)
    reader = divmod(best % (layers * heads), heads)
    previous = float(scores.previous_token[writer])
    most = scores.top("previous_token", 1)[0]
    peaks = {mode: float(t.max()) for mode, t in tops.items()}
    return (
        Finding(
            "The K-composition that stands out is with a previous-token head.",
            f"The strongest K-composition ({peaks['k']:+.3f} above random) is of {writer[0]}.{writer[1]} (attends to "
            f"the previous token with {previous:.0%}) with {reader[0]}.{reader[1]}; the head that attends there most "
            f"is {most[0]}.{most[1]} ({most[2]:.0%}).",
            previous >= ROLE,
            "Two-layer models: composition",
        ),
        Finding(
            "Q- and V-composition are small in the two-layer model.",
            f"The strongest pairs above random: Q {peaks['q']:+.3f}, K {peaks['k']:+.3f}, V {peaks['v']:+.3f}. Small "
            "here means less than half of K.",
            max(peaks["q"], peaks["v"]) < peaks["k"] / 2,
            "Two-layer models: composition",
        ),
    )


def induction_findings(evidence: list[Evidence]) -> tuple[Finding, ...]:
    """Induction heads, both ways."""
    found = [e for e in evidence if e.induction >= ROLE]
    signs = [e for e in found if e.copying > 0 and e.matching > 0 and e.k_composition > 0]
    best = max(evidence, key=lambda e: e.induction)
    said = ", ".join(
        f"{e.layer}.{e.head} ({e.induction:.0%}, partner {e.partner[0]}.{e.partner[1]} with "
        f"{e.partner_previous_token:.0%} on the previous token)"
        for e in sorted(found, key=lambda e: -e.induction)[:6]
    )
    none = f"No head reaches {ROLE:.0%}; the most is {best.layer}.{best.head} with {best.induction:.1%}."
    first = evidence[0]
    return (
        Finding(
            "Two-layer models have induction heads: on repeated random tokens they attend to the token after the "
            "earlier occurrence.",
            said + "." if found else none,
            bool(found),
            "Two-layer models: induction heads",
        ),
        Finding(
            "They show in the weights: copying OV circuits, K-composition with a previous-token head, and matching QK "
            "circuits through it.",
            f"{len(signs)} of {len(found)} found by what they do have all three signs. The likeliest by weights alone, "
            f"{first.layer}.{first.head}, attends to what followed with {first.induction:.0%}.",
            (len(signs) == len(found) and first.induction >= ROLE) if found else None,
            "How induction heads work",
        ),
    )


def in_context_findings(whole: InContext, without: InContext | None, control: InContext | None) -> tuple[Finding, ...]:
    """Context lowers the loss; without induction heads it does so less."""
    made = [
        Finding(
            "Models learn in context: later tokens are predicted better than earlier ones.",
            f"The loss at position {whole.late} is {whole.score:+.2f} nats from that at {whole.early}.",
            whole.score < 0,
            "Induction heads",
        )
    ]
    if without is not None:
        heads = ", ".join(f"{a}.{h}" for a, h in without.ablated)
        beside = ""
        if control is not None:
            beside = f" As many other heads of these layers taken away: {control.score:+.2f}."
        made.append(
            Finding(
                "Induction heads account for much of it.",
                f"Without {heads} the difference is {without.score:+.2f} nats (with them {whole.score:+.2f}).{beside}",
                without.score > whole.score and (control is None or without.score > control.score),
                "Induction heads",
            )
        )
    return tuple(made)


def stream_findings(memory: MemoryManagement) -> tuple[Finding, ...]:
    """Some parts erase what earlier ones wrote."""
    if not memory.memories:
        return ()
    first = memory.memories[0]
    n = sum(memory.counts)
    on_text = "" if first.opposes is None else f" On text it writes against what it finds in {first.opposes:.0%}."
    return (
        Finding(
            "Some MLP neurons and heads perform memory management: they read a direction and write its negative.",
            f"{n:,} of {memory.n_memories:,} memories have key and value five standard deviations more opposed than "
            f"random ones; the most is {first.layer}.{first.index} (cosine {first.cosine:.2f}).{on_text}",
            n > 0,
            "The residual stream as a communication channel",
        ),
    )
