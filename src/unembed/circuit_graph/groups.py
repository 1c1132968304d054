"""Group a graph's nodes by their role, by the direction that they write, or by the concept that they promote.

By role: a node writes the answer, or against it, if at least half of its relevance goes directly to the metric. A head
moves information if it reads another position than its own. Other nodes read the prompt if at least half of what flows
into them comes directly from tokens; all remaining nodes are in between.

By values: nodes that write similar directions to the residual stream. Clusters (average linkage) are joined at a cosine
similarity of `SIMILAR` or more. By description: nodes whose most promoted tokens have the same first concept.

Nodes without a group (a direction unlike all others, or tokens with nothing in common) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unembed.circuit_graph.labels import read_position, written
from unembed.circuit_graph.node_scores import Node
from unembed.concepts.value_concepts import vector_concepts
from unembed.dictionaries import AttachedDictionary
from unembed.memories.clustering.value_clusters import dendrogram
from unembed.models.decoder import Decoder

SIMILAR = 0.5
"""Smallest cosine similarity at which two clusters of directions are joined."""
ANSWER, AGAINST, MOVES, READS, BETWEEN = (
    "writes the answer",
    "writes against the answer",
    "moves between positions",
    "reads the prompt",
    "in between",
)
Groups = dict[str, tuple[str, ...]]


def by_role(rows: Mapping[str, Mapping[str, Any]], edges: Sequence[Mapping[str, Any]], metric: str) -> Groups:
    """Return the names of nodes by role.

    Args:
        rows: the circuit's nodes, by name.
        edges: source, target and weight.
        metric: the name of the metric as a target of edges.
    """
    direct, from_tokens, into = dict[str, float](), dict[str, float](), dict[str, float]()
    for edge in edges:
        size = abs(edge["weight"])
        if edge["target"] == metric:
            direct[edge["source"]] = size
        into[edge["target"]] = into.get(edge["target"], 0.0) + size
        if edge["source"].startswith("token@"):
            from_tokens[edge["target"]] = from_tokens.get(edge["target"], 0.0) + size
    found: Groups = {}
    for name, row in rows.items():
        if direct.get(name, 0.0) >= abs(row["relevance"]) / 2:
            role = ANSWER if row["relevance"] > 0 else AGAINST
        elif row["kind"] == "head" and read_position(row["label"]) != row["position"]:
            role = MOVES
        else:
            role = READS if from_tokens.get(name, 0.0) >= into.get(name, 0.0) / 2 > 0 else BETWEEN
        found[role] = (*found.get(role, ()), name)
    return {role: found[role] for role in (ANSWER, AGAINST, MOVES, READS, BETWEEN) if role in found}


def by_values(
    lm: Decoder,
    tokens: Sequence[int],
    rows: Mapping[str, Mapping[str, Any]],
    nodes: Sequence[Node],
    dictionary: AttachedDictionary | None,
) -> Groups:
    """Group node names by the direction that nodes write; a group's name has its first node and what that promotes."""
    if len(nodes) < 2:
        return {}
    tree = dendrogram(written(lm, tokens, nodes, dictionary).float().cpu())
    labels = tree.cut(len(nodes) - int((tree.heights <= 1 - SIMILAR).sum())).tolist()
    members: dict[int, list[str]] = {}
    for name, label in zip(rows, labels, strict=True):
        members.setdefault(label, []).append(name)
    found: Groups = {}
    for names in members.values():
        if len(names) > 1:
            promoted = " ".join(str(rows[names[0]]["label"]).split("promotes ")[1].split(" ")[:2])
            title = f"values like {names[0].split('@')[0]} ({promoted})"
            found[title] = tuple(names)
    return found


def by_description(
    lm: Decoder,
    tokens: Sequence[int],
    rows: Mapping[str, Mapping[str, Any]],
    nodes: Sequence[Node],
    dictionary: AttachedDictionary | None,
) -> Groups:
    """Group node names by the first concept in the tokens that the nodes promote most."""
    if not nodes:
        return {}
    concepts = vector_concepts(lm, written(lm, tokens, nodes, dictionary), list(rows), embedding=False).concepts
    found: Groups = {}
    for name, some in zip(rows, concepts, strict=True):
        if some:
            title = some[0].name
            found[title] = (*found.get(title, ()), name)
    return found
