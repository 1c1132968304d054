"""Claims about models of one layer: copying, skip-trigrams and their bugs, and simple in-context learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from unembed.attention.text.skip_trigrams import (
    CorpusCounts,
    SkipTrigramBugs,
    crossed_pairs,
    random_tables,
    skip_trigram_bugs,
    skip_trigram_section,
)
from unembed.attention.weights.by_layer import number_or_none
from unembed.attention.weights.copying import eigenvalue_section
from unembed.attention.weights.paper import COPYING_HEADS, NO_NUMBERS
from unembed.document.exhibits import drawing, exhibit
from unembed.document.intervals import mean_of, paired_difference
from unembed.document.model import Figure, Section
from unembed.document.numbers import signed
from unembed.errors import Unsupported
from unembed.names import head_name
from unembed.reports.elhage2021.measurements import HeadSkipTrigrams, Measurements, only
from unembed.reports.published import RECALLED, Origin
from unembed.reports.quantities import Judgement, Numbers, Part, Quantity, above, judged, once
from unembed.results import format_number, format_percent, format_setting, format_signed

REPEATED = 0.05
"""By how many nats more heads must lower the loss of repeated tokens than they lower that of new tokens."""
COPIES = 0.5
"""Smallest copying score of a head that counts as copying; the paper states no threshold."""


def copying(m: Measurements) -> Numbers:
    """Return the copying scores of all heads, from the eigenvalues of their OV circuits."""
    score = m.copying.score
    return Numbers(scores=score[~score.isnan()].tolist())


def judge_copying(n: Numbers) -> Judgement:
    """Judge how many heads copy."""
    copies = sum(s >= COPIES for s in n.scores)
    return judged(
        f"{copies} of {len(n.scores)} heads have a copying score of at least {format_setting(COPIES)}; the median is "
        f"{format_signed(float(np.median(n.scores)))}.",
        copies > len(n.scores) / 2,
    )


def copying_section(m: Measurements) -> Section:
    """Show the eigenvalues of the heads that copy most and least."""
    try:
        score = m.copying.score
    except Unsupported as refused:
        return Section("Copying", (f"Not available: {refused.why}.",))
    known = (~score.isnan()).sum()
    order = score.nan_to_num(-torch.inf).flatten().argsort(descending=True)[:known].tolist()
    shown = [divmod(i, score.shape[1]) for i in dict.fromkeys([*order[:3], *order[-1:]])]
    made = eigenvalue_section(m.circuits, shown, m.basis, m.provenance, "Copying")
    own = [m.circuits.own_token(layer, head, m.basis, seed=m.seed) for layer, head in shown]
    cells = {
        "head": [head_name(*place) for place in shown],
        "copying_score": [float(score[place]) for place in shown],
        "diagonal_z": [found.mean_z for found in own],
        "own_in_top_10": [found.top_share for found in own],
        "effect_in_runs": [number_or_none(m.scores.copying[place]) for place in shown],
    }
    text = (
        "The table has three summaries of copying, which need not agree. The copying score is computed from the "
        "eigenvalues. The diagonal is how far a token's own logit lies above the mean of its row of the OV circuit, in "
        "standard deviations of the row; next to it is the share of tokens whose own logit is among the ten largest. "
        "The effect in runs is what the head adds to the logit of the token that it attends to most, on repeated "
        "random tokens, above the mean of all tokens.",
    )
    summaries = exhibit(
        "copying_summaries", "Three summaries of copying, of the heads shown", cells, m.provenance,
        percent=("own_in_top_10",),
    )  # fmt: skip
    return replace(made, text=(*made.text, *text), exhibits=(summaries, *made.exhibits))


def likelier(counts: Sequence[CorpusCounts]) -> list[bool]:
    """Return for each triple whether its output is likelier if the source occurs before the destination.

    Triples whose destination never occurs with the source, or never without it, are left out.
    """
    return [c.rate_with > c.rate_without for c in counts if c.with_source and c.without_source]


@once
def skip_trigrams(m: Measurements) -> Numbers:
    """Measure the share of triples whose output is likelier after the source, and the share with shuffled sources."""
    own, shuffled = [], []
    for found in m.skip_trigrams:
        k = len(found.triples)
        for i, counts in enumerate(found.counts):
            gained, controls = likelier([counts]), likelier(found.shuffled[i::k])
            if gained and controls:
                own.append(float(gained[0]))
                shuffled.append(float(np.mean(controls)))
    return Numbers(
        gain=mean_of([a - b for a, b in zip(own, shuffled, strict=True)], seed=m.seed),
        likelier=sum(own) / max(len(own), 1),
        shuffled=sum(shuffled) / max(len(own), 1),
        occurring=sum(found.occurring for found in m.skip_trigrams),
        n=sum(len(found.triples) for found in m.skip_trigrams),
    )


def judge_skip_trigrams(n: Numbers) -> Judgement:
    """Judge whether the corpus confirms more of the heads' triples than of the triples with shuffled sources."""
    return judged(
        f"Of the {n.n} largest triples of the first layer's heads, {n.occurring} occur in the corpus. In "
        f"{format_percent(n.likelier, 0)} of the {n.gain.n} whose destination occurs both with and without the "
        "source, the output is likelier with it; with the sources shuffled among the triples, in "
        f"{format_percent(n.shuffled, 0)}.",
        above(n.gain, 0.0),
    )


