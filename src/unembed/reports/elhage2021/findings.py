"""What the paper found beside what was found here, and whether it agrees."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from unembed.attention.circuits import Circuits
from unembed.attention.direct_path import DirectPath
from unembed.attention.erasure import MemoryManagement
from unembed.attention.expansion import Expansion
from unembed.attention.head_scores import HeadScores
from unembed.attention.in_context import InContext
from unembed.attention.induction import InductionEvidence
from unembed.attention.term_importance import TermImportance
from unembed.reports.claims import row
from unembed.reports.document.model import Finding, Section
from unembed.reports.elhage2021.sections.heads import ROLE
from unembed.reports.elhage2021.sections.skip_trigrams import HeadSkipTrigrams

COPIES = 0.5
"""From this copying score on a head counts as significantly copying; the paper does not state its line."""


def direct_path_findings(found: DirectPath) -> tuple[Finding, ...]:
    """The direct path stands for bigrams."""
    return (
        row(
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
        row(
            "10 of the 12 heads of the one-layer model copy significantly: the eigenvalues of their OV circuits are "
            "mostly positive.",
            f"{copies} of {n} heads have a copying score of at least {COPIES:g}; the median is "
            f"{float(scores.median()):+.2f}.",
            copies > n / 2,
            "Summarizing OV/QK matrices",
        ),
    )


def skip_trigram_findings(found: Sequence[HeadSkipTrigrams]) -> tuple[Finding, ...]:
    """What the weights say happens in text."""
    n = sum(len(r.triples) for r in found)
    occurring, likelier = sum(r.occurring for r in found), sum(r.likelier for r in found)
    return (
        row(
            "One-layer models are bigrams and skip-trigrams, which can be read off the weights.",
            f"Of the {n} largest triples of the heads of layer 0, {occurring} occur in the corpus; in {likelier} of "
            "these the output follows the destination more often when the source stands earlier.",
            likelier > occurring / 2 if occurring else None,
            "One-layer models: skip-trigrams",
        ),
    )


def bug_findings(section: Section) -> tuple[Finding, ...]:
    """Factored tables raise what they should not."""
    crossed = [row["crossed"] for row in section.exhibits[0].table.rows()]
    n = sum(c > 0 for c in crossed)
    return (
        row(
            "Heads raise crossed pairs by mistake, as (keep ... in, bay) beside (keep ... in, mind).",
            f"For {n} of {len(crossed)} sources tried the head raises crossed pairs that never occur, "
            f"{sum(crossed)} in all.",
            n > 0,
            "Skip-trigram bugs",
        ),
    )


def expansion_findings(found: Expansion) -> tuple[Finding, ...]:
    """Logits are sums over paths."""
    kind = "exactly" if found.exact else "with patterns and norm scales frozen"
    return (
        row(
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
    first = row(
        "Virtual attention heads (paths through two heads) take off much less of the loss than single heads.",
        f"Single heads take off {reductions[0]:+.2f} nats, pairs {reductions[1]:+.2f}; per term "
        f"{float(found.reductions_per_term[0]):.1e} and {float(found.reductions_per_term[1]):.1e}.",
        reductions[0] > 2 * reductions[1],
        "How much does each term matter",
    )
    best = max(range(len(layers)), key=lambda n: layers[n])
    second = row(
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
    peaks = {m: _strongest(t) for m, t in tops.items()}
    above, writer, reader = peaks["k"]
    previous = float(scores.previous_token[writer])
    most = scores.top("previous_token", 1)[0]
    return (
        row(
            "The K-composition that stands out is with a previous-token head.",
            f"The strongest K-composition ({above:+.3f} above random) is of {writer[0]}.{writer[1]} (attends to "
            f"the previous token with {previous:.0%}) with {reader[0]}.{reader[1]}; the head that attends there most "
            f"is {most[0]}.{most[1]} ({most[2]:.0%}).",
            previous >= ROLE,
            "Two-layer models: composition",
        ),
        *(_small(mode, tops[mode], peaks[mode], above) for mode in "qv"),
    )


def _strongest(above: Tensor) -> tuple[float, tuple[int, int], tuple[int, int]]:
    """The largest entry of (layer, head, later layer, later head), with writer and reader."""
    value, at = above.flatten().max(dim=0)
    n_heads, n_layers = above.shape[1], above.shape[2]
    writer, reader = divmod(int(at), n_layers * n_heads)
    return float(value), divmod(writer, n_heads), divmod(reader, n_heads)


def _small(mode: str, above: Tensor, peak: tuple[float, tuple[int, int], tuple[int, int]], most: float) -> Finding:
    """Whether one kind of composition stays below half of the strongest K-composition."""
    value, writer, reader = peak
    n = int((above > most / 2).sum())
    said = "no pair" if n == 0 else f"{n} pair{'s' * (n > 1)}"
    if value >= most:
        beside = "as strong as the strongest K-composition or stronger"
    else:
        beside = f"{value / most:.0%} of the strongest K-composition"
    return row(
        f"{mode.upper()}-composition is small in the two-layer model.",
        f"Its strongest pair, {writer[0]}.{writer[1]} with {reader[0]}.{reader[1]}, is {value:+.3f} above random, "
        f"{beside}; {said} reaches half of that. Small here means that none does.",
        n == 0,
        "Two-layer models: composition",
    )


def induction_findings(evidence: list[InductionEvidence]) -> tuple[Finding, ...]:
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
        row(
            "Two-layer models have induction heads: on repeated random tokens they attend to the token after the "
            "earlier occurrence.",
            said + "." if found else none,
            bool(found),
            "Two-layer models: induction heads",
        ),
        row(
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
    gain, half = whole.score, half_width(whole.differences)
    made = [
        row(
            "Models learn in context: later tokens are predicted better than earlier ones.",
            f"The loss around position {whole.late} is {gain:+.2f} ± {half:.2f} nats from that around {whole.early} "
            f"({whole.n_windows} windows).",
            None if abs(gain) <= half else gain < 0,
            "Induction heads",
        )
    ]
    if without is not None:
        lost = without.differences - whole.differences
        most = [(float(lost.mean()), half_width(lost))]
        said = (
            f"Without {_heads(without)} the difference is {without.score:+.2f} nats (with: {gain:+.2f}): "
            f"{most[0][0]:+.2f} ± {most[0][1]:.2f} over the same windows."
        )
        if control is not None:
            beside = without.differences - control.differences
            most.append((float(beside.mean()), half_width(beside)))
            said += f" With {_heads(control)} taken away instead it is {control.score:+.2f}."
        low = all(change - width > 0 for change, width in most)
        high = any(change + width < 0 for change, width in most)
        made.append(
            row("Induction heads attribution for much of it.", said, True if low else False if high else None,
                    "Induction heads")
        )  # fmt: skip
    return tuple(made)


def half_width(values: Tensor) -> float:
    """Half the 95 % interval of a mean over windows (normal approximation); infinite for a single one."""
    return float(1.96 * values.std(correction=1) / len(values) ** 0.5) if len(values) > 1 else float("inf")


def _heads(found: InContext) -> str:
    return ", ".join(f"{a}.{h}" for a, h in found.ablated)


def stream_findings(memory: MemoryManagement) -> tuple[Finding, ...]:
    """Some parts erase what earlier ones wrote."""
    if not memory.memories:
        return ()
    first = memory.memories[0]
    n = sum(memory.counts)
    on_text = "" if first.opposes is None else f" On text it writes against what it finds in {first.opposes:.0%}."
    return (
        row(
            "Some MLP neurons and heads perform memory management: they read a direction and write its negative.",
            f"{n:,} of {memory.n_memories:,} memories have key and value five standard deviations more opposed than "
            f"random ones; the most is {first.layer}.{first.index} (cosine {first.cosine:.2f}).{on_text}",
            n > 0,
            "The residual stream as a communication channel",
        ),
    )
