"""The data of each result's drawing: a grid of tokens, a heat map, or bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from unembed.results import numbers, numbers_or_none

if TYPE_CHECKING:
    from torch import Tensor

    from unembed.attention.behaviour.head_scores import HeadScores
    from unembed.causality import Ablation, CorpusAblation, EstimatedEffects, Patching, PatchingPairs, Paths
    from unembed.logit_attribution import Attribution, Effects
    from unembed.results import Table
    from unembed.trace import EntropyAndKL, MemoryEffects, Readings

MAX_BARS = 40
_LISTED = 5
"""Tokens listed under a cell."""


def attribution(result: Attribution) -> dict[str, Any]:
    """A bar for each writer, and the sum that they make."""
    rows = result.rows if len(result) <= MAX_BARS else result.top(MAX_BARS)
    others = len(result) - len(rows)
    note = f"sum {result.total:.5g}, logit {result.logit:.5g}, relative error {result.error:.1e}"
    return {
        "schema": "unembed.attribution/1",
        "rows": [{"label": r.label, "layer": r.layer, "index": r.index, "contribution": r.contribution} for r in rows],
        "note": f"{others:,} other writers; {note}" if others else note,
    }


def readings(result: Readings) -> dict[str, Any]:
    """The top token of every layer and position, shaded by its probability."""
    k = min(_LISTED, result.ids.shape[-1])
    return {
        "schema": "unembed.readings/1",
        "tokens": list(result.prompt),
        "texts": [[texts[:k] for texts in layer] for layer in result.tokens],
        "probabilities": numbers(result.probabilities[..., :k]),
        "label": f"Top token of {result.point} by layer and position",
        "note": f"{result.point}, basis {result.basis}",
    }


def entropy_and_kl(result: EntropyAndKL) -> dict[str, Any]:
    """The entropy of every layer and position, as a part of the largest."""
    entropy = numbers(result.entropy)
    most = max(float(result.entropy.max()), 1e-9)
    shares = [[x / most for x in row] for row in entropy]
    names = [f"layer {n}" for n in range(len(entropy))]
    return heat(
        names,
        list(result.tokens),
        shares,
        entropy,
        "entropy",
        f"Entropy of the prediction read at {result.point}, nats",
    )


def patching(result: Patching) -> dict[str, Any]:
    """The fraction recovered by layer and position or head; of memories, the strongest of each cell."""
    what = f"Fraction of {result.metric} recovered by patching {result.point}"
    note = f"{what}; clean {result.clean:+.4g}, corrupted {result.corrupted:+.4g}, aligned {result.alignment}"
    return _recovered(result, result.recovered, note)


def patching_pairs(result: PatchingPairs) -> dict[str, Any]:
    """The mean fraction recovered."""
    first = result.each[0]
    note = f"Mean fraction recovered by patching {first.point}, over {len(result.each)} pairs"
    return _recovered(first, result.recovered, note)


def _recovered(of: Patching, recovered: Tensor, note: str) -> dict[str, Any]:
    by_head = of.point in ("z", "pattern")
    if recovered.dim() == 3:
        strongest = recovered.abs().argmax(-1, keepdim=True)
        recovered = recovered.gather(-1, strongest)[..., 0]
    columns = [f"H{i}" for i in range(recovered.shape[1])] if by_head else list(of.tokens)
    values = numbers(recovered)
    return heat([f"layer {n}" for n in of.layers], columns, values, values, "recovered", note)


def ablation(result: Ablation) -> dict[str, Any]:
    """Heads as a square each; anything else as bars, the largest effects first."""
    title = f"Effect on {result.metric} of ablation to {result.to}; baseline {result.baseline:+.4g}"
    if result.values.dim() == 2 and result.labels[0].startswith("L") and "H" in result.labels[0]:
        return {
            "schema": "unembed.heads/2",
            "scores": numbers(result.effects),
            "definition": "effect of ablating each",
            "note": title,
        }
    return _bars(result.to_table(), "ablated", "effect", title)


def corpus_ablation(result: CorpusAblation) -> dict[str, Any]:
    """The rise of the loss by each ablation, the largest change first."""
    title = f"Change of the loss by ablation to {result.to}, nats a token; unchanged {result.loss:.4g}"
    return _bars(result.to_table(), "ablated", "loss_change", title, ("low", "high"))


def estimated_effects(result: EstimatedEffects) -> dict[str, Any]:
    """The exact effects of the strongest writers; the estimate is in each bar's title."""
    title = f"Exact effects on {result.metric} of the writers strongest by estimate (attribution patching)"
    return _bars(result.to_table(), "writer", "exact_effect", title, ("estimated_effect",))


