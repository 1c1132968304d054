"""Change the nodes of a group in the model itself, and measure what the prediction becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.circuit_graph.cases import Case, CaseBatch, batches
from unembed.circuit_graph.node_scores import Node
from unembed.circuit_graph.node_values import Place, Values, capture_points, run_changed, values
from unembed.dictionaries import AttachedDictionary
from unembed.models.decoder import Decoder
from unembed.names import GroupChange
from unembed.results import Provenance, Table, format_setting
from unembed.stream.run import run

TOKENS = 3
"""Number of predicted tokens in the table."""
UNCHANGED = "nothing"
"""The entry of the column `changed` in the first row of the table, which is about the unchanged model."""


@torch.no_grad()
def group_effects(
    lm: Decoder,
    cases: Sequence[Case],
    groups: Mapping[str, tuple[Sequence[Node], float]],
    change: GroupChange,
    factor: float,
    dictionary: AttachedDictionary | None,
    provenance: Provenance,
) -> Table:
    """Change one group at a time: set it to 0, scale it, or set it to its values in the counterfactual prompt.

    Args:
        groups: by name, the nodes of a group and the sum of their relevance.
        factor: what the nodes' activations are multiplied by if the change is "scale".

    Returns:
        A row for the unchanged model and one for each group. Columns: changed (the group), nodes (their number),
        relevance, metric (mean over the prompts), and the most probable tokens after the first prompt with their
        probabilities.

    Cost: for each group, a pass over the prompts and, with "patch", one over the counterfactuals.
    """
    rows: list[tuple[Any, ...]] = [(UNCHANGED, 0, None, *_effect(lm, cases, (), change, factor, dictionary))]
    for name, (nodes, relevance) in groups.items():
        rows.append((name, len(nodes), relevance, *_effect(lm, cases, nodes, change, factor, dictionary)))
    doing = {
        "silence": "set to 0",
        "patch": "at their values in the counterfactual",
        "scale": f"times {format_setting(factor)}",
    }
    names = ("changed", "nodes", "relevance", "metric", "tokens", "probabilities")
    return Table.of_rows(f"One group of nodes at a time {doing[change]}", names, rows, provenance)


def _effect(
    lm: Decoder,
    cases: Sequence[Case],
    nodes: Sequence[Node],
    change: GroupChange,
    factor: float,
    dictionary: AttachedDictionary | None,
) -> tuple[float, list[str], list[float]]:
    """Return the mean metric with some nodes changed, and the tokens predicted after the first prompt."""
    total, first = 0.0, None
    for batch in batches(lm, cases):
        logits = _changed(lm, batch, nodes, change, factor, dictionary)
        total += float(batch.aim.of(logits).sum())
        if cases[0] in batch.cases and first is None:
            first = logits[batch.cases.index(cases[0])]
    assert first is not None
    top = first.float().softmax(-1).topk(min(TOKENS, len(first)))
    return total / len(cases), lm.token_strings(top.indices), top.values.tolist()


def _changed(
    lm: Decoder,
    batch: CaseBatch,
    nodes: Sequence[Node],
    change: GroupChange,
    factor: float,
    dictionary: AttachedDictionary | None,
) -> Float[Tensor, "batch d_vocab"]:
    length = batch.tokens.shape[1]
    by_place: dict[Place, list[Node]] = {}
    for node in nodes:
        if node.back < length:
            by_place.setdefault((node.kind, node.layer), []).append(node)
    where = list(by_place)
    other: Values = {}
    if change == "patch" and batch.counterfactual is not None and where:
        seen = run(lm, batch.counterfactual, capture_points(dictionary, where), logits=False)
        other = values(seen, dictionary, where)

    def new(t: Tensor, place: Place) -> Tensor:
        changed = t.clone()
        for node in by_place[place]:
            at = (slice(None), length - 1 - node.back, node.index)
            changed[at] = other[place][at].to(t) if change == "patch" else t[at] * (factor if change == "scale" else 0)
        return changed

    return run_changed(lm, batch.tokens, dictionary, where, new).logits[:, -1]
