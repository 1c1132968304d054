"""What the model does without a node of a circuit, or with a group of nodes changed: measured in the model itself.

It stands beside a node's relevance, which comes from the linear model of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.circuit_graph.cases import BATCH_TOKENS, Case
from unembed.circuit_graph.faithfulness import Bench
from unembed.circuit_graph.node_scores import Node
from unembed.circuit_graph.node_values import Place, run_changed
from unembed.dictionaries import AttachedDictionary
from unembed.models.decoder import Decoder
from unembed.names import SetTo


@dataclass(frozen=True)
class Removal:
    """The prediction of a prompt without one node.

    Attributes:
        metric: the logit of the token, or its difference to the other.
        probabilities: of the token, and of the other if there is one.
    """

    metric: float
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Changed:
    """Nodes that are changed together.

    Attributes:
        factor: what multiplies their numbers; None where they are set to the values that they have without the
            behaviour.
    """

    nodes: tuple[Node, ...] = ()
    factor: float | None = None


def removal_of_each(
    lm: Decoder, case: Case, nodes: Sequence[Node], to: SetTo, dictionary: AttachedDictionary | None = None
) -> list[Removal]:
    """Measure the prediction without each node by itself; the first result is that with all of them.

    Args:
        case: one prompt.
        nodes: at positions counted back.
        to: what a removed node is set to: its value after the "counterfactual", its mean over a text ("corpus"), or
            "zero".
        dictionary: the one whose features are among the nodes.

    Memory: activations and logits of `BATCH_TOKENS` tokens. Cost: a pass for as many nodes as fit.
    """
    return with_each(lm, case, [Changed(), *(Changed((node,)) for node in nodes)], to, dictionary)


@torch.no_grad()
def with_each(
    lm: Decoder, case: Case, changes: Sequence[Changed], to: SetTo, dictionary: AttachedDictionary | None = None
) -> list[Removal]:
    """Measure the prediction under each change by itself; arguments, memory and cost as for `removal_of_each`."""
    bench = Bench(lm, [case], to, ("head", "memory", *(() if dictionary is None else ("feature",))), dictionary)
    ((batch, values, _),) = bench.batches
    length = batch.tokens.shape[1]
    rows = max(1, BATCH_TOKENS // length)
    found: list[Removal] = []
    for start in range(0, len(changes), rows):
        some = changes[start : start + rows]
        of_place: dict[Place, list[tuple[int, Node, float | None]]] = {}
        for row, one in enumerate(some):
            for node in one.nodes:
                of_place.setdefault((node.kind, node.layer), []).append((row, node, one.factor))

        def new(t: Tensor, place: Place, of_place: Mapping[Place, Sequence[Any]] = of_place) -> Tensor:
            changed = t.clone()
            for row, node, factor in of_place[place]:
                at = length - 1 - node.back
                own, other = t[row, at, node.index], values[place][0, at, node.index].to(t)
                changed[row, at, node.index] = other if factor is None else own * factor
            return changed

        seen = run_changed(lm, batch.tokens.expand(len(some), -1), dictionary, list(of_place), new)
        found += [_removal(case, row) for row in seen.logits[:, -1].double().cpu()]
    return found


def _removal(case: Case, logits: Float[Tensor, " d_vocab"]) -> Removal:
    tokens = [token for token in (case.token, case.against) if token is not None]
    probabilities = logits.softmax(-1)[tokens].tolist()
    metric = logits[case.token] - (logits[case.against] if case.against is not None else 0.0)
    return Removal(float(metric), tuple(probabilities))
