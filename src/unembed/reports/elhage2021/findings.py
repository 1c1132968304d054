"""The claims of Elhage et al. 2021: one row each, with what is measured for it and the test that judges it.

Claims about the paper's one-layer and two-layer models are judged on models of that depth; elsewhere the numbers are
shown and the verdict is open. All heads are measured, so shares of heads have no interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unembed.attention.erasure import MemoryManagement
from unembed.attention.in_context import InContext
from unembed.attention.induction import InductionEvidence
from unembed.reports.claims import Claim, Judgement, above, verdict_of
from unembed.reports.document.intervals import Measured, mean_of
from unembed.reports.elhage2021.measurements import DRAWS, ROLE, Measurements

Numbers = Mapping[str, Any]

COPIES = 0.5
"""Copying score from which on a head counts as copying; the paper does not state its line."""
PARTIAL = 0.05
"""Partial rank correlation of the direct path with bigrams; random embeddings give 0."""
MATTERS = 0.05
"""Nats that the heads must take off the loss before their orders are compared."""
BIGRAM_GAIN = 0.5
"""Share of what bigrams gain on token frequencies that a model of the bigram table must reach."""
IN_CONTEXT = 0.1
"""Nats by which late tokens must be predicted better than early ones."""
MUCH = 0.5
"""Share of the in-context gain that counts as much of it."""
STANDS_OUT = 5.0
"""Standard deviations above random circuits from which on a composition stands out."""


def _at_depth(n_layers: int, depth: int, *conditions: bool | None) -> tuple[bool | None, ...]:
    """The conditions, or an open one where the claim is about models of another depth."""
    return conditions if n_layers == depth else (None,)


def _signed(measured: Measured, unit: str = "") -> str:
    return f"{measured.value:+.2f} [{measured.low:+.2f}, {measured.high:+.2f}]{unit}"


# Zero layers.


def _bigram_table(m: Measurements) -> Numbers | None:
    found = m.direct_path
    if m.lm.n_layers:
        return None
    return {"losses": (found.cross_entropy, found.bigram_cross_entropy, found.unigram_cross_entropy)}


def judge_bigram_table(losses: tuple[float, float, float]) -> Judgement:
    """The cross-entropy of a model without layers beside that of bigrams and of token frequencies."""
    own, bigrams, unigrams = losses
    gain = (unigrams - own) / (unigrams - bigrams) if unigrams > bigrams else None
    return Judgement(
        f"It predicts the text at {own:.2f} nats a token; bigrams of the other half of the corpus at "
        f"{bigrams:.2f}, token frequencies at {unigrams:.2f}"
        + ("." if gain is None else f": {gain:.0%} of what bigrams gain on frequencies."),
        verdict_of(None if gain is None else gain > BIGRAM_GAIN),
    )


def _direct_path(m: Measurements) -> Numbers | None:
    if not m.lm.n_layers:
        return None
    found = m.direct_path
    return {
        "partial": mean_of(found.partial.numpy(), seed=m.seed),
        "spearman": found.mean_spearman,
        "frequency": found.mean(found.frequency),
        "ceiling": found.mean(found.ceiling),
        "losses": (found.cross_entropy, found.bigram_cross_entropy, found.unigram_cross_entropy),
    }


def judge_direct_path(
    partial: Measured, spearman: float, frequency: float, ceiling: float, losses: tuple[float, float, float]
) -> Judgement:
    """The direct path beside bigram counts."""
    own, bigrams, unigrams = losses
    return Judgement(
        f"With token frequency held fixed, its logits correlate by rank with bigram counts by {_signed(partial)}. "
        f"Without, by {spearman:.2f}; token frequency alone reaches {frequency:.2f}, the other half of the text "
        f"{ceiling:.2f}. Cross-entropy: {own:.2f} nats, bigrams {bigrams:.2f}, frequencies {unigrams:.2f}.",
        verdict_of(above(partial, PARTIAL)),
    )


# One layer.


def _copying(m: Measurements) -> Numbers:
    return {"n_layers": m.lm.n_layers, "scores": m.copying.score.flatten().tolist()}


def judge_copying(n_layers: int, scores: Sequence[float]) -> Judgement:
    """How many heads copy."""
    copies = sum(s >= COPIES for s in scores)
    return Judgement(
        f"{copies} of {len(scores)} heads have a copying score of at least {COPIES:g}; the median is "
        f"{float(np.median(scores)):+.2f}.",
        verdict_of(*_at_depth(n_layers, 1, copies > len(scores) / 2)),
    )


def _skip_trigrams(m: Measurements) -> Numbers:
    gains: list[float] = []
    likelier, chance, occurring, n = 0, 0.0, 0, 0
    for found in m.skip_trigrams:
        k = len(found.triples)
        for i, counts in enumerate(found.counts):
            others = [found.shuffled[i + draw * k] for draw in range(DRAWS)]
            own = [c for c in [counts] if c.with_source and c.without_source]
            controls = [c.rate_with > c.rate_without for c in others if c.with_source and c.without_source]
            if own and controls:
                gains.append(float(counts.rate_with > counts.rate_without) - float(np.mean(controls)))
                likelier += counts.rate_with > counts.rate_without
                chance += float(np.mean(controls))
        occurring += found.occurring
        n += k
    return {
        "n_layers": m.lm.n_layers,
        "gain": mean_of(gains, seed=m.seed),
        "likelier": likelier / max(len(gains), 1),
        "shuffled": chance / max(len(gains), 1),
        "occurring": occurring,
        "n": n,
    }


def judge_skip_trigrams(
    n_layers: int, gain: Measured, likelier: float, shuffled: float, occurring: int, n: int
) -> Judgement:
    """Triples in the corpus, beside the same triples with one another's sources."""
    return Judgement(
        f"Of the {n} largest triples of the first layer's heads, {occurring} occur in the corpus. In {likelier:.0%} of "
        f"the {gain.n} whose destination stands both with and without the source, the output is likelier with it; "
        f"with the sources shuffled among the triples, in {shuffled:.0%}.",
        verdict_of(*_at_depth(n_layers, 1, above(gain, 0.0))),
    )


