"""A circuit as a picture: the data that a page, a notebook and the explorer draw.

A picture has few boxes, so that it keeps the most relevant nodes, and adds up all others by layer: what flows into a
box still adds up to its relevance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unembed.circuit_graph.graph import METRIC, CircuitGraph
from unembed.circuit_graph.in_words import CircuitWords
from unembed.circuit_graph.labels import text_of
from unembed.circuit_graph.removal_of_each import Removal
from unembed.models.named_tokens import Candidate

SCHEMA = "unembed.flow/1"
"""Name of the JSON form; the number rises when a field changes its meaning or is removed."""
BOXES = 40
"""Heads and memories that a picture can show; all others are added up by layer."""
_WRITERS = ("head", "memory", "feature")
NamedNodes = tuple[str, str, tuple[str, ...]]
"""The rule, the name and the nodes (by name) of a group."""
_PROMOTED = re.compile(r'"((?:[^"]|"(?! "|$))*)"')


@dataclass(frozen=True)
class FlowNode:
    """A node of a picture.

    Attributes:
        name: such as "L23H4@4".
        kind: "head", "memory", "feature" (of a dictionary), "token", "bias", "rest" (all else of a layer) or "changes".
        position: from 0 in one prompt, from -1 backwards in several; None for what has none.
        relevance: what it adds to the metric along all paths; None for "changes".
        reads: the position that a head reads most; for all else of a layer, that of what it writes to most.
        promotes: the tokens that a head or memory promotes, made visible.
        label: what the node is, in words.
        removed: what the model does without it, measured; None where it was not.
    """

    name: str
    kind: str
    layer: int | None
    position: int | None
    index: int | None
    relevance: float | None
    reads: int | None
    promotes: tuple[str, ...]
    label: str
    removed: Removal | None


@dataclass(frozen=True)
class GroupEffect:
    """What the model does with the nodes of a group changed, measured.

    Attributes:
        change: "silence" (set to 0), "scale" (multiplied by the factor), or "patch" (set to what stands in the place
            of a removed node).
        factor: of "scale"; else None.
    """

    change: str
    factor: float | None
    found: Removal


@dataclass(frozen=True)
class FlowGroup:
    """Heads and memories of a picture that belong together.

    Attributes:
        by: the rule ("role", "values"), or "hand" for the graph's own groups.
        nodes: places in the picture's `nodes`.
        relevance: what passes through the group from other parts to other parts: the sum of what its nodes add, without
            what they add through each other.
    """

    name: str
    by: str
    nodes: tuple[int, ...]
    relevance: float
    effects: tuple[GroupEffect, ...]


@dataclass(frozen=True)
class FlowView:
    """A picture of a circuit, as `unembed.flow/1`.

    Attributes:
        title: what is explained.
        tokens: the prompt's tokens; of several prompts, those of the first.
        counterfactual: the text of the prompt without the behaviour; None without one, and for several prompts.
        target: the token that is explained.
        against: the token whose logit is subtracted; None for the logit alone.
        ids: of the two.
        metric: the logit of the token, or its difference to the other.
        other_metric: the same after the counterfactual; None without one.
        explained: what the picture adds up to: the metric, or its difference between the two prompts.
        probabilities: of the token and of the other, after the prompt; empty for several prompts.
        likely: the most likely next tokens; empty for several prompts.
        without: what stands in the place of a removed node, in words.
        nodes: heads and memories, the most relevant first, then all others.
        edges: source, target (places in `nodes`; -1 for the metric) and weight in logits.
        groups: nodes that belong together, by each rule.
        test: the test of the circuit, in sentences.
        error: the largest relative error of a sum.
    """

    title: str
    model: str
    tokens: tuple[str, ...]
    n_prompts: int
    counterfactual: str | None
    target: str
    against: str | None
    ids: tuple[int, ...]
    metric: float
    other_metric: float | None
    explained: float
    probabilities: tuple[float, ...]
    likely: tuple[Candidate, ...]
    without: str
    nodes: tuple[FlowNode, ...]
    edges: tuple[tuple[int, int, float], ...]
    groups: tuple[FlowGroup, ...]
    test: tuple[str, ...]
    error: float
    schema: str = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """Return the picture as JSON values."""
        return asdict(self)


def flow_view(
    graph: CircuitGraph,
    test: Sequence[str] = (),
    *,
    removals: Mapping[str, Removal] | None = None,
    without: str = "",
    probabilities: tuple[float, ...] = (),
    likely: Sequence[Candidate] = (),
    groups: Sequence[NamedNodes] = (),
    effects: Mapping[tuple[str, str], Sequence[GroupEffect]] | None = None,
) -> FlowView:
    """Return the picture of a graph.

    Args:
        graph: with its model.
        test: the test of the circuit, in sentences.
        removals: what the model does without a node, by name.
        without: what stands in the place of a removed node.
        probabilities: of the token and of the other after the prompt.
        likely: the most likely next tokens.
        groups: rule, name and nodes (by name) of each group.
        effects: what the model does with a group changed, by rule and name.
    """
    words = CircuitWords(graph)
    rows = list(graph.nodes.rows())
    shown, hidden = _divided(rows)
    nodes = tuple(_node(words, row, (removals or {}).get(row["name"])) for row in shown)
    case, lm = graph.cases[0], words.lm
    one = len(graph.cases) == 1
    other = graph.counterfactual_metric
    paired = other is not None and case.counterfactual is not None
    ids = [t for t in (case.token, case.against) if t is not None]
    target, *against = lm.token_strings(ids)
    place = {row["name"]: i for i, row in enumerate(shown)}
    edges = _edges(graph, place, hidden)
    return FlowView(
        title=words.subject,
        model=graph.provenance.model,
        tokens=graph.tokens,
        n_prompts=len(graph.cases),
        counterfactual=text_of(lm, case.counterfactual) if one and case.counterfactual is not None else None,
        target=target,
        against=against[0] if against else None,
        ids=tuple(ids),
        metric=graph.metric,
        other_metric=other,
        explained=graph.metric - other if paired and other is not None else graph.metric,
        probabilities=probabilities,
        likely=tuple(likely),
        without=without,
        nodes=nodes,
        edges=edges,
        groups=tuple(_group(one, place, nodes, edges, (effects or {}).get(one[:2], ())) for one in groups),
        test=tuple(test),
        error=graph.error,
    )


def shown_groups(graph: CircuitGraph, groups: Sequence[NamedNodes]) -> list[NamedNodes]:
    """Return the groups with those of their nodes that a picture has, where these are two or more."""
    shown = {row["name"] for row in _divided(list(graph.nodes.rows()))[0]}
    parts = [(by, name, tuple(node for node in some if node in shown)) for by, name, some in groups]
    return [one for one in parts if len(one[2]) > 1]


def _group(
    group: NamedNodes,
    place: Mapping[str, int],
    nodes: Sequence[FlowNode],
    edges: Sequence[tuple[int, int, float]],
    effects: Sequence[GroupEffect],
) -> FlowGroup:
    by, name, names = group
    inside = {place[node] for node in names}
    through = sum(weight for source, target, weight in edges if source in inside and target in inside)
    return FlowGroup(
        name, by, tuple(sorted(inside)), sum(nodes[i].relevance or 0.0 for i in inside) - through, tuple(effects)
    )


def _divided(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the nodes that a picture has, and for each other one the sum that it is added to."""
    writers = [row for row in rows if row["kind"] in _WRITERS]
    hidden = {row["name"]: f"rest L{row['layer']}" for row in writers[BOXES:]}
    shown: list[dict[str, Any]] = []
    for row in rows:
        if row["name"] in hidden:
            continue
        more = sum(other["relevance"] for other in writers[BOXES:] if hidden[other["name"]] == row["name"])
        shown.append({**row, "relevance": row["relevance"] + more} if more else row)
    return shown, hidden


