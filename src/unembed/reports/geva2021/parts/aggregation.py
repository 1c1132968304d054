"""Section 5.1: how many memories (FFN neurons) are active (Fig. 7); does one predict the layer's top token (Fig. 8)?"""

from __future__ import annotations

import numpy as np
import torch

from unembed.concepts.token_cleaning import clean
from unembed.concepts.word_lists import STOP_WORDS
from unembed.document.exhibits import boxes, by_layer, exhibit, means, plain_mean
from unembed.document.intervals import Measured, mean_of, share_of
from unembed.document.model import QUANTILES, Reference, Section
from unembed.document.numbers import percent
from unembed.models.decoder import Decoder
from unembed.reports.geva2021 import paper
from unembed.reports.geva2021.examples import CARRIED
from unembed.reports.geva2021.measurements import USUAL, Measurements
from unembed.reports.published import READ_OFF, SUMMARY, Origin
from unembed.reports.quantities import (
    Judgement,
    Numbers,
    Part,
    Quantity,
    Row,
    above,
    below,
    judged,
    least_of,
    most_of,
    once,
    within,
)
from unembed.results import format_number, format_percent, format_setting

SHORT = 5
"""Prefixes with fewer tokens count as short."""
FEWEST_CASES = 20
"""A verdict needs at least this many cases in which one of a layer's memories has the same top token as the layer."""


_WORDS = {
    "above_zero": "have a coefficient above 0",
    "carrying": f"are needed for {format_percent(CARRIED, 0)} of what a layer writes, as the sum of lengths |m| ‖v‖",
}


def _counted(m: Measurements) -> str:
    """Return which count of active memories is judged.

    In gated layers the sign of a coefficient is only a convention, so the count must not depend on it.
    """
    return "carrying" if m.triggers.signed.any() else "above_zero"


@once
def active(m: Measurements) -> Numbers:
    """Return the share of memories that are active, by layer.

    Active memories are those with a coefficient above 0. The sign of a gated memory's coefficient is only a convention,
    so in models with gated layers they are the fewest memories that make up the share `CARRIED` of the sum of
    |coefficient| times the length of the value vector.
    """
    e, seed = m.examples[_counted(m)], m.seed
    layers = [mean_of(row, seed=seed, share=True) for row in e]
    of_example, n_memories = e.mean(axis=0), m.triggers.n_memories
    return Numbers(
        what=_WORDS[_counted(m)],
        layers=layers,
        fewest=layers[int(np.argmin(e.mean(axis=1)))],
        whole=mean_of(of_example, seed=seed, share=True),
        number=mean_of(of_example * n_memories, seed=seed),
    )


def judge_drop(n: Numbers) -> Judgement:
    """Judge whether clearly fewer memories are active in a middle layer than in the first and in the last layer."""
    layers: list[Measured] = n.layers
    least = min(range(len(layers)), key=lambda n: layers[n].value)
    deepest = layers[least]
    here = (
        f"The fewest memories are active in layer {least} of {len(layers)} ({percent(deepest)}); {percent(layers[0])} "
        f"are in the first and {percent(layers[-1])} in the last."
    )
    if len(layers) < 4:
        return Judgement(f"{here} Too few layers for a layer between.", "not applicable")
    middle = 0.4 <= least / (len(layers) - 1) <= 0.8
    return judged(here, middle, below(deepest, 2 / 3 * layers[0].value), below(deepest, layers[-1].low))


def explain_active(m: Measurements) -> str:
    """State how many memories make up most of a layer's output or, for ReLU, how many keys have a negative bias."""
    site = m.lm.feed_forward(0)
    if site.activation == "relu" and not site.is_gated:
        biases = [m.lm.weights.b_in[n] for n in range(m.n_layers)]
        known = torch.cat([bias.float() for bias in biases if bias is not None] or [torch.zeros(1)])
        return (
            f"{format_percent(float((known < 0).float().mean()))} of the keys have a bias below 0, "
            f"{format_number(float(known.median()))} in the median, which a key's score must exceed."
        )
    carrying = [float(row.mean()) for row in m.examples["carrying"]]
    kind = f"gated, with {site.activation}" if site.is_gated else site.activation
    return (
        f"The paper's model has ReLU, whose coefficients are 0 or positive; this one's layers are {kind}, with signed "
        f"coefficients, and {format_percent(min(carrying))} to {format_percent(max(carrying))} of the memories carry "
        f"{format_percent(CARRIED, 0)} of what a layer writes."
    )


