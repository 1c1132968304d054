"""Measure the model's prediction without a node of a circuit, or with a group of nodes changed.

Unlike a node's relevance, which comes from a linear model of the run, these are predictions of the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from unembed.models.named_tokens import MovedTokens, moved_tokens
from unembed.names import SetTo


@dataclass(frozen=True)
class Removal:
    """The model's prediction after a prompt, with a node removed or some nodes changed.

    Attributes:
        metric: the logit of the explained token, or the difference of the two tokens' logits.
        probabilities: of the explained token, and of the other token if there is one.
        tokens: the tokens that the node raises and lowers most; None if that was not measured. If all prompts have the
            same explained token and the same other token, those of these two that the node changes clearly come first.
    """

    metric: float
    probabilities: tuple[float, ...]
    tokens: MovedTokens | None = None


@dataclass(frozen=True)
class Changed:
    """Nodes that are changed together.

    Attributes:
        factor: what their activations are multiplied by; None sets them to the values that they have without the
            behaviour.
    """

    nodes: tuple[Node, ...] = ()
    factor: float | None = None


def removal_of_each(
    lm: Decoder,
    cases: Sequence[Case],
    groups: Sequence[Sequence[Node]],
    to: SetTo,
    dictionary: AttachedDictionary | None = None,
) -> list[Removal]:
    """Measure the prediction without each group of nodes, one at a time; the first result is the unchanged prediction.

    Args:
        cases: one prompt, or several; results are means over the prompts.
        groups: the nodes of each group. Their positions count back from the end; a node at a position that a short
            prompt does not have is not changed there.
        to: what a removed node is set to: its value in the "counterfactual", its mean over a text ("corpus"), or
            "zero".
        dictionary: the dictionary of the features among the nodes.

    Memory: activations and logits of `BATCH_TOKENS` tokens, and the logits of one prompt without each group. Cost: for
    each prompt, one copy for each group. Copies run in batches of at most `BATCH_TOKENS` tokens.
    """
    changes = [Changed(), *(Changed(tuple(group)) for group in groups)]
    metrics, answers, logs = torch.zeros(1), torch.zeros(1, 1), torch.zeros(1, 1)
    for case in cases:
        logits = _logits(lm, case, changes, to, dictionary)
        metrics = metrics + _metric(case, logits) / len(cases)
        answers = answers + _probabilities(case, logits) / len(cases)
        logs = logs + logits.log_softmax(-1) / len(cases)
    found = [Removal(float(m), tuple(p.tolist())) for m, p in zip(metrics, answers, strict=True)]
    questions = {(case.token, case.against) for case in cases}
    named = [token for token in next(iter(questions)) if token is not None] if len(questions) == 1 else []
    tokens = [moved_tokens(lm, logs[0], log, named) for log in logs[1:]]
    return [found[0], *(replace(one, tokens=moved) for one, moved in zip(found[1:], tokens, strict=True))]


def usual_value(case: Case, dictionary: AttachedDictionary | None) -> SetTo:
    """Return what a removed node is set to by default.

    It is the node's value in the counterfactual. Without a counterfactual, it is the node's mean over a text ("corpus")
    or, if there is a dictionary, zero.
    """
    if case.counterfactual is not None:
        return "counterfactual"
    return "corpus" if dictionary is None else "zero"


def with_each(
    lm: Decoder, case: Case, changes: Sequence[Changed], to: SetTo, dictionary: AttachedDictionary | None = None
) -> list[Removal]:
    """Measure the prediction under each change, one at a time; see `removal_of_each` for arguments, memory and cost."""
    logits = _logits(lm, case, changes, to, dictionary)
    rows = zip(_metric(case, logits), _probabilities(case, logits), strict=True)
    return [Removal(float(metric), tuple(probabilities.tolist())) for metric, probabilities in rows]


@torch.no_grad()
def _logits(
    lm: Decoder, case: Case, changes: Sequence[Changed], to: SetTo, dictionary: AttachedDictionary | None
) -> Float[Tensor, "change d_vocab"]:
    """Return the logits after the prompt under each change, one at a time, in float64."""
    bench = Bench(lm, [case], to, ("head", "memory", *(() if dictionary is None else ("feature",))), dictionary)
    ((batch, values, _),) = bench.batches
    length = batch.tokens.shape[1]
    rows = max(1, BATCH_TOKENS // length)
    found = [torch.zeros(0, lm.d_vocab, dtype=torch.float64)]
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
                if at < 0:
                    continue
                own, other = t[row, at, node.index], values[place][0, at, node.index].to(t)
                changed[row, at, node.index] = other if factor is None else own * factor
            return changed

        seen = run_changed(lm, batch.tokens.expand(len(some), -1), dictionary, list(of_place), new)
        found.append(seen.logits[:, -1].double().cpu())
    return torch.cat(found)


def _metric(case: Case, logits: Float[Tensor, "change d_vocab"]) -> Float[Tensor, " change"]:
    return logits[:, case.token] - (logits[:, case.against] if case.against is not None else 0.0)


def _probabilities(case: Case, logits: Float[Tensor, "change d_vocab"]) -> Float[Tensor, "change answer"]:
    return logits.softmax(-1)[:, [token for token in (case.token, case.against) if token is not None]]
