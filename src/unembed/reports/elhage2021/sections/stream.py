"""Sections about whole models: the direct path, path expansion, in-context learning, the stream's geometry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from unembed.attention.behaviour.in_context import InContext
from unembed.attention.circuits import Circuits
from unembed.attention.paths.erasure import ErasingHead, ErasingMemory, MemoryManagement
from unembed.attention.paths.expansion import Expansion
from unembed.attention.paths.geometry import Subspaces, VirtualWeights, subspaces, virtual_weights
from unembed.attention.paths.term_importance import TermImportance
from unembed.attention.text.direct_path import DirectPath
from unembed.document.intervals import columns as interval_columns
from unembed.document.intervals import mean_of
from unembed.document.model import Exhibit, Figure, Section
from unembed.reports.elhage2021.measurements import Measurements
from unembed.reports.elhage2021.published import NO_NUMBERS, NOT_IN_PAPER
from unembed.results import Provenance, Table, visible


def zero_layers(m: Measurements) -> list[Section]:
    """The direct path compared with the corpus' bigrams."""
    return [direct_path_section(m.circuits, m.direct_path, m.provenance)]


def direct_path_section(circuits: Circuits, found: DirectPath, provenance: Provenance) -> Section:
    """The direct path compared with the corpus' bigrams."""
    losses = Table(
        "Predicting the next token from the token alone",
        {
            "predictor": ["direct path", "bigrams of the other half of the corpus", "frequencies of tokens"],
            "cross_entropy": [found.cross_entropy, found.bigram_cross_entropy, found.unigram_cross_entropy],
        },
        provenance,
    )
    correlations = Table(
        "Rank correlation with the counts of what follows a token",
        {
            "predictor": [
                "direct path, controlling for token frequency",
                "direct path",
                "frequencies of tokens",
                "counts of the other half of the corpus",
            ],
            "spearman": [found.mean(c) for c in (found.partial, found.spearman, found.frequency, found.ceiling)],
        },
        provenance,
    )
    tokens = Table(
        "Rank correlation by token",
        {
            "token": circuits.lm.token_strings(found.tokens),
            "occurrences": found.occurrences.tolist(),
            "spearman": [_or_none(v) for v in found.spearman.tolist()],
            "partial": [_or_none(v) for v in found.partial.tolist()],
        },
        provenance,
    )
    text = (
        f"Correlations are over the vocabulary, means over the {len(found.tokens)} most frequent tokens weighted "
        "by occurrences. Frequent tokens follow everything often, so token frequency alone correlates with the counts, "
        "and no predictor can agree with them better than the other half of the text does. Cross-entropies are in nats "
        "a token, on the second half of the corpus.",
    )
    return Section(
        "Zero layers: bigrams",
        text,
        (
            Exhibit("direct_path", losses),
            Exhibit("direct_path_correlations", correlations),
            Exhibit("direct_path_tokens", tokens, folded=True),
        ),
    )


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def expansion(m: Measurements) -> list[Section]:
    """One prompt's predicted logit by path."""
    return [expansion_section(m.circuits, m.expansion, m.predicted, 20, m.provenance)]


def importance(m: Measurements) -> list[Section]:
    """How much each order of path matters on text."""
    return [importance_section(m.term_importance, m.provenance)]


def in_context(m: Measurements) -> list[Section]:
    """Losses by position; nothing where documents are too short."""
    found = m.in_context
    if found is None:
        return []
    return [in_context_section(found.model, found.without, found.without_others, m.provenance)]


def stream(m: Measurements) -> list[Section]:
    """The residual stream as a channel."""
    weights, spaces = virtual_weights(m.lm, m.basis), subspaces(m.lm, m.basis)
    return [stream_section(m.circuits, weights, spaces, m.memory_management, m.provenance)]


def expansion_section(
    circuits: Circuits, found: Expansion, token: int, top: int, provenance: Provenance, name: str = "expansion"
) -> Section:
    """A token's logit by path: the largest terms, and the sums by order."""
    name_of_token = visible(circuits.lm.token_strings([token])[0])
    contribution = found.contribution(token).double()
    order = contribution.abs().argsort(descending=True)[:top].tolist()
    terms = Table(
        f"The largest of {len(found):,} terms",
        {
            "path": [found.labels[i] for i in order],
            "order": [found.orders[i] for i in order],
            "contribution": [float(contribution[i]) for i in order],
        },
        provenance,
    )
    by_order = found.by_order(token).double().tolist()
    counts = [found.orders.count(k) for k in range(found.order + 1)]
    sums = Table(
        "By order",
        {
            "order": [*(str(k) for k in range(found.order + 1)), f"above {found.order}"],
            "terms": [*counts, None],
            "contribution": by_order,
        },
        provenance,
    )
    kind = "exact" if found.exact else f"{_fixed_parts(found)} fixed at their values in the run"
    text = (
        f"The logit of `{name_of_token}` at position {found.position} is {float(found.logits[token]):+.3f}; as a sum "
        f"over paths ({kind}) all logits are reproduced with a relative error of {found.error:.0e}.",
    )
    figures = (
        Figure(
            name,
            "Contribution to the logit by order of path",
            "bar",
            f"{name}_orders",
            "order",
            ("contribution",),
            x_label="order of path",
            y_label="logits",
            published=NOT_IN_PAPER,
        ),
    )
    return Section("Path expansion", text, (Exhibit(f"{name}_orders", sums), Exhibit(f"{name}_terms", terms)), figures)