def explain_drop(m: Measurements) -> str:
    """Explain why one layer has the fewest active memories, if the model is ungated; see `explain_active` otherwise.

    States how many of that layer's memories have no trigger, and how often the layer changes the top token.
    """
    if m.triggers.signed.any():
        return explain_active(m)
    least = int(np.argmin(m.examples[_counted(m)].mean(axis=1)))
    silent = [float((m.triggers.positions[m.agreement.layer(n)] < 0).all(axis=1).mean()) for n in range(m.n_layers)]
    changed = (m.examples["output"] != m.examples["residual"]).mean(axis=1)
    return (
        f"In layer {least}, which has the fewest, {format_percent(silent[least])} of the memories have no trigger in "
        f"the text (at most {format_percent(max(np.delete(silent, least), default=0.0))} in another layer), and the "
        f"FFN changes the first token in {format_percent(changed[least])} of the examples, in the median layer in "
        f"{format_percent(float(np.median(changed)))}."
    )


ACTIVE: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "active memories",
        "Between 10 and 50 % of the memories are active for a typical example.",
        where="Sec. 5.1, Fig. 7",
        what="share of coefficients above 0, by layer; of gated memories, whose coefficients have either sign, the "
        f"share that carries {format_percent(CARRIED, 0)} of the update",
        published="10 to 50 %",
        test="Every layer lies between 10 and 50 %; bootstrap over examples.",
        measure=active,
        judge=lambda n: judged(
            f"Between {percent(least_of(n.layers))} and {percent(most_of(n.layers))} of the memories {n.what}, by "
            "layer.",
            *(within(x, 0.1, 0.5) for x in n.layers),
        ),
        explain=explain_active,
        rows=lambda n: (Row("active memories, all layers", n.whole, source="10 to 50 %"),),
        references={
            "fig7_active": (
                Reference(
                    "median, published",
                    (0.4, 0.4, 0.1, 0.15, 0.15),
                    (0.5, 0.5, 0.15, 0.2, 0.2),
                    paper.at(1, 5, 10, 11, 16),
                ),
            )
        },
        origins=(
            Origin("active memories", "10 to 50 %, fewest in layer 10", SUMMARY),
            Origin(
                "active memories by layer",
                "40 to 50 % (1 to 5), 10 to 15 % (10), 15 to 20 % (11 to 16)",
                READ_OFF,
                "Fig. 7",
            ),
        ),
    ),
    Quantity(
        "active memories drop",
        "The number of active memories drops towards layer 10 of 16.",
        where="Sec. 5.1, Fig. 7",
        what="layer with the fewest active memories, and their share",
        published="from 40 to 50 % down to 10 to 15 % in layer 10 of 16 (read off Fig. 7 by a third party)",
        test="The minimum lies between 0.4 and 0.8 of the depth, below two thirds of the first layer and below the "
        "last; bootstrap over examples.",
        measure=active,
        judge=judge_drop,
        explain=explain_drop,
        rows=lambda n: (
            Row("first layer", n.layers[0], source="about 40 to 50 %, read off Fig. 7 (layers 1 to 5)"),
            Row("the layer with the fewest", n.fewest, source="10 to 15 %, layer 10 of 16"),
            Row("last layer", n.layers[-1], source="15 to 20 %, read off Fig. 7"),
            Row("memories of one layer active at once", n.number, None, "hundreds (of 4,096)", "memories"),
        ),
    ),
)


