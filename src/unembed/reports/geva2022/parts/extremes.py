"""Section 5.2: sub-updates with extreme scores, their clusters, and whether they promote rare or common tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from unembed.document.exhibits import exhibit, plain_mean
from unembed.document.intervals import Measured, difference_of, mean_of, share_of
from unembed.document.model import Exhibit
from unembed.document.numbers import percent, points
from unembed.jacobian.basis import in_basis
from unembed.lens import read
from unembed.memories.event_scores import ExtremeSubUpdates, extreme_sub_updates
from unembed.memories.values import values_of
from unembed.reports.geva2022 import published
from unembed.reports.geva2022.measurements import Measurements
from unembed.reports.geva2022.published import FEWEST
from unembed.reports.published import PRINTED, SUMMARY, Origin
from unembed.reports.quantities import Judgement, Numbers, Quantity, above, judged, once
from unembed.results import format_number, format_percent

FREQUENT = 0.9
"""Share of all extreme sub-updates that lie in frequently active clusters; the paper gives no number."""
SHORT = 3
"""Largest number of tokens of a short prefix (the paper: extreme sub-updates are mostly active on such inputs)."""
PERIODS = (".", "。")
"""Tokens that end a sentence, the paper's example of a target that is easy to predict."""
EASY = 0.5
"""Smallest probability of a prediction that counts as easy ("obvious" in the paper)."""
FEWEST_VALUES = 5
"""Smallest number of value vectors in a group whose depth is judged."""
DRAWS = 200
"""Number of random sets of sub-updates to compare with the extreme ones."""
_TOP = 10
_CLUSTERS_SHOWN = 25