def skip_trigram_sections(m: Measurements) -> list[Section]:
    """Show how many triples of each head occur in the corpus, and list the triples of the two most confirmed heads."""
    found = m.skip_trigrams

    def share(counts: Sequence[CorpusCounts]) -> float | None:
        known = likelier(counts)
        return sum(known) / len(known) if known else None

    cells = {
        "head": [head_name(r.layer, r.head) for r in found],
        "triples": [len(r.triples) for r in found],
        "copy_the_source": [len(r.copies) for r in found],
        "in_the_corpus": [r.occurring for r in found],
        "likelier_after_source": [r.likelier for r in found],
        "likelier_share": [share(r.counts) for r in found],
        "likelier_share_shuffled": [share(r.shuffled) for r in found],
        "times": [sum(c.output_with_source for c in r.counts) for r in found],
        "times_expected": [sum(c.with_source * c.rate_without for c in r.counts if c.without_source) for r in found],
    }
    layers = list(dict.fromkeys(r.layer for r in found))
    text = [
        "A triple is a source, a destination that attends to it, and an output that the head then raises: `source ... "
        "destination` and then `output`. The table counts in the corpus the largest triples of every head: how many "
        "occur, and for how many of these the output follows more often than after the same destination without the "
        "source. The likelier share is the share of the latter among all triples whose destination occurs both with "
        "and without the source. As a control, it is also given with the sources shuffled among the triples. `times` "
        "is how often all triples occur, and `times expected` how often they would if the source made no difference."
    ]
    if len(layers) > 1:
        text.append(
            "A head above the first layer reads the vector that the layers below compute for a single token after the "
            "token that begins a text. What the head writes is decoded by the unembedding."
        )
    shares = ("likelier_share", "likelier_share_shuffled")
    of_heads = "Skip-trigrams of the heads" + (f" of layer {layers[0]}" if len(layers) == 1 else "")
    exhibits = [
        exhibit("skip_trigrams", of_heads, cells, m.provenance, percent=shares, folded=len(layers) > 1, listed=25)
    ]
    figures: tuple[Figure, ...] = ()
    if len(layers) > 1:
        by_layer = {n: [c for r in found if r.layer == n for c in r.counts] for n in layers}
        shuffled = {n: [c for r in found if r.layer == n for c in r.shuffled] for n in layers}
        columns = {
            "layer": layers,
            "triples": [len(counts) for counts in by_layer.values()],
            "likelier_share": [share(counts) for counts in by_layer.values()],
            "likelier_share_shuffled": [share(counts) for counts in shuffled.values()],
        }
        title = "Triples whose output is likelier after the source"
        exhibits.insert(0, exhibit("skip_trigrams_by_layer", title, columns, m.provenance, percent=shares))
        drawn = {"likelier_share": "triples of the heads", "likelier_share_shuffled": "with shuffled sources"}
        shown = {"percent": True, "published": NO_NUMBERS}
        figures = (drawing("line", "skip_trigrams_by_layer", title, "layer", drawn, **shown),)
    every = Section("Skip-trigrams", tuple(text), tuple(exhibits), figures)
    best = [r for r in sorted(found, key=lambda r: -r.likelier) if r.triples][:2]
    return [
        every,
        *(skip_trigram_section(m.circuits, r.layer, r.head, r.triples, m.provenance, r.counts) for r in best),
    ]


def pairs_after(m: Measurements, head: HeadSkipTrigrams, source: int) -> tuple[SkipTrigramBugs, float, float]:
    """Return the pairs (destination, output) that a head raises after a source, and two chance levels.

    The chance levels are the mean number of raised pairs that occur in the corpus, and the mean number of raised
    crossed pairs (see `bugs`), if destinations and outputs are random tokens of similar frequencies.
    """
    table = skip_trigram_bugs(
        m.circuits, head.layer, head.head, source, basis=m.basis, among=m.frequent, bigrams=m.bigrams,
        reading=m.token_reading,
    )  # fmt: skip
    random = random_tables(m.bigrams, table.destinations, table.outputs, m.frequent, seed=m.seed)
    raised = table.score > 0
    occurring = float(np.mean([int(((counts > 0) & raised).sum()) for counts in random]))
    crossed = float(np.mean([int((crossed_pairs(counts) & raised).sum()) for counts in random]))
    return table, occurring, crossed