def active_section(m: Measurements) -> Section:
    """Show how many memories of each layer are active, by several definitions of active."""
    e, fraction, gated = m.examples, m.options.fraction, bool(m.triggers.signed.any())
    counts = {"carrying": f"carrying {format_percent(CARRIED, 0)}"}
    if gated:
        counts |= {"participation": "participation ratio", "above_usual": "at least their usual size"}
    else:
        counts = {
            "above_zero": "above 0",
            "above_fraction": f"at least {format_setting(fraction)} of the largest",
            **counts,
        }
    cells = {
        "layer": range(m.n_layers),
        **{name: means(e[name], m.seed) for name in counts},
        **boxes("active", e[_counted(m)]),
    }
    shares = (*counts, *(f"active_{q}" for q in QUANTILES))
    drawn, three = f"Fig. 7: memories that {_WORDS[_counted(m)]}", "Active memories by three definitions"
    return Section(
        "Active memories",
        (
            f"Measured on {len(m.positions):,} random prefixes; a layer has {m.triggers.n_memories:,} memories. The "
            "paper counts memories with a coefficient above 0; with ReLU these are all that are not 0. "
            + (
                "The sign of a gated memory's coefficient is only a convention, so this count has no meaning here. "
                "Three other shares are given. The first, which is judged, is the smallest set of memories with "
                f"{format_percent(CARRIED, 0)} of the layer's sum of lengths |m|·‖v‖. The second is the participation "
                "ratio of these lengths a, (Σ a)² / (n Σ a²). The third are the memories whose |m| is at least their "
                f"own root mean square over {min(USUAL, len(m.positions)):,} of the examples."
                if gated
                else "For other activations there are two more counts: memories whose |m| is at least "
                f"{format_setting(fraction)} of the layer's largest, and the smallest set of memories with "
                f"{format_percent(CARRIED, 0)} of the layer's sum of lengths |m|·‖v‖."
            ),
        ),
        (exhibit("active", "Share of memories that are active", cells, m.provenance, percent=shares),),
        (
            by_layer("fig7_active", drawn, "active", {"active": "active"}, "memories", "box"),
            by_layer("active_definitions", three, "active", counts, "memories", published=paper.NO_FIGURE),
        ),
    )


@once
def zero(m: Measurements) -> Numbers:
    """Return, by layer, the share of examples in which no memory has the layer's top token.

    There are three versions: for active memories, for all memories, and as in the paper's released code.
    """
    e, n = m.examples, len(m.positions)
    names = {"active": "any_active", "all_memories": "any_value", "released_code": "any_output"}
    return Numbers(**{to: [share_of(int((~row).sum()), n) for row in e[name]] for to, name in names.items()})


@once
def agreeing(m: Measurements) -> Numbers:
    """Compare the cases (layer and example) in which an active memory has the layer's top token with all cases."""
    e, seed = m.examples, m.seed
    layers, which = np.nonzero(e["any_active"])
    stop, n = stop_words(m.lm), e["update"].shape[1]
    short = m.example_text.prefix_lengths(m.positions) < SHORT
    gold = m.example_text.next_tokens(m.positions)
    follows = gold[which]
    everyone = np.tile(np.arange(n), len(e["update"]))
    return Numbers(
        cases=len(which),
        stops=mean_of(stop[e["update"][layers, which]], units=which, seed=seed, share=True),
        all_stops=mean_of(stop[e["update"]].ravel(), units=everyone, seed=seed, share=True),
        gold_stops=mean_of(stop[follows[follows >= 0]], units=which[follows >= 0], seed=seed, share=True),
        all_gold=share_of(int(stop[gold[gold >= 0]].sum()), int((gold >= 0).sum())),
        shorts=mean_of(short[which], units=which, seed=seed, share=True),
        all_shorts=share_of(int(short.sum()), n),
    )


def explain_zero(m: Measurements) -> str:
    """State which share of the vocabulary is the top token of some value vector in a layer.

    Also state how many memories agree with their layer (have its top token) where at least one does.
    """
    a, counts = m.agreement, m.examples["agreeing"]
    share = max(len(np.unique(a.top[a.layer(n)])) / m.lm.d_vocab for n in range(m.n_layers))
    many = plain_mean(counts[counts > 0].astype(float))
    active = ", all of which are active, at either sign," if m.triggers.signed.any() else ""
    return (
        f"A layer has {m.triggers.n_memories:,} memories here{active} for {m.lm.d_vocab:,} tokens, in the paper 4,096 "
        f"for {paper.D_VOCAB:,}. A random token is the first of some value of a layer in at most "
        f"{format_percent(share)} of cases; where any memory agrees, {format_number(many)} do on average."
    )