def frequently_active(clusters_of_rows: np.ndarray) -> np.ndarray:
    """Return a mask of the rows in frequently active clusters.

    These are the fewest clusters that together contain the share `FREQUENT` of all rows.

    Args:
        clusters_of_rows: the cluster of each occurrence of an extreme sub-update.
    """
    numbers, counts = np.unique(clusters_of_rows, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    # Take the most frequent clusters until they contain the share `FREQUENT` of all rows. The small constant allows for
    # rounding errors in the product.
    n = int(np.searchsorted(np.cumsum(counts[order]), FREQUENT * len(clusters_of_rows) - 1e-9)) + 1
    return np.isin(clusters_of_rows, numbers[order[:n]])


def clusters_of(m: Measurements) -> np.ndarray:
    """Return the cluster of the value vector for each occurrence of an extreme sub-update."""
    rows = zip(m.extreme.layer, m.extreme.index, strict=True)
    return np.array([m.clusters.of(int(n), int(i)) for n, i in rows], dtype=np.int64)


@once
def frequent(m: Measurements) -> ExtremeSubUpdates:
    """Return the extreme sub-updates in frequently active clusters (Sec. 5.2; see `frequently_active`)."""
    extreme, active = m.extreme, frequently_active(clusters_of(m))
    rows = (a[active] for a in (extreme.layer, extreme.index, extreme.example, extreme.score))
    return ExtremeSubUpdates(extreme.threshold, extreme.basis, *rows)


def is_rare(token_counts: np.ndarray, ids: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
    """Return for each row of token ids whether at least half of its tokens are rare.

    A token is rare if its count is at most the median count of the vocabulary.

    Args:
        known: a mask of the tokens over whose counts the median is taken; all tokens when None.
    """
    median = np.median(token_counts if known is None else token_counts[known])
    return (token_counts[ids] <= median).mean(axis=1) >= 0.5


def top_ids(m: Measurements, memories: np.ndarray) -> np.ndarray:
    """Return the ids of the ten top tokens of what each memory (FFN neuron) adds to the residual stream.

    Args:
        memories: rows of layer, index, and 1 for the usual sign of the coefficient (`Measurements.signs`) or -1 for the
            opposite sign.
    """
    if not len(memories):
        return np.zeros((0, _TOP), dtype=np.int64)
    values = values_of(m.lm, memories[:, :2])
    found = np.zeros((len(memories), min(_TOP, m.lm.d_vocab)), dtype=np.int64)
    factors = torch.tensor([float(m.signs[n][i]) * way for n, i, way in memories.tolist()])
    written = values * factors.to(values)[:, None]
    for layer in np.unique(memories[:, 0]).tolist():
        rows = np.flatnonzero(memories[:, 0] == layer)
        vectors, basis = in_basis(m.lm, written[torch.from_numpy(rows)], layer, m.basis)
        found[rows] = read(m.lm, vectors, _TOP, basis=basis, hidden=m.hidden).ids.cpu().numpy()
    return found


def ways_of(m: Measurements, extreme: ExtremeSubUpdates) -> Int[np.ndarray, " row"]:
    """Return 1 for each sub-update whose coefficient has the usual sign of its memory (`Measurements.signs`), else -1.

    In ungated layers it is always 1.
    """
    at = m.sample.dominant[extreme.layer, extreme.example] == extreme.index[:, None]
    m_of_row = m.sample.coefficients[extreme.layer, extreme.example][np.arange(len(at)), at.argmax(axis=1)]
    usual = np.array([float(m.signs[n][i]) for n, i in zip(extreme.layer, extreme.index, strict=True)])
    gated = np.array([m.lm.is_signed(n) for n in range(m.lm.n_layers)])[extreme.layer]
    return np.where(gated & (m_of_row * usual < 0), -1, 1)


@once
def promoters(m: Measurements) -> Int[np.ndarray, "memory 3"]:
    """Return the distinct memories of `frequent`, as rows of layer, index, and 1 or -1 as in `ways_of`."""
    found = frequent(m)
    return np.unique(np.column_stack([found.layer, found.index, ways_of(m, found)]), axis=0).astype(np.int64)


@once
def rare(m: Measurements) -> np.ndarray:
    """Return a mask of the memories of `promoters` whose top tokens are mostly rare."""
    memories = promoters(m)
    if not len(memories):
        return np.zeros(0, dtype=bool)
    # Tokens that are left out of rankings are never top tokens. They hardly occur, so they would lower the median
    # count.
    known = None if m.hidden is None else ~m.hidden.cpu().numpy()
    return is_rare(m.token_counts, top_ids(m, memories), known)


@once
def few_values(m: Measurements) -> Numbers | None:
    """Measure the share of all value vectors that lie in frequently active clusters of extreme sub-updates.

    For comparison, also measure it for as many random dominant sub-updates.
    """
    extreme, sample, clusters = m.extreme, m.sample, m.clusters
    if len(extreme) < FEWEST:
        return None
    sizes, n_values = np.bincount(clusters.labels), len(clusters.labels)
    number = clusters.labels[np.lexsort((clusters.memory[:, 1], clusters.memory[:, 0]))]
    width = n_values // sample.n_layers

    def covered(layer: np.ndarray, index: np.ndarray) -> float:
        of_rows = number[layer * width + index]
        return float(sizes[np.unique(of_rows[frequently_active(of_rows)])].sum() / n_values)

    random = np.random.default_rng([m.seed, 22])
    layers, dominant = np.broadcast_arrays(np.arange(sample.n_layers)[:, None, None], sample.dominant)
    layers, dominant = layers.ravel(), dominant.ravel()
    drawn = [random.choice(len(dominant), len(extreme), replace=False) for _ in range(DRAWS)]
    by_chance = np.array([covered(layers[rows], dominant[rows]) for rows in drawn])
    return Numbers(covered=covered(extreme.layer, extreme.index), by_chance=by_chance)


def judge_few_values(n: Numbers) -> Judgement:
    """Judge whether frequently active clusters contain few value vectors, and fewer than for random sub-updates."""
    mean, (low, high) = float(n.by_chance.mean()), np.quantile(n.by_chance, (0.025, 0.975))
    return judged(
        f"{format_percent(n.covered)} of the values lie in a cluster that is frequently active in extreme updates; for "
        f"as many random dominant sub-updates it is {format_percent(mean)} [{format_number(100 * low)}, "
        f"{format_number(100 * high)}].",
        n.covered < 0.05,
        above(Measured(mean, float(low), float(high), len(n.by_chance)), 2 * n.covered),
    )


def explain_few_values(m: Measurements) -> str | None:
    """State how many memories and clusters have extreme sub-updates, and how large the largest of these clusters is.

    None if there are no extreme sub-updates.
    """
    if not len(m.extreme):
        return None
    sizes, n_values = np.bincount(m.clusters.labels), len(m.clusters.labels)
    of_rows = clusters_of(m)
    found = np.unique(of_rows[frequently_active(of_rows)])
    return (
        f"{len(m.extreme):,} extreme sub-updates are of {len(m.extreme.memories):,} memories; {len(found):,} of "
        f"{len(sizes):,} clusters are frequently active, and the largest of them alone has "
        f"{format_percent(float(sizes[found].max() / n_values))} of all values."
    )


def explain_inputs(m: Measurements) -> str | None:
    """State how many examples have extreme sub-updates, and how many memories cause these; None if there are none."""
    if not len(m.extreme):
        return None
    layers = np.bincount(m.extreme.layer)
    most, with_one = int(layers.argmax()), len(np.unique(m.extreme.example)) / len(m.sample)
    return (
        f"Extreme sub-updates occur in {format_percent(with_one)} of the examples; "
        f"{format_percent(float(layers[most] / layers.sum()))} of them are in layer {most}, and all are of "
        f"{len(m.extreme.memories):,} memories."
    )


UNUSABLE = 0.5
"""If at least this share of the vocabulary is not in the text, its counts cannot tell rare tokens from common ones."""


@once
def groups(m: Measurements) -> Numbers:
    """Return the relative depths of the extreme memories that promote rare tokens, and of the other ones."""
    depth = promoters(m)[:, 0] / max(m.sample.n_layers - 1, 1)
    return Numbers(rare=depth[rare(m)], common=depth[~rare(m)], unseen=m.unseen, seed=m.seed)


def judge_groups(n: Numbers) -> Judgement:
    """Judge whether memories that promote rare tokens lie in later layers than those that promote common tokens."""
    if n.unseen >= UNUSABLE:
        here = (
            f"{format_percent(n.unseen, 0)} of the tokens do not occur in the text, so that its counts cannot tell "
            "which are rare; a larger text can (--option frequency_text=FILE)."
        )
        return Judgement(here, "inconclusive")
    if min(len(n.rare), len(n.common)) < FEWEST_VALUES:
        here = (
            f"Extreme values that promote rare tokens: {len(n.rare)}; common ones: {len(n.common)}; too few to compare."
        )
        return Judgement(here, "inconclusive")
    lead = difference_of(n.rare, n.common, seed=n.seed)
    return judged(
        f"{len(n.rare)} extreme values promote rare tokens, at {format_percent(n.rare.mean(), 0)} of the depth on "
        f"average; {len(n.common)} promote common ones, at {format_percent(n.common.mean(), 0)}, a difference of "
        f"{points(lead)}.",
        above(lead, 0),
        bool(n.rare.mean() >= 0.5),
    )


@once
def inputs(m: Measurements) -> Numbers | None:
    """Compare how often prefixes are short or predictions easy, for examples with extreme sub-updates and for all.

    A sub-update is extreme if its absolute score for the top token before the FFN exceeds a threshold.
    """
    if len(m.extreme) < FEWEST:
        return None
    cases = cases_of(m)

    def both(hits: np.ndarray) -> tuple[Measured, Measured]:
        examples = m.extreme.example
        own = mean_of(hits[examples].astype(float), units=examples, seed=m.seed, share=True)
        return own, share_of(int(hits.sum()), len(hits))

    extreme, every = both(cases["short_prefix"] | cases["easy_target"])
    return Numbers(extreme=extreme, all=every, cases={name: both(hits) for name, hits in cases.items()})


@once
def cases_of(m: Measurements) -> dict[str, np.ndarray]:
    """Return masks of the examples with a short prefix, a prediction of high probability, and a predicted period."""
    period = np.array([token.strip() in PERIODS for token in m.lm.token_strings(m.sample.final.tolist())])
    return {
        "short_prefix": m.text_lengths <= SHORT,
        "easy_target": m.sample.final_probability >= EASY,
        "period": period,
    }


def judge_inputs(n: Numbers) -> Judgement:
    """Judge whether extreme sub-updates occur mostly in easy cases.

    Short prefixes and easy predictions must also each be more frequent where extreme sub-updates occur than among all
    examples.
    """
    names = {
        "short_prefix": f"a prefix of at most {SHORT} tokens",
        "easy_target": f"a prediction of probability {EASY} or more",
        "period": "a period as prediction",
    }
    apart = "; ".join(
        f"{what} {percent(n.cases[name][0])} ({percent(n.cases[name][1])})" for name, what in names.items()
    )
    return judged(
        f"{percent(n.extreme)} of the appearances of extreme sub-updates have a short prefix or a likely prediction; "
        f"of all examples {percent(n.all)} do. Apart, and in brackets of all examples: {apart}.",
        above(n.extreme, 0.5),
        above(n.extreme, n.all.high),
        *(above(n.cases[name][0], n.cases[name][1].value) for name in ("short_prefix", "easy_target")),
    )


def threshold_table(m: Measurements) -> Exhibit:
    """Count the extreme sub-updates at the threshold here and at those of the paper."""
    limits = {"here": m.extreme.threshold, **{f"paper, {name}": limit for name, limit in published.EXTREME.items()}}
    found = [extreme_sub_updates(m.sample, limit, basis=m.extreme.basis) for limit in limits.values()]
    depth = [one.layer / max(m.sample.n_layers - 1, 1) for one in found]
    cells = {
        "threshold_text": list(limits),
        "threshold": list(limits.values()),
        "share": [len(one) / m.sample.scores[..., 0, 0].size for one in found],
        "mean_depth": [plain_mean(layers) for layers in depth],
        "appearances": [len(one) for one in found],
        "memories": [len(one.memories) for one in found],
    }
    title = "Extreme sub-updates by threshold"
    note = "The paper's thresholds are in raw scores of its models. Share: of all dominant sub-updates."
    apart = (("threshold",),)
    shares = ("share", "mean_depth")
    return exhibit("extreme_thresholds", title, cells, m.provenance, note, percent=shares, apart=apart)


def group_table(m: Measurements) -> Exhibit:
    """Compare the extreme sub-updates that promote rare tokens with the others, and with all examples."""
    extreme, sizes = frequent(m), np.bincount(m.clusters.labels)
    memories, is_rare_ = promoters(m), rare(m)
    of_memory = {tuple(row): bool(r) for row, r in zip(memories.tolist(), is_rare_, strict=True)}
    triples = np.column_stack([extreme.layer, extreme.index, ways_of(m, extreme)]).tolist()
    rows = np.array([of_memory[tuple(row)] for row in triples], bool)
    every, nothing = np.arange(len(m.sample)), memories[:0]
    chosen = {  # the memories of a group, and the examples in which they are extreme
        "both": (memories, extreme.example),
        "rare tokens": (memories[is_rare_], extreme.example[rows]),
        "common tokens": (memories[~is_rare_], extreme.example[~rows]),
        "all examples": (nothing, every),
    }

    def of_group(memories: np.ndarray, examples: np.ndarray) -> dict[str, Any]:
        depth = memories[:, 0] / max(m.sample.n_layers - 1, 1)
        numbers = sorted({m.clusters.of(int(n), int(i)) for n, i, _ in memories})
        short, easy, period = (hits[examples] for hits in cases_of(m).values())
        return {
            "memories": len(memories),
            "clusters": len(numbers),
            "values_share": float(sizes[numbers].sum() / len(m.clusters.labels)) if numbers else 0.0,
            "mean_depth": plain_mean(depth),
            "upper_third": plain_mean(depth >= 2 / 3),
            "appearances": len(examples),
            "short_prefix": plain_mean(short),
            "easy_target": plain_mean(easy),
            "period": plain_mean(period),
            "either": plain_mean(short | easy),
            "mean_prefix": plain_mean(m.text_lengths[examples]),
        }

    found = [of_group(*group) for group in chosen.values()]
    cells = {"group": list(chosen), **{column: [row[column] for row in found] for column in found[0]}}
    shares = ("values_share", "mean_depth", "short_prefix", "easy_target", "period", "either", "upper_third")
    title = "Two groups of extreme sub-updates"
    return exhibit("extreme_groups", title, cells, m.provenance, percent=shares, apart=(("mean_prefix",),))


def cluster_table(m: Measurements) -> Exhibit:
    """List the clusters that have the largest numbers of extreme sub-updates, by layer and with their top tokens."""
    extreme, total = m.extreme, max(m.token_counts.sum(), 1)
    of_row = clusters_of(m)
    numbers, counts = np.unique(of_row, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_CLUSTERS_SHOWN]
    shown = numbers[order].tolist()
    cards = m.clusters.cards(
        _TOP if shown else 0, numbers=shown or None, tokens=_TOP, show_unlearned=m.options.include_unlearned
    ).columns
    ids = [top_ids(m, np.array([(*member, 1) for member in m.clusters.members(n)[:8]])).ravel() for n in shown]
    cells = {
        "cluster": shown,
        "appearances": counts[order].tolist(),
        "by_layer": [np.bincount(extreme.layer[of_row == n], minlength=m.lm.n_layers).tolist() for n in shown],
        "size": cards["size"],
        "coherence": cards["coherence"],
        "mean_score": [float(extreme.score[of_row == n].mean()) for n in shown],
        "tokens_per_million": [
            float(np.median(m.token_counts[row]) / total * 1e6) if len(row) else None for row in ids
        ],
        "top_tokens": cards["top_tokens"],
    }
    about = (
        f"published: {format_percent(published.EXTREME_SHARE['gpt2'], 1)} and "
        f"{format_percent(published.EXTREME_SHARE['wikilm'], 1)} of values"
    )
    title, note = f"Clusters of extreme sub-updates ({about})", "The clusters with most extreme sub-updates."
    apart = (("coherence",), ("mean_score",), ("tokens_per_million",))
    return exhibit("extreme_clusters", title, cells, m.provenance, note, folded=True, apart=apart)


QUANTITIES: tuple[Quantity[Measurements], ...] = (
    Quantity(
        "few values",
        "The clusters of extreme sub-updates cover only a small fraction of the value vectors.",
        where="Sec. 5.2",
        what="share of values in a cluster that is frequently active in extreme updates",
        published="1.7 % in GPT2, 1.1 % in WikiLM",
        test="The share is below 5 %, three times the published ones, and less than half of what as many random "
        "dominant sub-updates cover in 95 % of the draws: any few sub-updates lie in few clusters.",
        measure=few_values,
        judge=judge_few_values,
        explain=explain_few_values,
        origins=(
            Origin("share of values in extreme clusters", "1.7 % (GPT2), 1.1 % (WikiLM)", PRINTED),
            Origin("threshold of extreme scores", "10 (GPT2), 5 (WikiLM)", SUMMARY),
        ),
    ),
    Quantity(
        "two groups",
        "One group, in the upper layers, promotes generally unlikely tokens; the other, spread over all layers, "
        "promotes common tokens.",
        where="Sec. 5.2",
        what="mean depth of extreme values that promote rare tokens less that of the others",
        published="upper layers against all layers; no numbers",
        test="The difference is above 0 and the rare group lies in the upper half; groups of fewer than "
        f"{FEWEST_VALUES} values are not compared. Bootstrap over values.",
        measure=groups,
        judge=judge_groups,
    ),
    Quantity(
        "easy inputs",
        "Extreme sub-updates are mostly active for short inputs or when the target can be easily inferred.",
        where="Sec. 5.2",
        what="share of their appearances with a short prefix or a likely prediction",
        published="mostly (three tokens or fewer: a third party's words; the number is lost in the text at hand)",
        test="More than half of their appearances, and more than of all examples, also for short prefixes and for "
        "likely predictions alone: one of them must not hide the other. Bootstrap over examples, whose appearances "
        "are resampled together.",
        measure=inputs,
        judge=judge_inputs,
        explain=explain_inputs,
        origins=(Origin("length of a short prefix", "three tokens", SUMMARY),),
    ),
)