@once
def bugs(m: Measurements) -> Numbers | None:
    """Count the pairs (destination, output) raised by the head whose triples the corpus confirms most.

    Two kinds of pairs are counted after each source: pairs that occur in the corpus, and crossed pairs. A crossed pair
    never occurs in the corpus, although its destination occurs with another of the outputs, and its output with another
    of the destinations. `pairs_after` gives the chance levels. The result is None if no head has a triple.
    """
    raised = [found for found in m.skip_trigrams if found.triples]
    if not raised:
        return None
    best = max(raised, key=lambda found: found.likelier)
    sources = list(dict.fromkeys(t.source for t in best.triples))[:10]
    tables, occurring, crossed = zip(*(pairs_after(m, best, source) for source in sources), strict=True)
    own = [t.occurring for t in tables]
    return Numbers(
        head=head_name(best.layer, best.head),
        tables=tables,
        occurring_by_chance=occurring,
        crossed_by_chance=crossed,
        gain=mean_of(np.array(own) - np.array(occurring), seed=m.seed),
        occurring=float(np.mean(own)),
        chance_occurring=float(np.mean(occurring)),
        crossed=float(np.mean([len(t.pairs) for t in tables])),
        chance_crossed=float(np.mean(crossed)),
    )


def judge_bugs(n: Numbers) -> Judgement:
    """Judge whether the head raises more pairs that occur in the corpus than by chance, and any crossed pairs."""
    return judged(
        f"After a source the head raises {format_number(n.occurring)} pairs that occur "
        f"({format_number(n.chance_occurring)} in tables of random tokens of the same frequencies) and, with them, "
        f"{format_number(n.crossed)} crossed pairs that never do ({format_number(n.chance_crossed)}).",
        above(n.gain, 0.0),
        n.crossed > 0,
    )


def bug_section(m: Measurements) -> Section | None:
    """Show the crossed pairs (see `bugs`) of the source with the most of them; None if there are no triples."""
    try:
        found = bugs(m)
    except Unsupported:  # the section on skip-trigrams gives the reason
        return None
    if found is None:
        return None
    names = m.lm.token_strings(torch.tensor([t.source for t in found.tables], dtype=torch.long))
    best = max(range(len(names)), key=lambda i: len(found.tables[i].pairs))
    pairs = found.tables[best].pairs[:20]
    tried = {
        "source_token": names,
        "raised_pairs": [int((t.score > 0).sum()) for t in found.tables],
        "occurring": [t.occurring for t in found.tables],
        "occurring_by_chance": found.occurring_by_chance,
        "crossed": [len(t.pairs) for t in found.tables],
        "crossed_by_chance": found.crossed_by_chance,
    }
    crossed = {
        "source_token": [names[best]] * len(pairs),
        "destination_token": m.lm.token_strings(torch.tensor([d for d, _, _ in pairs], dtype=torch.long)),
        "output_token": m.lm.token_strings(torch.tensor([o for _, o, _ in pairs], dtype=torch.long)),
        "score": [s for _, _, s in pairs],
    }
    text = (
        "After a source, a head raises every output that it writes at every destination that attends there. It cannot "
        "raise some of these pairs alone, because where it attends and what it writes are separate circuits. Pairs are "
        "made of the 20 destinations and 20 outputs that it raises most. A pair is crossed if it never occurs in the "
        "corpus, but its destination and its output each occur there in another pair. “By chance” are means over "
        f"tables of random tokens of the same frequencies. The second table is of `{names[best]}`, the source with the "
        "most crossed pairs.",
    )
    exhibits = (
        exhibit("skip_trigram_sources", f"Sources tried for head {found.head}", tried, m.provenance),
        exhibit("skip_trigram_bugs", f"Crossed pairs of head {found.head}", crossed, m.provenance),
    )
    return Section("Skip-trigram bugs", text, exhibits)


@once
def primitive(m: Measurements) -> Numbers:
    """Measure how much the first attention layer lowers the loss of tokens that occurred before, and of new tokens."""
    found = m.term_importance
    repeated, new = found.repeated_gain.numpy(), found.new_gain.numpy()
    return Numbers(
        layer=m.first_layer,
        repeated=mean_of(repeated, seed=m.seed),
        new=mean_of(new, seed=m.seed),
        lead=paired_difference(repeated, new, seed=m.seed),
    )