def explain_agreeing(m: Measurements) -> str | None:
    """State in which share of cases some memory has the layer's top token; None if at most a third, as in the paper."""
    share = float(m.examples["any_active"].mean())
    if share <= 1 / 3:
        return None
    return (
        f"In {format_percent(share)} of the cases some memory agrees, in the paper in at most a third: agreeing "
        "cases are not a small special set here."
    )


PUBLISHED_SHORT = 0.43
"""The paper's share of prefixes with fewer than five tokens among the cases in which a memory agrees with its layer."""


def explain_short(m: Measurements) -> str | None:
    """State how many times as often a memory agrees with its layer on short prefixes as on longer ones.

    Also state which factor would give the paper's share of short prefixes. If some memory agrees in more than a third
    of all cases, state this instead. None if no example is short.
    """
    if (everywhere := explain_agreeing(m)) is not None:
        return everywhere
    short, agrees = m.example_text.prefix_lengths(m.positions) < SHORT, m.examples["any_active"]
    on_short, on_longer = (plain_mean(agrees[:, side].astype(float)) for side in (short, ~short))
    if not short.any() or not on_longer:
        return None
    needed = PUBLISHED_SHORT / (1 - PUBLISHED_SHORT) / (short.mean() / (1 - short.mean()))
    return (
        f"{format_percent(float(short.mean()))} of the examples are short: for {format_percent(PUBLISHED_SHORT, 0)} of "
        f"the agreeing cases a memory would have to agree {format_number(needed)} times as often on them as on longer "
        f"ones, and it does {format_number(on_short / on_longer)} times as often."
    )


COMPOSITION: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "zero agreement",
        "In at least 68 % of the examples the layer's prediction differs from every memory's.",
        where="Sec. 5.1, Fig. 8",
        what="share of examples in which no active memory has the layer's first token first, by layer",
        published="at least about 68 % in every layer",
        test="Every layer lies above 68 %; exact binomial intervals over examples.",
        measure=zero,
        judge=lambda n: judged(
            f"In at least {percent(least_of(n.active))} of the examples (layer "
            f"{n.active.index(least_of(n.active))}) the layer's prediction differs from every active memory's, in at "
            f"least {percent(least_of(n.all_memories))} from every memory's.",
            *(above(x, 0.68) for x in n.active),
        ),
        explain=explain_zero,
        rows=lambda n: (
            Row(
                "least zero agreement of a layer, active memories",
                least_of(n.active),
                68,
                "“at least ~68 %” in every layer (Sec. 5.1)",
            ),
            Row("least zero agreement of a layer, all memories", least_of(n.all_memories), 68),
        ),
        references={"fig8_zero_agreement": (Reference("least, published", (0.68,)),)},
        origins=(Origin("zero agreement", "at least about 68 % in every layer", SUMMARY),),
    ),
    Quantity(
        "stop words",
        "Where a memory agrees, the token is a common stop word in 60 % of the cases.",
        where="Sec. 5.1",
        what="stop words among agreeing cases",
        published="60 %",
        test="Between 45 and 75 %, and above the share of stop words in all layers' predictions; bootstrap over "
        "examples, whose layers are resampled together.",
        measure=agreeing,
        judge=lambda n: (
            judged(
                f"Where a memory agrees with its layer's prediction, this is a stop word in {percent(n.stops)} of the "
                f"cases, against {percent(n.all_stops)} of all layers' predictions.",
                within(n.stops, 0.45, 0.75),
                above(n.stops, n.all_stops.high),
            )
            if n.cases >= FEWEST_CASES
            else None
        ),
        explain=explain_agreeing,
        rows=lambda n: (
            Row("agreeing cases whose agreed token is a stop word", n.stops, 60),
            Row("all layers' predictions that are stop words", n.all_stops),
            Row(
                "agreeing cases whose next token in the text is a stop word",
                n.gold_stops,
                60,
                "Sec. 5.1 (the text allows both)",
            ),
            Row("all examples' next tokens that are stop words", n.all_gold),
        ),
        origins=(Origin("agreeing cases", "60 % stop words, 43 % prefixes of fewer than five tokens", SUMMARY),),
    ),
    Quantity(
        "short prefixes",
        "Where a memory agrees, the prefix has fewer than five tokens in 43 % of the cases.",
        where="Sec. 5.1",
        what="short prefixes among agreeing cases",
        published="43 %",
        test="Between 28 and 58 %, and above the share of short prefixes in all examples; bootstrap over examples, "
        "whose layers are resampled together.",
        measure=agreeing,
        judge=lambda n: (
            judged(
                f"Where a memory agrees with its layer's prediction, the prefix has fewer than {SHORT} tokens in "
                f"{percent(n.shorts)} of the cases, against {percent(n.all_shorts)} of all examples.",
                within(n.shorts, 0.28, 0.58),
                above(n.shorts, n.all_shorts.high),
            )
            if n.cases >= FEWEST_CASES
            else None
        ),
        explain=explain_short,
        rows=lambda n: (
            Row(f"agreeing cases with fewer than {SHORT} tokens", n.shorts, 43),
            Row(f"all examples with fewer than {SHORT} tokens", n.all_shorts),
        ),
    ),
)