def _fixed_parts(found: Expansion) -> str:
    """What an expansion takes from the run: patterns, norm scales, and the outputs of what is not attention."""
    without_heads = [
        label.rpartition(" ")[0] for label, order in zip(found.labels, found.orders, strict=True) if not order
    ]
    kinds = [kind for kind in dict.fromkeys(without_heads) if kind not in ("", "attention biases")]
    *first, last = ["patterns", "norm scales", *(f"{'FFN' if kind == 'ffn' else kind} outputs" for kind in kinds)]
    return f"{', '.join(first)} and {last}"


def importance_section(found: TermImportance, provenance: Provenance) -> Section:
    """How much of the loss each order of path and each layer's heads take away."""
    orders = len(found.losses)
    table = Table(
        "Loss by the highest order of path",
        {
            "order": list(range(orders)),
            "terms": [int(n) for n in found.n_terms],
            "loss": found.losses.tolist(),
            "reduction": [found.direct_reduction, *found.reductions.tolist()],
            "reduction_per_term": [found.direct_reduction, *found.reductions_per_term.tolist()],
        },
        provenance,
    )
    layers = Table(
        "What the heads of one layer take off the loss",
        {
            "layer": list(range(len(found.by_layer))),
            "alone": [_or_none(v) for v in found.layer_reductions.tolist()],
            "given_the_other_layers": [_or_none(v) for v in found.layer_reductions_given_others.tolist()],
        },
        provenance,
    )
    without = [str(n) for n, v in enumerate(found.by_layer.tolist()) if math.isnan(v)]
    note = f" Layers without attention have no heads to take away: {', '.join(without)}." if without else ""
    proof = "" if found.error is None else f" With all orders the loss is met within {found.error:.0e}."
    text = (
        f"Nats a token over {found.n_tokens:,} predictions; the model's own loss is {found.loss:.3f}.{proof} Patterns "
        f"and norm scales are those of the full model. Order 0 is compared with a uniform guess, {found.uniform:.3f}. "
        "Alone: added to the direct path. Given the other layers: added to the direct path and the single heads of all "
        f"other layers.{note}",
    )
    figures = (
        Figure(
            "term_importance", "Loss by the highest order of path", "bar", "term_importance", "order", ("loss",),
            x_label="highest order of path", y_label="nats a token", published=NO_NUMBERS,
        ),
        Figure(
            "layer_importance", "What each layer's heads take off the loss", "bar", "layer_importance", "layer",
            ("alone", "given_the_other_layers"), ("alone", "given the other layers"), x_label="layer",
            y_label="nats a token", published=NO_NUMBERS,
        ),
    )  # fmt: skip
    return Section(
        "How much each order of path matters",
        text,
        (Exhibit("term_importance", table), Exhibit("layer_importance", layers)),
        figures,
    )


def in_context_section(
    whole: InContext, without: InContext | None, control: InContext | None, provenance: Provenance
) -> Section:
    """Loss by position, with and without the induction heads, and without those nearest to them in output length."""
    steps = range(0, len(whole.losses) - 7, 8)

    def smoothed(found: InContext) -> list[float]:
        return [float(found.losses[i : i + 8].mean()) for i in steps]

    columns: dict[str, list[Any]] = {"position": list(steps), "loss": smoothed(whole)}
    text = (
        f"Mean loss over {whole.n_windows} windows of text, each read from its start, in steps of 8 positions. "
        f"Compared are positions {whole.early} and {whole.late}, each with the ten before and after it; intervals are "
        "95 %, over windows."
    )
    labels = ["the model"]
    for name, found in (("without", without), ("without_others", control)):
        if found is not None:
            columns[f"loss_{name}"] = smoothed(found)
            labels.append(f"without {', '.join(f'L{a}H{h}' for a, h in found.ablated)}")
    runs = [whole, *(found for found in (without, control) if found is not None)]
    scores = Table(
        "Loss late less loss early, nats a token",
        {
            "heads": labels,
            **interval_columns("score", [mean_of(found.differences.numpy()) for found in runs]),
        },
        provenance,
    )
    table = Table("Loss by position", columns, provenance)
    y = tuple(name for name in columns if name != "position")
    figure = Figure(
        "in_context",
        "Loss by position",
        "line",
        "in_context",
        "position",
        y,
        tuple(labels),
        "position",
        "nats a token",
        published=NOT_IN_PAPER,
    )
    exhibits = (Exhibit("in_context_scores", scores), Exhibit("in_context", table, folded=True))
    return Section("In-context learning", (text,), exhibits, (figure,))