def _node(words: CircuitWords, row: dict[str, Any], removed: Removal | None) -> FlowNode:
    name, kind, label = row["name"], row["kind"], str(row["label"])
    is_writer = kind in _WRITERS
    return FlowNode(
        name=name,
        kind="changes" if name == "changes" else kind,
        layer=row["layer"],
        position=row["position"],
        index=row["index"],
        relevance=row["relevance"],
        reads=words.read_position(name) if kind == "head" else None if is_writer else fed_position(words, name),
        promotes=tuple(_PROMOTED.findall(label.split("promotes ", 1)[1])) if is_writer else (),
        label=label,
        removed=removed,
    )


def fed_position(words: CircuitWords, name: str) -> int | None:
    """Return the position at which a sum of other parts is written: where what it feeds most reads."""
    feeds = [edge for edge in words.out_of.get(name, []) if edge[0] != METRIC]
    if not feeds:
        return None
    target = max(feeds, key=lambda edge: abs(edge[1]))[0]
    return words.read_position(target) if words.rows[target]["kind"] == "head" else words.rows[target]["position"]


def _edges(
    graph: CircuitGraph, place: Mapping[str, int], hidden: Mapping[str, str]
) -> tuple[tuple[int, int, float], ...]:
    """Return the edges into the shown nodes and the metric, those from hidden nodes added up."""
    sums: dict[tuple[int, int], float] = {}
    for edge in graph.edges.rows():
        source, target = hidden.get(edge["source"], edge["source"]), edge["target"]
        if target == METRIC or target in place:
            key = (place[source], -1 if target == METRIC else place[target])
            sums[key] = sums.get(key, 0.0) + edge["weight"]
    return tuple((*key, weight) for key, weight in sums.items())
