"""Section 5.2: promotion across layers (Fig. 3), extreme sub-updates, their clusters and the two groups they form."""

from __future__ import annotations

from typing import Any

import numpy as np

from unembed.document.intervals import columns, mean_of
from unembed.document.model import Exhibit, Figure, Finding, Section
from unembed.lens import comparable_basis, read
from unembed.memories.event_scores import ExtremeSubUpdates, candidate_scores
from unembed.memories.values import values_of
from unembed.reports.geva2022 import published
from unembed.reports.geva2022.measurements import Measurements
from unembed.results import Table

FREQUENT = 0.9
"""Share of the appearances that the frequently active clusters hold together; the paper gives no number."""
SHORT = 3
"""Tokens of a short prefix (the paper: extreme sub-updates are mostly active on inputs of three or fewer)."""
EASY = 0.5
"""Final probability above which a target is called easy here, "obvious" in the paper."""
_SHARES = ("values_share", "mean_depth", "short_prefix", "easy_target", "either", "upper_third")
_TOP = 10
_CLUSTERS_SHOWN = 25


def frequently_active(clusters_of_rows: np.ndarray) -> np.ndarray:
    """Which rows lie in a frequently active cluster: the fewest clusters that hold `FREQUENT` of all rows.

    Args:
        clusters_of_rows: the cluster of each appearance of an extreme sub-update.
    """
    numbers, counts = np.unique(clusters_of_rows, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    # Up to the first cluster with which the sum reaches the share.
    n = int(np.searchsorted(np.cumsum(counts[order]), FREQUENT * len(clusters_of_rows) - 1e-9)) + 1
    return np.isin(clusters_of_rows, numbers[order[:n]])


def clusters_of(m: Measurements) -> np.ndarray:
    """The cluster of each appearance of an extreme sub-update."""
    rows = zip(m.extreme.layer, m.extreme.index, strict=True)
    return np.array([m.clusters.of(int(n), int(i)) for n, i in rows], dtype=np.int64)


def frequent(m: Measurements) -> ExtremeSubUpdates:
    """The extreme sub-updates whose clusters are frequently active (Sec. 5.2)."""
    extreme, active = m.extreme, frequently_active(clusters_of(m))
    rows = (a[active] for a in (extreme.layer, extreme.index, extreme.example, extreme.score))
    return ExtremeSubUpdates(extreme.threshold, extreme.basis, *rows)


def section(m: Measurements, findings: tuple[Finding, ...]) -> Section:
    """Tables, figures and findings."""
    extreme, clusters = m.extreme, m.clusters
    by_layer = _figure_3(m)
    cards = _cluster_table(m)
    groups = _group_table(m)
    text = (
        "For every layer, what is first before its FFN is scored by the 10 dominant sub-updates; largest, mean and "
        "least of the ten, averaged over examples.",
        f"Extreme are dominant sub-updates that move that score by more than {extreme.threshold:.3g} (the paper's "
        "thresholds, 10 and 5, are in the units of its models). Each lies in one of "
        f"{clusters.n_clusters:,} clusters of all values (average linkage, cosine; the paper: 10,000). Groups are of "
        f"sub-updates in frequently active clusters: the fewest that hold {FREQUENT:.0%} of all appearances (the paper "
        "gives no number). A group is defined by the frequency of a value's 10 top tokens in the corpus: rare if at "
        "least half of them are in the rarer half of the vocabulary, common otherwise.",
    )
    figures = (
        Figure(
            "fig3",
            "Scores of the top candidate by the dominant sub-updates",
            "line",
            "fig3",
            "layer",
            ("max", "mean", "min"),
            x_label="layer",
            y_label=f"score ({extreme.basis})",
            references=published.PEAKS,
        ),
        Figure("extremes", "Extreme sub-updates by layer", "bar", "fig3", "layer", ("extremes",), x_label="layer",
               y_label="appearances", published=published.NOT_IN_PAPER),
    )  # fmt: skip
    exhibits = (
        Exhibit("fig3", by_layer, apart=(("extremes",),)),
        Exhibit("extreme_groups", groups, "", _SHARES, apart=(("mean_prefix",),)),
        Exhibit(
            "extreme_clusters",
            cards,
            "The clusters with most extreme sub-updates.",
            folded=True,
            apart=(("coherence",), ("mean_score",), ("tokens_per_million",)),
        ),
    )
    return Section("Promotion across layers (Sec. 5.2)", text, exhibits, figures, findings)


def _figure_3(m: Measurements) -> Table:
    sample, extreme, provenance = m.sample, m.extreme, m.provenance
    scores = candidate_scores(sample, basis=extreme.basis)
    cells: dict[str, list[Any]] = {"layer": list(range(sample.n_layers))}
    for name, reduced in (("max", scores.max(-1)), ("mean", scores.mean(-1)), ("min", scores.min(-1))):
        cells |= columns(name, [mean_of(row, seed=m.seed) for row in reduced])
    random = candidate_scores(sample, basis=extreme.basis, random=True)
    cells["random_max"] = random.max(-1).mean(-1).tolist()
    cells["random_min"] = random.min(-1).mean(-1).tolist()
    cells["extremes"] = np.bincount(extreme.layer, minlength=sample.n_layers).tolist()
    return Table("Scores of the top candidate by layer (Fig. 3)", cells, provenance)


def is_rare(token_counts: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """For rows of token ids: whether at least half of a row's tokens are in the rarer half of the vocabulary."""
    rank = np.empty(len(token_counts), dtype=np.int64)
    rank[np.argsort(-token_counts, kind="stable")] = np.arange(len(token_counts))
    return (rank[ids] >= len(token_counts) / 2).mean(axis=1) >= 0.5


def top_ids(m: Measurements, memories: np.ndarray) -> np.ndarray:
    """The ten top tokens of each value."""
    if not len(memories):
        return np.zeros((0, _TOP), dtype=np.int64)
    basis = comparable_basis(m.lm)
    return read(m.lm, values_of(m.lm, memories), _TOP, basis=basis, hidden=m.hidden).ids.cpu().numpy()


def _group_table(m: Measurements) -> Table:
    sample, extreme, clusters = m.sample, frequent(m), m.clusters
    memories = extreme.memories
    rare = is_rare(m.token_counts, top_ids(m, memories)) if len(memories) else np.zeros(0, dtype=bool)
    of_memory = {(int(n), int(i)): bool(r) for (n, i), r in zip(memories, rare, strict=True)}
    row_rare = np.array([of_memory[int(n), int(i)] for n, i in zip(extreme.layer, extreme.index, strict=True)], bool)
    sizes = np.bincount(clusters.labels)
    names = ["both", "rare tokens", "common tokens", "all examples"]
    cells: dict[str, list[Any]] = {"group": names}
    for column in ("memories", "clusters", "values_share", "mean_depth", "upper_third", "appearances"):
        cells[column] = []
    cells |= {"short_prefix": [], "easy_target": [], "either": [], "mean_prefix": []}
    for name in names:
        rows = {"both": np.ones(len(extreme), bool), "rare tokens": row_rare, "common tokens": ~row_rare}.get(name)
        examples = np.arange(len(sample)) if rows is None else extreme.example[rows]
        chosen = memories[:0] if rows is None else memories if name == "both" else memories[rare == (name[0] == "r")]
        depth = chosen[:, 0] / max(sample.n_layers - 1, 1)
        numbers = {clusters.of(int(n), int(i)) for n, i in chosen}
        cells["memories"].append(len(chosen))
        cells["clusters"].append(len(numbers))
        cells["values_share"].append(float(sizes[sorted(numbers)].sum() / len(clusters.labels)) if numbers else 0.0)
        cells["mean_depth"].append(_mean(depth))
        cells["upper_third"].append(_mean(depth >= 2 / 3))
        cells["appearances"].append(len(examples))
        short, easy = m.text_lengths[examples] <= SHORT, sample.final_probability[examples] >= EASY
        for column, found in (("short_prefix", short), ("easy_target", easy), ("either", short | easy)):
            cells[column].append(_mean(found))
        cells["mean_prefix"].append(_mean(m.text_lengths[examples]))
    return Table("Two groups of extreme sub-updates", cells, m.provenance)


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _cluster_table(m: Measurements) -> Table:
    lm, extreme, clusters, token_counts = m.lm, m.extreme, m.clusters, m.token_counts
    of_row = clusters_of(m)
    numbers, counts = np.unique(of_row, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_CLUSTERS_SHOWN]
    shown = numbers[order].tolist()
    unlearned = m.options.include_unlearned
    cards = clusters.cards(0 if not shown else _TOP, numbers=shown or None, tokens=_TOP, show_unlearned=unlearned)
    given = cards.columns
    ids = [top_ids(m, np.array(clusters.members(n)[:8])).ravel() for n in shown]
    cells = {
        "cluster": shown,
        "appearances": counts[order].tolist(),
        "by_layer": [np.bincount(extreme.layer[of_row == n], minlength=lm.n_layers).tolist() for n in shown],
        "size": given["size"],
        "coherence": given["coherence"],
        "mean_score": [float(extreme.score[of_row == n].mean()) for n in shown],
        "tokens_per_million": [
            float(np.median(token_counts[row]) / max(token_counts.sum(), 1) * 1e6) if len(row) else None for row in ids
        ],
        "top_tokens": given["top_tokens"],
    }
    about = f"published: {published.EXTREME_SHARE['gpt2']:.1%} and {published.EXTREME_SHARE['wikilm']:.1%} of values"
    return Table(f"Clusters of extreme sub-updates ({about})", cells, m.provenance)