def stream_section(
    circuits: Circuits,
    weights: VirtualWeights,
    spaces: Subspaces,
    memory: MemoryManagement,
    provenance: Provenance,
    top: int = 20,
) -> Section:
    """Who reads whom through the stream, how many directions each uses, and what erases."""
    ratio = weights.ratio.cpu()
    pairs = [
        (weights.writers[i], weights.readers[j], float(ratio[i, j]))
        for i in range(len(weights.writers))
        for j in range(len(weights.readers))
        if not math.isnan(float(ratio[i, j]))
    ]
    best = sorted(pairs, key=lambda p: -p[2])[:top]
    virtual = Table(
        f"Virtual weights: the strongest of {len(pairs):,} pairs (random directions: {weights.chance:.4f})",
        {
            "writer": [p[0] for p in best],
            "reader": [p[1] for p in best],
            "ratio": [p[2] for p in best],
            "times_random": [p[2] / weights.chance for p in best],
        },
        provenance,
    )
    n = spaces.n_writers
    ranks = Table(
        "Directions in use",
        {
            "side": list(spaces.labels),
            "writes": [i < n for i in range(len(spaces.labels))],
            "effective_rank": spaces.effective_rank.tolist(),
            "share_of_stream": (spaces.effective_rank / circuits.lm.d_model).tolist(),
        },
        provenance,
    )
    width = range(len(spaces.labels) - n)
    overlap = Table(
        "Overlap of what is written and what is read (squared cosines of principal angles)",
        {
            "writer": [spaces.labels[i] for i in range(n) for _ in width],
            "reader": [spaces.labels[n + j] for _ in range(n) for j in width],
            "overlap": [float(spaces.overlap[i, n + j]) for i in range(n) for j in width],
            "chance": [float(spaces.chance[i, n + j]) for i in range(n) for j in width],
        },
        provenance,
    )
    exhibits = [
        Exhibit("virtual_weights", virtual),
        Exhibit("directions", ranks, percent=("share_of_stream",), folded=True),
        Exhibit("overlap", overlap, folded=True),
    ]
    erasing = Table(
        "Heads whose OV circuit has the most negative eigenvalues on the stream",
        {
            "head": [f"L{e.layer}H{e.head}" for e in memory.erasing_heads],
            "negative_share": [e.negative_share for e in memory.erasing_heads],
            **_on_text(memory.erasing_heads),
        },
        provenance,
    )
    percent = ("negative_share", "opposes")
    exhibits.append(Exhibit("erasing_heads", erasing, percent=percent))
    text = [
        f"The stream is {circuits.lm.d_model} wide; what writes to it and reads from it shares these directions.",
    ]
    if memory.erasing_heads:
        text.append(
            f"Negative share: of the eigenvalues of a head's OV circuit; random heads of this shape have "
            f"{memory.chance[0]:.2f}, five standard deviations above are {memory.head_threshold:.2f}."
        )
    if memory.memories:
        table = Table(
            "Memories (FFN neurons) that erase",
            {
                "memory": [circuits.lm.memory_name(e.layer, e.index) for e in memory.memories],
                "cosine": [e.cosine for e in memory.memories],
                **_on_text(memory.memories),
            },
            provenance,
        )
        exhibits.append(Exhibit("erasing_memories", table, percent=percent[1:], apart=(("cosine",),)))
        text.append(
            f"{sum(memory.counts):,} of {memory.n_memories:,} memories have a key and a value that point against each "
            f"other (cosine below {memory.threshold:.2f}, five standard deviations of random directions)."
        )
    parts = " ".join(f"{name}: {why}." for name, why in {**weights.missing, **memory.missing}.items())
    if parts:
        text.append(f"Not among them: {parts}")
    if any(e.on_text is not None for e in memory.erasing_heads):
        text.append(
            "Before and after: mean size of the stream along what is written, before and after the FFN or the "
            "attention, at the positions of text where a memory or head writes most. Opposes: how often what it writes "
            "there has the opposite sign of what is there. Erases: less is there afterwards, and it opposes more often "
            "than a coin, with its interval."
        )
    figure = Figure(
        "overlap",
        "Overlap of writers and readers",
        "heat",
        "overlap",
        "reader",
        ("overlap",),
        rows="writer",
        x_label="reader",
        y_label="writer",
        y_range=(0, 1),
        published=NOT_IN_PAPER,
    )
    return Section("The residual stream", tuple(text), tuple(exhibits), (figure,))


def _on_text(erasing: Sequence[ErasingMemory | ErasingHead]) -> dict[str, list[float] | list[str]]:
    """Columns of what was measured on text; none where no text was read."""
    measured = [e.on_text for e in erasing if e.on_text is not None]
    if len(measured) < len(erasing):
        return {}
    return {
        "before": [e.before for e in measured],
        "after": [e.after for e in measured],
        "opposes": [e.opposes for e in measured],
        "erases": [{True: "yes", False: "no", None: "unknown"}[e.erases] for e in measured],
    }
