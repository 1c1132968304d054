"""Influence of a node over all paths of a graph, and two scores of how much of the answer the graph explains.

Each weight into a node is divided by the sum of their sizes, so that what flows in is 1. Influence of a node on the
answer is then the sum over all paths from it to the metric: the metric's row of A + A^2 + ... = (I - A)^-1 - I. Biases
and constants are left out. Paths begin at a token (the prompt), or at a rest node (what the graph does not explain: the
heads and memories that are not in it, parts that are not opened, changes of patterns and gates).

    replacement  = influence of tokens / (influence of tokens and of rest nodes)
    completeness = share of what flows into nodes and metric, weighted by their influence, that is not from rest nodes

Source: Ameisen et al. 2025; the scores as in the graphs of circuit-tracer (Hanna et al. 2025), whose errors of
reconstruction are rest nodes here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

_INPUTS = ("token", "positions")


@dataclass(frozen=True)
class Influence:
    """Influence of every node on the metric, and the two scores; both are 0 where nothing flows into the metric."""

    of: Mapping[str, float]
    replacement: float
    completeness: float


def influence(kinds: Mapping[str, str], edges: Sequence[tuple[str, str, float]], metric: str) -> Influence:
    """Compute influence from edges.

    Args:
        kinds: the kind of each node; "positions" for position embeddings, which are part of the prompt.
        edges: source, target and weight.
        metric: the name of the last target.
    """
    names = [name for name, kind in kinds.items() if kind != "bias"]
    place = {name: i for i, name in enumerate([*names, metric])}
    weights = torch.zeros(len(place), len(place), dtype=torch.float64)
    for source, target, weight in edges:
        if source in place and target in place:
            weights[place[target], place[source]] = abs(weight)
    sums = weights.sum(1, keepdim=True)
    weights = torch.where(sums > 0, weights / sums.clamp_min(1e-300), 0.0)
    eye = torch.eye(len(place), dtype=torch.float64)
    from_metric = torch.linalg.solve(eye - weights, weights, left=True)[-1]
    is_rest = torch.tensor([*(kinds[name] == "rest" for name in names), False])
    is_input = torch.tensor([*(kinds[name] in _INPUTS for name in names), False])
    inputs, rest = float(from_metric[is_input].sum()), float(from_metric[is_rest].sum())
    reached = from_metric + eye[-1]
    inside = float(((1 - weights[:, is_rest].sum(1)) * reached).sum() / reached.sum())
    found = dict(zip([*names, metric], from_metric.tolist(), strict=True))
    return Influence(
        {name: found.get(name, 0.0) for name in kinds},
        inputs / (inputs + rest) if inputs + rest else 0.0,
        inside if inputs + rest else 0.0,
    )
