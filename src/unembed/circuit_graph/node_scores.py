"""Compute the relevance of every node, summed over the cases of a behaviour, and select the nodes of a graph.

Prompts may differ in length, so positions count back from the end: 0 is the last token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.circuit_graph.cases import Case, CaseBatch, batches
from unembed.circuit_graph.features import in_place_of_memories
from unembed.circuit_graph.node_values import capture_points, values
from unembed.circuit_graph.relevance import Relevance, contribution, relevance
from unembed.dictionaries import AttachedDictionary
from unembed.linear_model.linear_pass import attention_patterns, linear_pass
from unembed.linear_model.pass_tensors import LinearPass, PartKind
from unembed.models.decoder import Decoder
from unembed.names import QKRule
from unembed.stream.run import Run, run


@dataclass(frozen=True, order=True)
class Node:
    """A head, a memory or a dictionary feature at a position; `back` counts the position from the end of the prompt."""

    kind: PartKind
    layer: int
    back: int
    index: int


@dataclass(eq=False)
class NodeScores:
    """Sums over cases: the relevance of every node, and the other terms of the metric.

    Attributes:
        parts: relevance of heads, memories and features, by kind and layer.
        tokens: relevance of the token embeddings.
        positions: relevance of the position embeddings; 0 if the model adds none.
        biases: relevance of the biases of each layer.
        closed: relevance of components to which no linear rule applies, by layer and label.
        constants: what the biases of final norm and unembedding, and the logit soft cap, add to the metric.
        metric: the metric of the model itself.
        counterfactual_metric: the metric after the counterfactual prompts; 0 without them.
        error: the largest relative error of a sum in any case.
        unopened: names of components through which relevance is not followed.
    """

    parts: dict[tuple[PartKind, int], Float[Tensor, "back node"]]
    tokens: Float[Tensor, " back"]
    positions: float
    biases: Float[Tensor, " layer"]
    closed: dict[tuple[int, str], float]
    constants: float
    metric: float
    counterfactual_metric: float
    error: float
    unopened: tuple[str, ...]


def changes(
    lm: Decoder, batch: CaseBatch, made: LinearPass, dictionary: AttachedDictionary | None = None
) -> tuple[dict[tuple[PartKind, int], Tensor], Tensor, Run | None]:
    """Return each node's activation minus that in the counterfactual run; without one, the activation itself.

    Returns:
        The difference for every node, by kind and layer; the difference for the residual stream that enters the first
        block; and the counterfactual run, or None.
    """
    if batch.counterfactual is None:
        return {key: part.own.detach() for key, part in made.parts.items()}, made.start.detach(), None
    where = list(made.parts)
    other = run(lm, batch.counterfactual, (*capture_points(dictionary, where), "resid_pre"))
    own = values(other, dictionary, where)
    found: dict[tuple[PartKind, int], Tensor] = {
        place: part.own.detach() - own[place] for place, part in made.parts.items()
    }
    return found, made.start.detach() - other.at("resid_pre", 0), other


def node_scores(
    lm: Decoder, cases: Sequence[Case], dictionary: AttachedDictionary | None = None, qk: QKRule = "constant"
) -> NodeScores:
    """Compute the relevance of every node, summed over cases.

    Each batch of cases takes one forward and one backward pass; with counterfactuals, one more forward pass.

    Raises:
        SumNotProved: the relevance in a run does not add up to its metric.

    Memory: activations and gradients of one batch, and one value for each node.
    """
    longest = max(len(case.prompt) for case in cases)
    total = NodeScores(
        {}, torch.zeros(longest, dtype=torch.float64), 0.0, torch.zeros(lm.n_layers), {}, 0.0, 0.0, 0.0, 0.0, ()
    )
    for batch in batches(lm, cases):
        patterns = attention_patterns(lm, batch.tokens, qk)
        made = linear_pass(lm, batch.tokens, patterns, in_place_of_memories(dictionary), qk=qk)
        found = relevance(made, batch.aim)
        differences, start, other = changes(lm, batch, made, dictionary)
        for (kind, layer), gradient in found.gradients.items():
            score = contribution(differences[kind, layer], gradient, kind).sum(0).flip(0).double().cpu()
            _add(total.parts, (kind, layer), score, longest)
        _add_ends(total, made, found, start, paired=other is not None)
        if other is not None:
            total.counterfactual_metric += float(batch.aim.of(other.logits[:, -1]).sum())
    return total


def _add(sums: dict, key: object, score: Float[Tensor, "back node"], longest: int) -> None:
    whole = sums.setdefault(key, torch.zeros(longest, *score.shape[1:], dtype=torch.float64))
    whole[: len(score)] += score


def _add_ends(total: NodeScores, made: LinearPass, found: Relevance, start: Tensor, *, paired: bool) -> None:
    """Add the relevance of one batch's tokens, positions, biases and constants.

    With counterfactuals (`paired`), only the relevance of tokens is added: positions and biases are the same in both
    runs, so they cancel.
    """
    product = (start.double() * found.start.double()).sum(-1).sum(0).flip(0).cpu()
    total.metric += float(found.metric.sum())
    total.error = max(total.error, found.error)
    total.unopened = tuple(dict.fromkeys((*total.unopened, *made.unopened)))
    if not paired:
        if made.positions is not None:
            placed = (made.positions.double() * found.start.double()).sum(-1).sum(0).flip(0).cpu()
            product, total.positions = product - placed, total.positions + float(placed.sum())
        total.biases += found.biases.sum(1)
        total.constants += float((found.readout.bias + found.readout.cap).sum())
        for key, whole in found.closed.items():
            total.closed[key] = total.closed.get(key, 0.0) + float(whole.sum())
    total.tokens[: len(product)] += product


def ranked(
    parts: Mapping[tuple[PartKind, int], Float[Tensor, "back node"]], count: int, kind: PartKind | None = None
) -> list[tuple[Node, float]]:
    """Return the `count` nodes with the largest absolute relevance, largest first."""
    keys = sorted(key for key in parts if kind is None or key[0] == kind)
    if not keys:
        return []
    flat = torch.cat([parts[key].flatten() for key in keys])
    starts = torch.tensor([parts[key].numel() for key in keys]).cumsum(0)
    found: list[tuple[Node, float]] = []
    for i in flat.abs().topk(min(count, len(flat))).indices.tolist():
        at = int((starts <= i).sum())
        key = keys[at]
        within = i - (int(starts[at - 1]) if at else 0)
        width = parts[key].shape[1]
        found.append((Node(*key, within // width, within % width), float(flat[i])))
    return found


def select_nodes(scores: NodeScores, most: int, share: float) -> list[tuple[Node, float]]:
    """Return the fewest nodes that have `share` of the sum of all |relevance|; at most `most` nodes."""
    whole = sum(float(part.abs().sum()) for part in scores.parts.values())
    covered, chosen = 0.0, list[tuple[Node, float]]()
    for node, score in ranked(scores.parts, most):
        if covered >= share * whole:
            break
        covered += abs(score)
        chosen.append((node, score))
    return chosen
