"""Group a graph's nodes by their role, by the direction that they write, or by the concept that they promote.

By role: if at least half of a node's relevance goes directly to the metric, the node writes the answer (positive
relevance) or against it (negative relevance). A head moves information if it reads another position than its own. Other
nodes read the prompt if at least half of what flows into them comes directly from tokens; all remaining nodes are in
between.

By values: a group is nodes that write similar directions to the residual stream. Clusters (average linkage) are joined
at a cosine similarity of `SIMILAR` or more. A cluster's name has the tokens that its nodes raise and lower together,
measured in the model. By description: a group is nodes whose outputs promote tokens with the same first concept. The
promoted tokens are those with the largest scores through the unembedding; they are not measured.

Nodes without a group (a direction unlike all others, or a concept that no other node has) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unembed.circuit_graph.cases import Case
from unembed.circuit_graph.labels import written
from unembed.circuit_graph.node_scores import Node
from unembed.circuit_graph.removal_of_each import removal_of_each, usual_value
from unembed.concepts.value_concepts import vector_concepts
from unembed.dictionaries import AttachedDictionary
from unembed.memories.clustering.value_clusters import dendrogram
from unembed.models.decoder import Decoder
from unembed.models.named_tokens import MovedTokens
from unembed.results import visible

SIMILAR = 0.5
"""Smallest cosine similarity at which two clusters of directions are joined."""
TOKENS = 2
"""Number of tokens that a cluster raises, and that it lowers, in its name."""
ANSWER, AGAINST, MOVES, READS, BETWEEN = (
    "writes the answer",
    "writes against the answer",
    "moves between positions",
    "reads the prompt",
    "in between",
)
Groups = dict[str, tuple[str, ...]]


def by_role(rows: Mapping[str, Mapping[str, Any]], edges: Sequence[Mapping[str, Any]], metric: str) -> Groups:
    """Group the names of the nodes by their role, such as reading tokens or raising the answer.

    Args:
        rows: the circuit's nodes, by name.
        edges: source, target and weight.
        metric: the name that stands for the metric where it is the target of an edge.
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
        elif row["kind"] == "head" and row["reads"] != row["position"]:
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
) -> list[tuple[str, ...]]:
    """Return clusters of two or more node names, by the direction that nodes write."""
    if len(nodes) < 2:
        return []
    tree = dendrogram(written(lm, tokens, nodes, dictionary).float().cpu())
    labels = tree.cut(len(nodes) - int((tree.heights <= 1 - SIMILAR).sum())).tolist()
    members: dict[int, list[str]] = {}
    for name, label in zip(rows, labels, strict=True):
        members.setdefault(label, []).append(name)
    return [tuple(names) for names in members.values() if len(names) > 1]


def named_by_effect(
    lm: Decoder,
    cases: Sequence[Case],
    clusters: Sequence[tuple[str, ...]],
    nodes: Mapping[str, Node],
    dictionary: AttachedDictionary | None,
) -> Groups:
    """Name clusters of nodes by the tokens that they raise and lower, measured by removing a whole cluster at a time.

    If the prompts have different answers, no tokens are raised in all of them. A cluster is then named after its first
    node, such as "like L23H4@4". If two clusters have the same tokens, the first node is added to the second name.

    Args:
        nodes: the circuit's nodes, by name.
    """
    found: Groups = {}
    is_one = len({(case.token, case.against) for case in cases}) == 1
    groups = [[nodes[name] for name in names] for names in clusters] if is_one else []
    to = usual_value(cases[0], dictionary)
    removals = removal_of_each(lm, cases, groups, to, dictionary)[1:] if groups else [None] * len(clusters)
    for names, removal in zip(clusters, removals, strict=True):
        title = _moved(removal.tokens) if removal is not None and removal.tokens is not None else ""
        like = f"like {names[0]}"
        found[like if not title else title if title not in found else f"{title} ({like})"] = names
    return found


def _moved(tokens: MovedTokens) -> str:
    """Write the tokens that are raised and lowered most."""
    sides = (("raises", tokens.raised), ("lowers", tokens.lowered))
    return ", ".join(f"{verb} {' '.join(map(visible, texts[:TOKENS]))}" for verb, texts in sides if texts)


def by_description(
    lm: Decoder,
    tokens: Sequence[int],
    rows: Mapping[str, Mapping[str, Any]],
    nodes: Sequence[Node],
    dictionary: AttachedDictionary | None,
) -> Groups:
    """Group node names by the first concept in the tokens that the nodes promote most, such as "promotes region".

    Only semantic and syntactic concepts and names make a group; stop words, pieces of words and punctuation do not.
    """
    if not nodes:
        return {}
    concepts = vector_concepts(lm, written(lm, tokens, nodes, dictionary), list(rows), embedding=False).concepts
    found: Groups = {}
    for name, some in zip(rows, concepts, strict=True):
        counted = [concept for concept in some if concept.counted]
        if counted:
            title = f"promotes {counted[0].name}"
            found[title] = (*found.get(title, ()), name)
    return {title: names for title, names in found.items() if len(names) > 1}
