"""Make the data of a circuit's picture, with the circuit's test and the model's prediction without each node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from unembed.circuit_graph.build import circuit_of
from unembed.circuit_graph.cases import Case, read_case
from unembed.circuit_graph.flow_view import BOXES, FlowView, GroupEffect, NamedNodes, flow_view, shown_groups
from unembed.circuit_graph.graph import KINDS, CircuitGraph
from unembed.circuit_graph.in_words import test_in_words
from unembed.circuit_graph.labels import node_name, text_of
from unembed.circuit_graph.node_scores import Node
from unembed.circuit_graph.one_token_change import with_counterfactual
from unembed.circuit_graph.removal_of_each import Changed, Removal, removal_of_each, usual_value, with_each
from unembed.errors import OutOfRange, Unsupported
from unembed.models.decoder import Decoder
from unembed.models.named_tokens import most_likely
from unembed.names import GroupRule, SetTo
from unembed.results import visible
from unembed.stream.run import OnePrompt, run

FACTORS = (0.5, 2.0)
"""Factors by which the nodes of a group are multiplied to measure the prediction."""
_LIKELY = 10


def picture(graph: CircuitGraph, *, test: Sequence[str] | None = None) -> FlowView:
    """Return a circuit's picture, with its test and, for one prompt, the model's prediction without each node.

    Args:
        graph: a graph that has its model.
        test: the results of an earlier test, in sentences; by default the graph is tested on its own prompts.

    Raises:
        Unsupported: the graph was opened from a file and has no model yet.

    Cost: that of the test. For one prompt, also a copy of the prompt for each of up to `BOXES` nodes, and for each
    change of a group; these copies run in batches of at most `BATCH_TOKENS` tokens.
    """
    if graph.lm is None:
        raise Unsupported(
            "a picture of this circuit",
            why="it was opened from a file and has no model yet",
            instead="Use graph.bound_to(lm)",
        )
    words = [test_in_words(graph.tested())] if test is None else test
    (case, *more), lm = graph.cases, graph.lm
    groups = shown_groups(graph, _groups(graph))
    if more:
        return flow_view(graph, words, groups=groups)
    nodes = graph.ranking.nodes(KINDS)[:BOXES]
    to = usual_value(case, graph.dictionary)
    whole, *found = removal_of_each(lm, [case], [[node] for node in nodes], to, graph.dictionary)
    effects = _effects(graph, groups, to)
    names = [node_name(lm, node, len(case.prompt) - 1 - node.back) for node in nodes]
    return flow_view(
        graph,
        words,
        removals=dict(zip(names, found, strict=True)),
        without=_without(lm, case, to),
        probabilities=whole.probabilities,
        likely=most_likely(lm, run(lm, list(case.prompt)).logits[0, -1], _LIKELY),
        groups=groups,
        effects=effects,
    )


def _groups(graph: CircuitGraph) -> list[NamedNodes]:
    """Return the groups that the graph has, and its groups by role and by values."""
    found: list[NamedNodes] = [("hand", name, nodes) for name, nodes in graph.groups.items()]
    bare = replace(graph, groups={})
    rules: tuple[GroupRule, ...] = ("role", "values")
    for by in rules:
        found += [(by, name, nodes) for name, nodes in bare.grouped(by).groups.items() if name not in graph.groups]
    return found


def _effects(graph: CircuitGraph, groups: Sequence[NamedNodes], to: SetTo) -> dict[tuple[str, str], list[GroupEffect]]:
    """Measure the prediction while the nodes of one group are changed, for each group and several changes.

    The nodes are set to 0, multiplied by each of `FACTORS`, or set to the values `to` that removed nodes get (left out
    if these are 0).
    """
    assert graph.lm is not None
    kinds: list[tuple[str, float | None]] = [("silence", 0.0), *(("scale", factor) for factor in FACTORS)]
    kinds += [] if to == "zero" else [("patch", None)]
    changes = [
        Changed(tuple(graph.node(node) for node in nodes), factor) for _, _, nodes in groups for _, factor in kinds
    ]
    found = iter(with_each(graph.lm, graph.cases[0], changes, to, graph.dictionary))
    return {
        (by, name): [
            GroupEffect(change, factor if change == "scale" else None, next(found)) for change, factor in kinds
        ]
        for by, name, _ in groups
    }


def prompt_picture(
    lm: Decoder,
    prompt: OnePrompt,
    token: str | int,
    against: str | int | None = None,
    against_prompt: OnePrompt | None = None,
    *,
    alone: bool = False,
    max_nodes: int = 100,
    step: Callable[[str], None] = lambda _: None,
) -> FlowView:
    """Find the circuit of a prompt and return its picture, as `unembed circuit --html` draws it.

    Arguments and errors not explained here are those of `circuit`.

    Args:
        against_prompt: a counterfactual; if it is None and `against` is given, one that differs in one token is
            searched for.
        alone: explain the prompt by itself, without a counterfactual.
        step: called with a description of the next step.
    """
    case = read_case(lm, prompt, None if alone else against_prompt, token, against)
    if case.against is not None and case.counterfactual is None and not alone:
        step("Looking for a prompt without the behaviour")
        case = with_counterfactual(lm, case)
    step("Finding heads and memories, and what flows between them")
    graph = circuit_of(lm, (case,), max_nodes)
    step("Testing the circuit in the model")
    return picture(graph)


def changed(
    lm: Decoder,
    case: Case,
    parts: Sequence[tuple[Literal["head", "memory"], int, int, int]],
    factor: float = 0.0,
    *,
    other: OnePrompt | None = None,
) -> Removal:
    """Measure the prediction while some heads and memories, each at one position, are changed together.

    Args:
        parts: "head" or "memory", layer, position from 0, and index in the layer.
        factor: the factor by which their activations are multiplied.
        other: a prompt with the same number of tokens; if given, the heads and memories are set to their values in this
            prompt instead.

    Raises:
        InvalidInput: the other prompt has another number of tokens.
        OutOfRange: there is no such head, memory or position.
    """
    for kind, layer, position, index in parts:
        n = lm.n_memories_of(layer) if kind == "memory" and layer in lm.memory_layers else lm.n_heads
        if not (0 <= layer < lm.n_layers and 0 <= index < n and 0 <= position < len(case.prompt)):
            raise OutOfRange(
                f"{kind} {index} of layer {layer} at position {position}",
                why="the model has no such head or memory, or the prompt is shorter",
            )
    nodes = tuple(Node(kind, layer, len(case.prompt) - 1 - at, index) for kind, layer, at, index in parts)
    if other is None:
        return with_each(lm, case, [Changed(nodes, factor)], "zero")[0]
    case = read_case(lm, list(case.prompt), other, case.token, case.against)
    return with_each(lm, case, [Changed(nodes)], "counterfactual")[0]


def _without(lm: Decoder, case: Case, to: SetTo) -> str:
    """Describe the value that a removed node gets."""
    if case.counterfactual is None:
        return "its mean over a text" if to == "corpus" else "0 in its place"
    return f"its value after “{visible(text_of(lm, case.counterfactual), prose=True)}”"
