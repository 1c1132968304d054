"""The data of a circuit's picture, which HTML pages, notebooks and the explorer draw.

A picture shows only the most relevant nodes, and adds up all others by layer. So the edges into a node still add up to
its relevance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unembed.circuit_graph.graph import METRIC, CircuitGraph
from unembed.circuit_graph.in_words import CircuitWords
from unembed.circuit_graph.labels import text_of
from unembed.circuit_graph.removal_of_each import Removal
from unembed.models.named_tokens import Candidate
from unembed.results import visible

SCHEMA = "unembed.flow/1"
"""Name and version of the JSON format; the version rises when a field is removed or changes its meaning."""
BOXES = 40
"""Largest number of heads and memories that a picture shows; all others are added up by layer."""
_WRITERS = ("head", "memory", "feature")
NamedNodes = tuple[str, str, tuple[str, ...]]
"""A group of nodes: the rule that made it, its name, and the names of its nodes."""


@dataclass(frozen=True)
class FlowNode:
    """A node of a picture.

    Attributes:
        name: such as "L23H4@4".
        kind: "head", "memory", "feature" (of a dictionary), "token", "bias", "rest" (all other nodes of a layer, added
            up) or "changes" (of attention patterns, gates and norms between the two prompts).
        position: from 0 for one prompt, from -1 backwards for several; None for nodes without a position.
        relevance: what the node adds to the metric along all paths; None for "changes".
        reads: for a head, the position that it reads most; None for memories and features. For other kinds, the
            position of the target of the node's largest edge or, if this target is a head, the position that the head
            reads most; None if the node has no target but the metric. Nodes without a position are drawn there.
        promotes: the tokens that a head or memory promotes, with invisible characters made visible.
        label: a short description of the node.
        removed: the model's prediction without the node; None if it was not measured.
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
    """The model's prediction while the nodes of a group are changed.

    Attributes:
        change: "silence" (set to 0), "scale" (multiplied by the factor), or "patch" (set to the values that removed
            nodes get).
        factor: the factor of "scale"; None for other changes.
        found: the measured prediction.
    """

    change: str
    factor: float | None
    found: Removal


@dataclass(frozen=True)
class FlowGroup:
    """Heads and memories of a picture that belong together.

    Attributes:
        by: the rule ("role", "values"), or "hand" for groups that the user made.
        nodes: indices into the picture's `nodes`.
        relevance: the sum of the nodes' relevance, minus the edges between nodes of the group, so that no path counts
            twice.
        effects: the model's predictions while the group is changed.
    """

    name: str
    by: str
    nodes: tuple[int, ...]
    relevance: float
    effects: tuple[GroupEffect, ...]


@dataclass(frozen=True)
class FlowView:
    """The data of a circuit's picture, in the format `unembed.flow/1`.

    Attributes:
        title: what is explained.
        tokens: the tokens of the prompt; for several prompts, those of the first.
        counterfactual: the text of the prompt without the behaviour; None without one, and for several prompts.
        target: the token whose logit is explained.
        against: the token whose logit is subtracted; None for the logit alone.
        ids: the ids of `target` and `against`.
        metric: the logit of `target`, minus that of `against` if there is one.
        other_metric: the metric after the counterfactual prompt; None without one.
        explained: the value to which the edges into the metric add up: the metric, or its difference between prompts.
        probabilities: of `target` and `against` after the prompt; empty for several prompts.
        likely: the most likely next tokens; empty for several prompts.
        without: the value that a removed node gets, in words.
        nodes: heads, memories and features, the most relevant first, then nodes of other kinds.
        edges: source and target (indices into `nodes`; -1 for the metric), and weight in logits.
        groups: the nodes grouped, once for each rule of grouping.
        test: the results of the circuit's test, in sentences.
        error: the largest relative error of a sum of relevance or of edges.
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
        """Return the picture as a dict that can be written as JSON."""
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
    """Return the data of a graph's picture; for arguments not explained here, see the fields of `FlowView`.

    Args:
        graph: a graph that has its model.
        removals: the model's prediction without a node, by the node's name.
        groups: for each group, the rule that made it, its name, and the names of its nodes.
        effects: the model's predictions while a group is changed, by the group's rule and name.
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
    """Return the groups reduced to the nodes that the picture shows, without groups of fewer than two such nodes."""
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
    """Return the rows of the nodes that a picture shows, and for each hidden node the "rest" node that includes it."""
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
    name, kind = row["name"], row["kind"]
    is_writer = kind in _WRITERS
    return FlowNode(
        name=name,
        kind="changes" if name == "changes" else kind,
        layer=row["layer"],
        position=row["position"],
        index=row["index"],
        relevance=row["relevance"],
        reads=row["reads"] if kind == "head" else None if is_writer else fed_position(words, name),
        promotes=tuple(map(visible, row["promoted_tokens"])),
        label=row["label"],
        removed=removed,
    )


def fed_position(words: CircuitWords, name: str) -> int | None:
    """Return the position at which the target of a node's largest edge reads; a node without a position is drawn there.

    If the target is a head, this is the position that the head reads most, else the target's own position. Edges into
    the metric do not count; the result is None if the node has no others.
    """
    feeds = [edge for edge in words.out_of.get(name, []) if edge[0] != METRIC]
    if not feeds:
        return None
    target = words.rows[max(feeds, key=lambda edge: abs(edge[1]))[0]]
    return target["reads"] if target["kind"] == "head" else target["position"]


def _edges(
    graph: CircuitGraph, place: Mapping[str, int], hidden: Mapping[str, str]
) -> tuple[tuple[int, int, float], ...]:
    """Return the edges into the shown nodes and the metric; edges from hidden nodes are added up by layer."""
    sums: dict[tuple[int, int], float] = {}
    for edge in graph.edges.rows():
        source, target = hidden.get(edge["source"], edge["source"]), edge["target"]
        if target == METRIC or target in place:
            key = (place[source], -1 if target == METRIC else place[target])
            sums[key] = sums.get(key, 0.0) + edge["weight"]
    return tuple((*key, weight) for key, weight in sums.items())
