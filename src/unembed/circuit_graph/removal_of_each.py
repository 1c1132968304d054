"""What the model does without a node of a circuit, for each of some nodes: measured in the model itself.

It stands beside a node's relevance, which comes from the linear model of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.circuit_graph.cases import BATCH_TOKENS, Case
from unembed.circuit_graph.faithfulness import Bench
from unembed.circuit_graph.node_scores import Node
from unembed.circuit_graph.pass_tensors import PartKind
from unembed.models.decoder import Decoder
from unembed.names import SetTo
from unembed.stream.run import run

_POINTS: dict[PartKind, Literal["z", "coefficients"]] = {"head": "z", "memory": "coefficients"}


@dataclass(frozen=True)
class Removal:
    """The prediction of a prompt without one node.

    Attributes:
        metric: the logit of the token, or its difference to the other.
        probabilities: of the token, and of the other if there is one.
    """

    metric: float
    probabilities: tuple[float, ...]


@torch.no_grad()
def removal_of_each(lm: Decoder, case: Case, nodes: Sequence[Node], to: SetTo) -> list[Removal]:
    """Measure the prediction without each node by itself; the first result is that with all of them.

    Args:
        case: one prompt.
        nodes: heads and memories at positions counted back.
        to: what a removed node is set to: its value after the "counterfactual", its mean over a text ("corpus"), or
            "zero".

    Memory: activations and logits of `BATCH_TOKENS` tokens. Cost: a pass for as many nodes as fit.
    """
    bench = Bench(lm, [case], to, ("head", "memory"))
    ((batch, values, _),) = bench.batches
    length = batch.tokens.shape[1]
    waiting: list[Node | None] = [None, *nodes]
    rows = max(1, BATCH_TOKENS // length)
    found: list[Removal] = []
    for start in range(0, len(waiting), rows):
        some = waiting[start : start + rows]

        def replaced(t: Tensor, layer: int, kind: PartKind, some: Sequence[Node | None] = some) -> Tensor:
            here = [(i, n) for i, n in enumerate(some) if n is not None and (n.kind, n.layer) == (kind, layer)]
            if not here:
                return t
            changed = t.clone()
            for row, node in here:
                at = length - 1 - node.back
                changed[row, at, node.index] = values[kind, layer][0, at, node.index].to(t)
            return changed

        hooks = {
            _POINTS[kind]: partial(replaced, kind=kind)
            for kind in _POINTS
            if any(place[0] == kind for place in bench.sizes)
        }
        logits = run(lm, batch.tokens.expand(len(some), -1), hooks=hooks).logits[:, -1].double().cpu()
        found += [_removal(case, row) for row in logits]
    return found


def _removal(case: Case, logits: Float[Tensor, " d_vocab"]) -> Removal:
    tokens = [token for token in (case.token, case.against) if token is not None]
    probabilities = logits.softmax(-1)[tokens].tolist()
    metric = logits[case.token] - (logits[case.against] if case.against is not None else 0.0)
    return Removal(float(metric), tuple(probabilities))