def _bugs(m: Measurements) -> Numbers | None:
    if m.bugs is None:
        return None
    occurring = [t.occurring for t in m.bugs.tables]
    return {
        "n_layers": m.lm.n_layers,
        "gain": mean_of(np.array(occurring) - np.array(m.bugs.chance_occurring), seed=m.seed),
        "occurring": float(np.mean(occurring)),
        "chance_occurring": float(np.mean(m.bugs.chance_occurring)),
        "crossed": float(np.mean([len(t.pairs) for t in m.bugs.tables])),
        "chance_crossed": float(np.mean(m.bugs.chance_crossed)),
    }


def judge_bugs(
    n_layers: int, gain: Measured, occurring: float, chance_occurring: float, crossed: float, chance_crossed: float
) -> Judgement:
    """Pairs raised after a source, beside tables of random tokens of the same frequencies."""
    return Judgement(
        f"After a source the head raises {occurring:.1f} pairs that occur ({chance_occurring:.1f} in tables of random "
        f"tokens of the same frequencies) and, with them, {crossed:.1f} crossed pairs that never do "
        f"({chance_crossed:.1f}).",
        verdict_of(*_at_depth(n_layers, 1, above(gain, 0.0), crossed > 0)),
    )


# Path expansion.


def _expansion(m: Measurements) -> Numbers:
    return {"exact": m.expansion.exact, "error": m.expansion.error, "n_terms": len(m.expansion)}


def judge_expansion(exact: bool, error: float, n_terms: int) -> Judgement:
    """The sum over paths against the model's logits."""
    kind = "exactly" if exact else "with patterns and norm scales frozen"
    return Judgement(
        f"{n_terms} terms and the remainder give all logits {kind}, relative error {error:.0e}.",
        verdict_of(error < 1e-4 if exact else None),
    )


def _term_importance(m: Measurements) -> Numbers | None:
    if m.lm.n_layers < 2:
        return None
    found = m.term_importance
    return {
        "reductions": found.reductions.tolist(),
        "per_term": found.reductions_per_term.tolist(),
        "by_layer": found.layer_reductions.tolist(),
    }