def composition_section(m: Measurements) -> Section:
    """Show how often the top token of a layer is also the top token of one of its memories."""
    e, found = m.examples, zero(m)
    stop, short = stop_words(m.lm), m.example_text.prefix_lengths(m.positions) < SHORT
    layers = list(zip(e["update"], e["any_active"], strict=True))
    series = {
        "differs_from_all": "than all memories",
        "differs_from_active": "than active ones",
        "released_code": "as the released code",
    }
    cells = {
        "layer": range(m.n_layers),
        "differs_from_all": found.all_memories,
        "differs_from_active": found.active,
        "released_code": found.released_code,
        "agreeing_memories": [float(row[row > 0].mean()) if (row > 0).any() else 0.0 for row in e["agreeing"]],
        "stop_words": [plain_mean(stop[tokens[agrees]]) for tokens, agrees in layers],
        "short_prefixes": [plain_mean(short[agrees]) for _, agrees in layers],
    }
    title = "Examples in which the layer's prediction is that of no memory"
    shares, drawn = (*series, "stop_words", "short_prefixes"), "Fig. 8: the layer predicts what no memory does"
    return Section(
        "Layers compose their memories",
        (
            "A layer's prediction is the top token of its update y (bias included); a memory's prediction is the top "
            "token of its value v. “All” compares the layer with every one of its memories, as the paper's formula "
            "does. “Active” compares it only with memories whose coefficient is not 0 (with the top token of −v if it "
            "is negative). The released code compares memories with the top token of residual plus update instead. "
            "All three are exact. In a small vocabulary, a layer easily agrees with one of all its memories by chance: "
            f"it has {m.triggers.n_memories:,} memories here for {m.lm.d_vocab:,} tokens, in the paper 4,096 for "
            "267,744.",
        ),
        (exhibit("zero_agreement", title, cells, m.provenance, percent=shares),),
        (by_layer("fig8_zero_agreement", drawn, "zero_agreement", series, "examples", y_range=(0, 1)),),
    )


def stop_words(lm: Decoder) -> np.ndarray:
    """Return a mask (d_vocab,) of the tokens that are common stop words."""
    return np.array([token.word in STOP_WORDS for token in clean(lm.token_strings(range(lm.d_vocab)))])


PARTS = (
    Part(active_section, ACTIVE, "active_published", "Active memories: here and published"),
    Part(
        composition_section,
        COMPOSITION,
        "composition_published",
        "Layers against their memories: here and published",
        "An agreeing case is a layer and an example in which an active memory agrees; all layers count together.",
    ),
)