def paths(result: Paths) -> dict[str, Any]:
    """The fraction recovered along each path, the largest first."""
    table = result.to_table()
    rows = [{**row, "path": f"{row['sender']} to {row['receiver']}"} for row in table.head(MAX_BARS)]
    return _bars_of(rows, "path", "recovered", f"Fraction of {result.metric} recovered along each path", ("metric",))


def effects(result: Effects) -> dict[str, Any]:
    """Total effects; the direct one is in each bar's title."""
    rows = [row for row in result.to_table() if row["total_effect"] is not None]
    return _bars_of(rows, "writer", "total_effect", f"Total effects. {result.title}", ("direct_effect", "note"))


def memory_effects(result: MemoryEffects) -> dict[str, Any]:
    """The contribution of each memory to the question."""
    return _bars(result.to_table(), "memory", "effect", result.to_table().title, ("coefficient",))


def head_scores(result: HeadScores, kind: str = "induction") -> dict[str, Any]:
    """One score of every head."""
    note = f"{kind.replace('_', ' ')}; {result.to_table().title}"
    return {"schema": "unembed.heads/2", "scores": numbers_or_none(result[kind]), "definition": kind, "note": note}


def heat(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    shown: Sequence[Sequence[float]],
    unit: str,
    note: str,
) -> dict[str, Any]:
    """A heat map shaded by values from -1 to 1; `shown` are the numbers in the cells, in `unit`."""
    return {
        "schema": "unembed.heat/1",
        "rows": list(rows),
        "columns": list(columns),
        "values": values,
        "shown": shown,
        "unit": unit,
        "note": note,
    }


def _bars(table: Table, label: str, value: str, note: str, more: Sequence[str] = ()) -> dict[str, Any]:
    return _bars_of(list(table.head(MAX_BARS)), label, value, note, more, len(table))


def _bars_of(
    rows: Sequence[dict[str, Any]],
    label: str,
    value: str,
    note: str,
    more: Sequence[str] = (),
    n: int | None = None,
) -> dict[str, Any]:
    """Bars from rows of a table; the columns of `more` are written out in each bar's title."""
    hovers = [
        ", ".join(f"{name.replace('_', ' ')} {_short(row[name])}" for name in more if row[name] not in (None, ""))
        for row in rows
    ]
    left = (n or len(rows)) - len(rows)
    return {
        "schema": "unembed.bars/1",
        "rows": [
            {"label": str(row[label]), "value": row[value], "title": title}
            for row, title in zip(rows, hovers, strict=True)
        ],
        "note": f"{note}; {left:,} more in the table" if left else note,
    }


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


DRAWINGS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Ablation": ablation,
    "Attribution": attribution,
    "CorpusAblation": corpus_ablation,
    "Effects": effects,
    "EntropyAndKL": entropy_and_kl,
    "EstimatedEffects": estimated_effects,
    "HeadScores": head_scores,
    "MemoryEffects": memory_effects,
    "Patching": patching,
    "PatchingPairs": patching_pairs,
    "Paths": paths,
    "Readings": readings,
}
"""By the name of the result's class."""