def judge_virtual_heads(reductions: Sequence[float], per_term: Sequence[float], **_: Any) -> Judgement:
    """All orders above 1 beside order 1."""
    single, virtual = reductions[0], sum(reductions[1:])
    return Judgement(
        f"Single heads take {single:+.2f} nats off the loss, all paths through two or more heads {virtual:+.2f}; a "
        f"single head {per_term[0]:.1e} on average, a pair {per_term[1]:.1e}.",
        verdict_of(single > 2 * virtual if single >= MATTERS else None),
    )


def judge_second_layer(by_layer: Sequence[float], **_: Any) -> Judgement:
    """The single heads of each layer."""
    parts = ", ".join(f"{v:+.2f} (layer {n})" for n, v in enumerate(by_layer))
    condition = by_layer[-1] > 2 * by_layer[0] if max(by_layer) >= MATTERS else None
    return Judgement(
        f"Alone on the direct path, the heads of each layer take {parts} nats off the loss.",
        verdict_of(*_at_depth(len(by_layer), 2, condition)),
    )


# Composition.


def _composition(m: Measurements) -> Numbers | None:
    if m.lm.n_layers < 2:
        return None
    peaks = {mode: _strongest(ratios) for mode, ratios in m.compositions.items()}
    _, writer, _ = peaks["k"]
    chance = m.circuits.random_composition(m.seed)
    most = peaks["k"][0] - chance
    return {
        "n_layers": m.lm.n_layers,
        "peaks": {mode: (value - chance, a, b) for mode, (value, a, b) in peaks.items()},
        "z": float(m.circuits.composition_z(torch.tensor(peaks["k"][0]), m.seed)),
        "previous": float(m.scores.previous_token[writer]),
        "n_reaching_half": {mode: int(((ratios - chance) > most / 2).sum()) for mode, ratios in m.compositions.items()},
    }


def _strongest(ratios: Tensor) -> tuple[float, tuple[int, int], tuple[int, int]]:
    """The largest entry of (layer, head, later layer, later head), with writer and reader."""
    value, at = ratios.flatten().max(dim=0)
    n_heads, n_layers = ratios.shape[1], ratios.shape[2]
    writer, reader = divmod(int(at), n_layers * n_heads)
    return float(value), divmod(writer, n_heads), divmod(reader, n_heads)


def judge_k_composition(z: float, previous: float, peaks: Mapping[str, Any], **_: Any) -> Judgement:
    """The strongest K-composition, and what its earlier head attends to."""
    value, writer, reader = peaks["k"]
    return Judgement(
        f"The strongest K-composition, {writer[0]}.{writer[1]} read by {reader[0]}.{reader[1]}, is {value:+.3f} above "
        f"random circuits, {z:.0f} standard deviations; {writer[0]}.{writer[1]} attends to the previous token with "
        f"{previous:.0%}.",
        verdict_of(z >= STANDS_OUT, previous >= ROLE),
    )


def _judge_small(mode: str, n_layers: int, z: float, peaks: Mapping[str, Any], n: int) -> Judgement:
    value, writer, reader = peaks[mode]
    beside = f"{value / peaks['k'][0]:.0%} of" if 0 <= value < peaks["k"][0] else "not below"
    return Judgement(
        f"The strongest pair, {writer[0]}.{writer[1]} with {reader[0]}.{reader[1]}, is {value:+.3f} above random "
        f"circuits, {beside} the strongest K-composition; {n} pair{'s' * (n != 1)} reach half of that.",
        verdict_of(*_at_depth(n_layers, 2, n == 0 if z >= STANDS_OUT else None)),
    )


def judge_q_composition(
    n_layers: int, z: float, peaks: Mapping[str, Any], n_reaching_half: Mapping[str, int], **_: Any
) -> Judgement:
    """Q-composition beside the strongest K-composition."""
    return _judge_small("q", n_layers, z, peaks, n_reaching_half["q"])


