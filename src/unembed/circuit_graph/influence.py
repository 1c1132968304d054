"""Compute each node's influence on the metric over all paths, and two scores of how much the graph explains.

The absolute weights of the edges into each node are divided by their sum; the results form a matrix A. The influence of
a node is the sum over all paths from it to the metric: the metric's row of A + A^2 + ... = (I - A)^-1 - I. Biases and
constants are left out. A path begins at a token of the prompt, or at a node of kind "rest". These "rest" nodes are what
the graph does not explain: heads and memories that are not in it, components through which relevance is not followed,
and changes of attention patterns and gates.

    replacement  = influence of tokens / (influence of tokens and of rest nodes)
    completeness = share of the edges into nodes and metric, weighted by the target's influence, not from rest nodes

Source: Ameisen et al. 2025; the scores as in the graphs of circuit-tracer (Hanna et al. 2025), where reconstruction
errors take the part of "rest" nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

_INPUTS = ("token", "positions")


@dataclass(frozen=True)
class Influence:
    """Every node's influence on the metric, and two scores of the graph.

    Both scores are 0 if no path leads from a token or a "rest" node to the metric.
    """

    of: Mapping[str, float]
    replacement: float
    completeness: float


def influence(kinds: Mapping[str, str], edges: Sequence[tuple[str, str, float]], metric: str) -> Influence:
    """Compute influence from edges.

    Args:
        kinds: the kind of each node; "positions" for position embeddings, which are part of the prompt.
        edges: source, target and weight.
        metric: the name of the metric as a target of edges.
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
