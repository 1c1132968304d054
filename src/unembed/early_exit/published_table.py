"""Reproduce Table 6 of Geva et al. 2022: all early-exit methods on five splits of the examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from unembed.early_exit import thresholds as threshold_choice
from unembed.early_exit.baselines import CONFIDENCES, FEATURES, PAPER_PROTOCOL
from unembed.early_exit.example_prefixes import Examples
from unembed.early_exit.fitting import fit_score, split
from unembed.early_exit.rule import accuracy_and_savings
from unembed.early_exit.sub_updates_rule import CLUSTERS, SubUpdates, value_clusters
from unembed.errors import InvalidInput
from unembed.memories.clustering.value_clusters import ValueClusters
from unembed.models.decoder import Decoder
from unembed.results import Table
from unembed.validation import one_of

Threshold = Literal["f1", "precision"]
SEEDS = (38, 39, 40, 41, 42)
METHODS = ("sub_updates, set", "sub_updates", *FEATURES, *CONFIDENCES, "oracle", "last layer")
"""Rows of the table. The first is the sub-updates rule of the paper's text, which compares sets of clusters; the second
is that of the released code, which compares them in order. Classifiers and the model's confidence follow, and two
bounds: exit at the saturation layer (oracle), and no early exit (last layer)."""
PUBLISHED = {
    "representation": (94.4, 6.4, 3.0, 0.4),
    "update": (92.9, 5.4, 3.1, 0.3),
    "both": (94.4, 6.4, 3.0, 0.4),
    "sub_updates, set": (94.1, 1.4, 3.2, 0.3),
}
"""Table 6 of the paper (WikiLM, 16 layers): accuracy and saved layers, mean and standard deviation."""


def table_6(
    lm: Decoder,
    found: Examples,
    *,
    seeds: Sequence[int] = SEEDS,
    methods: Sequence[str] = METHODS,
    clusters: int | ValueClusters = CLUSTERS,
    level: float = 0.05,
    threshold: Threshold = "f1",
    progress: Callable[[int, int], None] | None = None,
    **sweep: Any,
) -> Table:
    """Tabulate accuracy and saved layers of every rule: mean and population standard deviation over seeds.

    Each seed splits the examples 80/10/10 into training, choice of thresholds, and test. Classifiers are fitted as in
    the paper unless `sweep` says otherwise. Confidence thresholds are chosen by risk control at `level`. The
    sub-updates rule needs no threshold, but is also trained on 80 per cent (the paper: 90), so that all rules use the
    same examples. "oracle" exits at the saturation layer.

    Args:
        found: the examples.
        seeds: the seeds of the splits.
        methods: the methods, one for each row of the table.
        clusters: clusters of all value vectors for the sub-updates rule, or their number.
        level: bound on the expected disagreement of the confidence rules.
        threshold: how the threshold of classifiers is chosen in each layer: "f1", by the largest F1 (the paper's text),
            or "precision", by a precision of 0.75 (the released code).
        progress: called with the number of fits done and their total.
        sweep: options `sweep`, `penalties` and `folds` of the classifiers; by default those of the paper.

    Raises:
        InvalidInput: fewer than 20 examples, or an unknown threshold.

    Source: Geva et al. 2022, Table 6.
    """
    if len(found) < 20:
        raise InvalidInput(
            f"{len(found)} examples", why="they are too few to train, set thresholds and test", instead="Give more"
        )
    one_of("threshold", threshold, ("f1", "precision"))
    sweep = dict(PAPER_PROTOCOL) | sweep
    if isinstance(clusters, ValueClusters):
        labels, n_clusters = clusters.by_layer, clusters.n_clusters
    else:
        labels = value_clusters(lm, clusters) if any(m.startswith("sub_updates") for m in methods) else None
        n_clusters = clusters
    rows: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    done = 0
    for seed in seeds:
        parts = split(found, seed, (0.8, 0.1, 0.1))
        for method in methods:
            rows[method].append(
                accuracy_and_savings(parts[-1], _exits(lm, method, labels, parts, level, threshold, sweep))
            )
            done += 1
            if progress is not None:
                progress(done, len(seeds) * len(methods))
    columns: dict[str, list[Any]] = {"method": list(methods)}
    for name in ("accuracy", "saved_layers", "saved_layers_of_right"):
        columns[name] = [float(np.mean([r[name] for r in rows[m]])) for m in methods]
        columns[f"{name}_std"] = [float(np.std([r[name] for r in rows[m]])) for m in methods]
    for at, name in enumerate(("accuracy", "accuracy_std", "saved_layers", "saved_layers_std")):
        columns[f"published_{name}"] = [PUBLISHED[m][at] if m in PUBLISHED else None for m in methods]
    notes = {
        "examples": len(found),
        "seeds": list(seeds),
        "clusters": n_clusters,
        "level": level,
        "threshold": threshold,
    }
    notes |= {name: list(value) if isinstance(value, tuple) else value for name, value in sweep.items()}
    title = f"Early exit of {lm.name}, {lm.n_layers} layers"
    return Table(title, columns, lm.provenance(corpus=found.corpus, basis=found.basis, notes=notes))


def _exits(
    lm: Decoder,
    method: str,
    labels: np.ndarray | None,
    parts: Sequence[Examples],
    level: float,
    threshold: Threshold,
    sweep: dict[str, Any],
) -> np.ndarray:
    """Return the layer after which each example of the last part (the test examples) exits."""
    train, calibration_set, test = parts
    n = lm.n_layers - 1
    if method == "oracle":
        return test.saturation.numpy()
    if method == "last layer":
        return np.full(len(test), n)
    if method.startswith("sub_updates"):
        assert labels is not None
        similarity = "set" if method.endswith("set") else "ordered"
        rule = SubUpdates(labels, train.dominant.numpy(), train.saturation.numpy(), similarity)
        return threshold_choice.exit_layers(rule.scores(test), np.zeros(n))
    score = fit_score(lm, train, method, sweep if method in FEATURES else {})
    if method in FEATURES:
        choose = threshold_choice.by_f1 if threshold == "f1" else threshold_choice.by_precision
        thresholds = choose(score.scores(calibration_set), calibration_set.saturation.numpy())
    else:
        scores, top = score.scores(calibration_set), calibration_set.top.numpy()
        thresholds = np.full(n, threshold_choice.risk_controlled_threshold(scores, top, level))
    return threshold_choice.exit_layers(score.scores(test), thresholds)