def judge_v_composition(
    n_layers: int, z: float, peaks: Mapping[str, Any], n_reaching_half: Mapping[str, int], **_: Any
) -> Judgement:
    """V-composition beside the strongest K-composition."""
    return _judge_small("v", n_layers, z, peaks, n_reaching_half["v"])


# Induction.


def _induction(m: Measurements) -> Numbers | None:
    return {"evidence": m.evidence} if m.evidence else None


def judge_induction_heads(evidence: Sequence[InductionEvidence]) -> Judgement:
    """Heads that attend to the token after the earlier occurrence."""
    found = sorted((e for e in evidence if e.induction >= ROLE), key=lambda e: -e.induction)
    best = max(evidence, key=lambda e: e.induction)
    names = ", ".join(f"{e.layer}.{e.head} ({e.induction:.0%})" for e in found[:6])
    here = (
        f"On repeated random tokens {len(found)} heads do so with at least {ROLE:.0%}: {names}."
        if found
        else f"No head reaches {ROLE:.0%}; the most is {best.layer}.{best.head} with {best.induction:.1%}."
    )
    return Judgement(here, verdict_of(bool(found)))


def judge_induction_by_weights(evidence: Sequence[InductionEvidence]) -> Judgement:
    """The signs of induction in the weights of the heads found by what they do."""
    found = [e for e in evidence if e.induction >= ROLE]
    signs = [e for e in found if min(e.copying, e.matching, e.k_composition) > 0 and e.partner_previous_token >= ROLE]
    first = max(evidence, key=lambda e: e.by_weights)
    return Judgement(
        f"{len(signs)} of the {len(found)} heads found by what they do copy, match through the earlier head that their "
        f"keys read most, and that head attends to the previous token with at least {ROLE:.0%}. The likeliest by "
        f"weights alone, {first.layer}.{first.head}, attends to what followed with {first.induction:.0%}.",
        verdict_of(None if not found else len(signs) == len(found), None if not found else first.induction >= ROLE),
    )


def _one_position(m: Measurements) -> Numbers | None:
    if m.lm.n_layers < 2:
        return None
    one = m.one_position
    names = m.lm.token_strings(one.tokens)
    at = int(one.effects.attention.argmax())
    return {
        "head": f"{one.layer}.{one.head}",
        "attention": float(one.effects.attention[at]),
        "effect": float(one.effects.effect[at]),
        "attended": (at, names[at]),
        "expected": (one.expected, names[one.expected]),
    }


def judge_one_position(
    head: str, attention: float, effect: float, attended: tuple[int, str], expected: tuple[int, str]
) -> Judgement:
    """One position of repeated text."""
    return Judgement(
        f"Head {head} gives most attention ({attention:.0%}) to position {attended[0]}, `{attended[1]}`, which adds "
        f"{effect:+.2f} to the logit of `{expected[1]}`.",
        verdict_of(attended[0] == expected[0], attention >= ROLE, effect > 0),
    )


# Learning in context.


def _in_context(m: Measurements) -> Numbers | None:
    found = m.in_context
    return None if found is None else {"whole": found.model, "seed": m.seed}


def judge_in_context(whole: InContext, seed: int = 0) -> Judgement:
    """Late tokens beside early ones."""
    gain = mean_of((-whole.differences).tolist(), seed=seed)
    return Judgement(
        f"The loss around position {whole.late} is {_signed(gain)} nats below that around {whole.early} "
        f"({whole.n_windows} windows).",
        verdict_of(above(gain, IN_CONTEXT) if whole.n_windows > 1 else None),
    )


def _ablation(m: Measurements) -> Numbers | None:
    found = m.in_context
    if found is None or found.without is None:
        return None
    return {"whole": found.model, "without": found.without, "others": found.without_others, "seed": m.seed}


