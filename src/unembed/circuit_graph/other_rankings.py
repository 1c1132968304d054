"""Rank nodes by simpler scores than relevance, with which the test of a circuit compares relevance.

| ranking | score of a node |
|---|---|
| gradient | the change of its activation between the two prompts times the plain gradient (attribution patching) |
| difference | the absolute change of its activation between the two prompts |
| coefficient | the absolute value of its activation |

Without counterfactuals, the change is the activation itself (its difference from 0). The activation of a head is a
vector: its product with the gradient is a dot product, and its absolute value is the Euclidean norm. Scores are
averaged over the prompts.

Source: Arora et al. 2026 and Rezaei Jafari et al. 2025 make the same comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.circuit_graph.cases import Case, batches
from unembed.circuit_graph.node_scores import Node, ranked
from unembed.circuit_graph.node_values import POINTS
from unembed.circuit_graph.relevance import contribution
from unembed.linear_model.pass_tensors import PartKind
from unembed.models.decoder import Decoder
from unembed.names import RankedBy
from unembed.stream.capture_points import has_point
from unembed.stream.run import run


def other_ranking(
    lm: Decoder, cases: Sequence[Case], by: RankedBy, kinds: Sequence[PartKind], count: int
) -> list[Node]:
    """Return the `count` nodes with the largest absolute scores; the module's docstring explains the scores.

    Cost: a forward pass over the prompts and one over counterfactuals; for "gradient", a backward pass, too.

    Raises:
        Unsupported: the score is "gradient", and the model's layers have FFNs of different sizes.
    """
    longest = max(len(case.prompt) for case in cases)
    kinds = [kind for kind in kinds if kind in POINTS]
    points = [POINTS[kind] for kind in kinds if any(has_point(lm, POINTS[kind], n) for n in range(lm.n_layers))]
    sums: dict[tuple[PartKind, int], Tensor] = {}
    for batch in batches(lm, cases):
        own = run(lm, batch.tokens, points, grad=by == "gradient")
        other = None if batch.counterfactual is None else run(lm, batch.counterfactual, points, logits=False)
        metric = batch.aim.of(own.logits[:, -1]).sum()
        for kind in kinds:
            point = POINTS[kind]
            layers = [n for n in range(lm.n_layers) if own.has(point, n)]
            gradients = own.gradient(point, metric) if by == "gradient" and layers else None
            for i, layer in enumerate(layers):
                value = own.at(point, layer)
                change = value if other is None else value - other.at(point, layer)
                if gradients is not None:
                    score = contribution(change, gradients[i], kind)
                else:
                    score = _size(value if by == "coefficient" else change, kind)
                summed = score.sum(0).flip(0).double().cpu()
                whole = sums.setdefault((kind, layer), torch.zeros(longest, summed.shape[1], dtype=torch.float64))
                whole[: len(summed)] += summed
    return [node for node, _ in ranked(sums, count)]


def _size(values: Tensor, kind: PartKind) -> Float[Tensor, "batch pos node"]:
    """Return the absolute value of each memory's activation, or the norm of each head's."""
    return torch.linalg.vector_norm(values.float(), dim=-1) if kind == "head" else values.abs()