def judge_primitive(n: Numbers) -> Judgement:
    """Judge whether the first attention layer lowers the loss of repeated tokens more than that of new tokens."""
    return judged(
        f"The single heads of layer {n.layer} take {signed(n.repeated)} nats off the loss of next tokens that occurred "
        f"earlier in the window and {signed(n.new)} off that of new ones, a difference of {signed(n.lead)}.",
        above(n.repeated, 0.0),
        above(n.lead, REPEATED),
    )


def primitive_section(m: Measurements) -> Section:
    """Show how much the first attention layer lowers the loss of repeated and new tokens, and which triples copy."""
    n = primitive(m)
    losses = {
        "next_token_text": ["occurred earlier in the window", "is new in the window"],
        "gain": [n.repeated, n.new],
    }
    first = [r for r in m.skip_trigrams if r.layer == n.layer]
    heads = {
        "head": [head_name(n.layer, r.head) for r in first],
        "triples": [len(r.triples) for r in first],
        "copy_the_source": [len(r.copies) for r in first],
        "where_it_follows_in_the_corpus": [
            sum(c.output_with_source + c.output_without_source > 0 for c in r.copies) for r in first
        ],
    }
    text = (
        "A head that copies raises a token because it occurred earlier, so even a model of one layer learns a little "
        "from its context. Attention patterns are those of the model's own run. Losses are averaged over the positions "
        "of a window first, and intervals are over windows. A copy is plausible if the token follows the destination "
        "somewhere in the corpus.",
    )
    gains = f"What the single heads of layer {n.layer} take off the loss of the direct path, nats a token"
    exhibits = (
        exhibit("repeated_tokens", gains, losses, m.provenance),
        exhibit("copied", f"Triples of layer {n.layer} that copy their source", heads, m.provenance),
    )
    return Section("Primitive in-context learning", text, exhibits)


PARTS: tuple[Part[Measurements], ...] = (
    Part(
        copying_section,
        (
            Quantity(
                "copying",
                "Most heads of the one-layer model copy significantly: the eigenvalues of their OV circuits are mostly "
                "positive.",
                where="One-layer models: summarizing OV/QK matrices",
                what="Copying score: sum of the eigenvalues over the sum of their sizes.",
                published=COPYING_HEADS,
                test=f"More than half of the heads of a one-layer model reach {format_setting(COPIES)}; random "
                "circuits scatter around 0.",
                measure=only(copying, 1),
                judge=judge_copying,
                origins=(
                    Origin("heads of the one-layer model that copy", COPYING_HEADS, RECALLED, "One-layer models"),
                ),
            ),
        ),
        name="copying",
    ),
    Part(
        skip_trigram_sections,
        (
            Quantity(
                "skip-trigrams",
                "One-layer models are an ensemble of bigram and skip-trigram models, which can be read off the "
                "weights.",
                where="One-layer models: skip-trigrams",
                what="Share of the heads' largest triples whose output follows the destination more often when the "
                "source occurs earlier.",
                published="in words",
                test="The share is above that of the same triples with shuffled sources, with its interval over "
                "triples: a triple made of frequent tokens is likelier in some texts whatever its source is.",
                measure=only(skip_trigrams, 1),
                judge=judge_skip_trigrams,
            ),
        ),
        name="skip-trigrams",
    ),
    Part(
        bug_section,
        (
            Quantity(
                "bugs",
                "Because QK and OV are separate, a head that raises (keep ... in, mind) and (keep ... at, bay) must "
                "also raise (keep ... in, bay).",
                where="One-layer models: skip-trigram bugs",
                what="Occurring and crossed pairs among the 20 destinations and 20 outputs that a source raises most.",
                published="in words",
                test="The head raises more occurring pairs than tables of random tokens of the same frequencies, with "
                "the interval over sources, and crossed pairs with them. Crossed pairs alone show nothing: nearly "
                "every random table has some.",
                measure=only(bugs, 1),
                judge=judge_bugs,
            ),
        ),
        name="skip-trigram bugs",
    ),
    Part(
        primitive_section,
        (
            Quantity(
                "primitive in-context learning",
                "Heads dedicate much of their capacity to copying: they raise tokens that occurred earlier, at "
                "plausible places. One-layer models do primitive in-context learning.",
                where="One-layer models: copying and primitive in-context learning",
                what="Nats that the single heads of the first layer take off the direct path's loss, of next tokens "
                "that occurred earlier less that of new ones.",
                published="in words",
                test="In a one-layer model the heads help repeated tokens, and by more than "
                f"{format_setting(REPEATED)} nats more than new ones, both with their intervals over windows: heads "
                "that only sharpen token frequencies help both alike.",
                measure=only(primitive, 1),
                judge=judge_primitive,
            ),
        ),
        name="primitive in-context learning",
    ),
)