def judge_ablation(whole: InContext, without: InContext, others: InContext | None, seed: int = 0) -> Judgement:
    """The in-context gain without induction heads, and without other heads of equal output."""
    gain = mean_of((-whole.differences).tolist(), seed=seed)
    share = mean_of(((without.differences - whole.differences) / max(gain.value, 1e-9)).tolist(), seed=seed)
    here = (
        f"Late tokens gain {gain.value:.2f} nats on early ones; without {_heads(without)} they gain "
        f"{-without.score:.2f}, a loss of {share.value:.0%} [{share.low:.0%}, {share.high:.0%}]."
    )
    beyond = None
    if others is not None:
        beside = mean_of((without.differences - others.differences).tolist(), seed=seed)
        here += f" Without {_heads(others)}, whose output in the same layers is as long, they gain {-others.score:.2f}."
        beyond = above(beside, 0.0)
    many = whole.n_windows > 1
    learns = above(gain, IN_CONTEXT) if many else None
    conditions = (above(share, MUCH), beyond) if many and learns else (None,)
    return Judgement(here, verdict_of(*conditions))


def _heads(found: InContext) -> str:
    return ", ".join(f"{a}.{h}" for a, h in found.ablated)


# The stream.


def _memory_management(m: Measurements) -> Numbers:
    return {"found": m.memory_management}


def judge_memory_management(found: MemoryManagement) -> Judgement:
    """Memories and heads that oppose what is there and leave less of it."""
    memories = [e for e in found.memories if e.cosine < found.threshold and e.on_text is not None]
    heads = [e for e in found.erasing_heads if e.negative_share > found.head_threshold and e.on_text is not None]
    outcomes = [e.on_text.erases for e in (*memories, *heads) if e.on_text is not None]
    erasing = [sum(e.on_text is not None and e.on_text.erases is True for e in some) for some in (memories, heads)]
    here = (
        f"{sum(found.counts):,} of {found.n_memories:,} memories (FFN neurons) have key and value more than five "
        f"standard deviations of random directions opposed; of the {len(memories)} most opposed, {erasing[0]} oppose "
        f"what is there on text and leave less of it. "
        if found.n_memories
        else ""
    )
    here += (
        f"{len(heads)} heads have a share of negative OV eigenvalues above {found.head_threshold:.2f} (random heads: "
        f"{found.chance[0]:.2f}); {erasing[1]} of them erase on text."
    )
    condition = True if True in outcomes else None if None in outcomes else False
    return Judgement(here, verdict_of(condition))


_BIGRAMS = "Zero-layer transformers"
_TERMS = "Two-layer models: term importance analysis"
_COMPOSITION = "Two-layer models: three kinds of composition"
CLAIMS: tuple[Claim[Measurements], ...] = (
    Claim(
        "bigram table", "zero layers",
        "Token embedding times unembedding approximates the bigram log-likelihood: the best that a model without "
        "layers can do.",
        _BIGRAMS,
        "Share of the nats that bigrams gain on token frequencies, of a model without layers.",
        "in words",
        f"The share is above {BIGRAM_GAIN:g}. A model that knows token frequencies alone has 0; the bigrams compared "
        "with are those of half the corpus, smoothed, so that more than 1 is possible.",
        _bigram_table, judge_bigram_table,
    ),
    Claim(
        "direct path", "zero layers",
        "The direct path of a model with layers represents bigram statistics that its more general rules do not: a "
        "residual of the bigram table. Only a model without layers approximates the table itself.",
        _BIGRAMS,
        "Rank correlation of the direct path's logits with bigram counts, token frequency held fixed.",
        "in words",
        f"The mean over the 200 most frequent tokens is above {PARTIAL:g}, with its interval: embeddings that know "
        "nothing of bigrams give 0, and token frequency is held fixed because it alone correlates with the counts.",
        _direct_path, judge_direct_path,
    ),
    Claim(
        "copying", "copying",
        "Most heads of the one-layer model copy significantly: the eigenvalues of their OV circuits are mostly "
        "positive.",
        "One-layer models: summarizing OV/QK matrices",
        "Copying score: sum of the eigenvalues over the sum of their sizes.",
        "10 of 12 heads",
        f"More than half of the heads of a one-layer model reach {COPIES:g}; random circuits scatter around 0.",
        _copying, judge_copying,
    ),
    Claim(
        "skip-trigrams", "skip-trigrams",
        "One-layer models are an ensemble of bigram and skip-trigram models, which can be read off the weights.",
        "One-layer models: skip-trigrams",
        "Share of the heads' largest triples whose output follows the destination more often when the source stands "
        "earlier.",
        "in words",
        "The share is above that of the same triples with shuffled sources, with its interval over triples: a triple "
        "made of frequent tokens is likelier in some texts whatever its source is.",
        _skip_trigrams, judge_skip_trigrams,
    ),
    Claim(
        "bugs", "skip-trigram bugs",
        "Because QK and OV are separate, a head that raises (keep ... in, mind) and (keep ... at, bay) must also raise "
        "(keep ... in, bay).",
        "One-layer models: skip-trigram bugs",
        "Occurring and crossed pairs among the 20 destinations and 20 outputs that a source raises most.",
        "in words",
        "The head raises more occurring pairs than tables of random tokens of the same frequencies, with the interval "
        "over sources, and crossed pairs with them. Crossed pairs alone say nothing: nearly every random table has "
        "some.",
        _bugs, judge_bugs,
    ),
    Claim(
        "path expansion", "path expansion",
        "The logits of an attention-only model are a sum over paths through heads.",
        "Path expansion of logits",
        "Relative error of the sum of all terms against the model's logits.",
        "an identity",
        "The error is below 1e-4 where no norm or FFN stands between. An identity of the architecture: random weights "
        "pass it too.",
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
    Claim(
        "K-composition", "composition",
        "The K-composition that stands out is with a previous-token head.",
        _COMPOSITION,
        "Frobenius ratio of every pair above random circuits, and the earlier head's attention to the previous token.",
        "in words",
        f"The strongest pair is at least {STANDS_OUT:g} standard deviations of random circuits above their mean, and "
        f"its earlier head attends to the previous token with at least {ROLE:.0%}; uniform attention gives less than "
        "5 %.",
        _composition, judge_k_composition,
    ),
    Claim(
        "Q-composition", "composition",
        "Q-composition is small in the two-layer model.",
        _COMPOSITION,
        "Frobenius ratio of every pair above random circuits.",
        "in words",
        "In a two-layer model whose strongest K-composition stands out, no pair reaches half of it.",
        _composition, judge_q_composition,
    ),
    Claim(
        "V-composition", "composition",
        "V-composition is small in the two-layer model.",
        _COMPOSITION,
        "Frobenius ratio of every pair above random circuits.",
        "in words",
        "In a two-layer model whose strongest K-composition stands out, no pair reaches half of it.",
        _composition, judge_v_composition,
    ),
    Claim(
        "induction heads", "induction",
        "Two-layer models have induction heads: on repeated random tokens they attend to the token after the earlier "
        "occurrence.",
        "Two-layer models: induction heads",
        "Mean attention from the second half of repeated random tokens to the token after the earlier occurrence.",
        "in words",
        f"Some head reaches {ROLE:.0%}; uniform attention gives about 1 %.",
        _induction, judge_induction_heads,
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
        f"attends to the previous token with at least {ROLE:.0%}; and the likeliest by weights is one of them.",
        _induction, judge_induction_by_weights,
    ),
    Claim(
        "one position", "one position",
        "An induction head attends to the token after an earlier occurrence and raises it.",
        "Two-layer models: induction heads",
        "The strongest induction head's attention, and its effect on the logit, at the last token of repeated text.",
        "in words",
        f"Most attention, at least {ROLE:.0%}, goes to the token after the earlier occurrence and raises its logit.",
        _one_position, judge_one_position,
    ),
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
        f"More than {MUCH:.0%} of the gain is lost, and more than without other heads of the same layers whose output "
        "is as long, both with their intervals over windows.",
        _ablation, judge_ablation,
    ),
    Claim(
        "memory management", "stream",
        "Some MLP neurons and attention heads perform memory management: they read a direction and write its negative.",
        "The residual stream as a communication channel",
        "Cosine of key and value, negative OV eigenvalues, and on text the stream along the written direction before "
        "and after.",
        "in words",
        "A memory or head five standard deviations beyond random weights opposes what is there more often than a coin "
        "does, with its interval, and less of it is there afterwards.",
        _memory_management, judge_memory_management,
    ),
)  # fmt: skip
"""Every claim of the study, in the order of its sections."""
