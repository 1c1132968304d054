"""Find the circuit of a behaviour: score all nodes, select the best, compute their edges, and make tables of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch

from unembed.circuit_graph.cases import Case, GivenPair, read_case, read_cases
from unembed.circuit_graph.direct_edges import Inflow, inflow
from unembed.circuit_graph.features import ERROR, require_nodes
from unembed.circuit_graph.graph import KINDS, METRIC, CircuitGraph, Ranking
from unembed.circuit_graph.influence import influence
from unembed.circuit_graph.labels import described, label_of, node_name, promoted
from unembed.circuit_graph.node_scores import Node, NodeScores, node_scores, ranked, select_nodes
from unembed.dictionaries import AttachedDictionary
from unembed.errors import InvalidInput, Unsupported
from unembed.gallery import MemoryDescriptions
from unembed.models.decoder import Decoder
from unembed.names import QKRule
from unembed.results import Provenance, Table, format_signed, quoted, visible
from unembed.stream.run import OnePrompt
from unembed.validation import one_of, positive_int

SHARE = 0.8
"""Nodes are selected until they have this share of the sum of all |relevance|, or until there are `max_nodes`."""
RANKED = 2000
"""Number of nodes of each kind in the stored ranking, from which tests select circuits larger than the graph."""
EDGE_PROMPTS = 20
"""Largest number of prompts over which edges are averaged; relevance is averaged over all prompts."""


def circuit(
    lm: Decoder,
    prompt: OnePrompt | None = None,
    token: str | int | None = None,
    against: str | int | None = None,
    against_prompt: OnePrompt | None = None,
    *,
    pairs: Sequence[GivenPair] | None = None,
    max_nodes: int = 100,
    dictionary: AttachedDictionary | None = None,
    qk: QKRule = "constant",
) -> CircuitGraph:
    """Find the circuit of a behaviour: a graph of the memories (FFN neurons) and heads that produce a token.

    A node is a head or a memory at one position. Its relevance is its contribution to the metric: the token's logit, or
    a difference of two logits. Relevance is propagated backward through the model's own forward pass by linear rules.
    Norm scales, attention patterns and router weights are constants of the run. An activation function f(z) is written
    as z * c with a constant c. In a gated FFN, each of the two factors receives half of their product's relevance. An
    error is raised if the relevance at any layer does not add up to the metric, or the edges into a node to its
    relevance.

    Args:
        prompt: one prompt; use `pairs` for several.
        token: the token whose logit after the last position is explained.
        against: the token whose logit is subtracted.
        against_prompt: a counterfactual: the prompt without the behaviour, with the same number of tokens. If given,
            the difference between the two prompts is explained.
        pairs: several prompts, each as (prompt, counterfactual or None, token, against or None).
        max_nodes: largest number of heads and memories in the graph. Those with the largest absolute relevance are
            selected, until they have 0.8 of the sum over all nodes.
        dictionary: the result of `lm.attach`. Its features are nodes too, and its reconstruction error is a node
            without incoming edges. If it writes mlp_out, its features replace the memories of the layer.
        qk: "constant": attention patterns are constants of the run; "shared": half of a head's relevance goes through
            its attention pattern to the inputs of its queries and keys.

    Raises:
        InvalidInput: a counterfactual has another number of tokens, or both a prompt and pairs are given.
        NotOneToken: `token` or `against` is not a single token of the vocabulary.
        SumNotProved: the relevance does not add up to the metric, or edges do not add up to a node's relevance.
        Unsupported: the model has no layers, or several residual streams; a dictionary has other capture points than
            `features.READS` and `features.WRITES`, or its features write to several layers; or, with qk="shared",
            attention scores cannot be computed from queries and keys.

    Memory: activations and gradients of a batch, one value for each node, and 256 MiB for edges. Cost: about four
    forward passes for the nodes' relevance, and less than one for each node of the graph.
    Source: Rezaei Jafari et al. 2025 (RelP); Arora et al. 2026; Ameisen et al. 2025 (graphs).
    """
    most = positive_int("max_nodes", max_nodes)
    if pairs is not None:
        if prompt is not None or token is not None or against is not None or against_prompt is not None:
            raise InvalidInput("a prompt and pairs", why="a circuit is found for one or for the other")
        cases = read_cases(lm, pairs)
    elif prompt is None or token is None:
        raise InvalidInput(
            "there is nothing to explain",
            why="a circuit needs a prompt and a token, or pairs",
            instead='Give lm.circuit("The capital of France is", " Paris", " London")',
        )
    else:
        cases = (read_case(lm, prompt, against_prompt, token, against),)
    return circuit_of(lm, cases, most, dictionary, qk)


def circuit_of(
    lm: Decoder,
    cases: tuple[Case, ...],
    most: int,
    dictionary: AttachedDictionary | None = None,
    qk: QKRule = "constant",
    atlas: MemoryDescriptions | None = None,
) -> CircuitGraph:
    """Find the circuit of some cases, with at most `most` nodes; see `circuit` for the other arguments.

    Args:
        atlas: tested descriptions of memories; a memory that has one gets it in its label.
    """
    if not lm.n_layers:
        raise Unsupported(f"a circuit of {lm.name}", why="it has no layers")
    if dictionary is not None:
        require_nodes(dictionary)
    one_of("qk", qk, get_args(QKRule))
    scores = node_scores(lm, cases, dictionary, qk)
    chosen = select_nodes(scores, most, SHARE)
    nodes = [node for node, _ in chosen]
    flow = inflow(lm, cases[:EDGE_PROMPTS], nodes, dictionary, qk)
    return _Builder(lm, cases, scores, chosen, flow, dictionary, qk, atlas).graph()


@dataclass(eq=False)
class _Builder:
    """Builds a graph, with its tables of nodes and edges, from sums over cases."""

    lm: Decoder
    cases: tuple[Case, ...]
    scores: NodeScores
    chosen: Sequence[tuple[Node, float]]
    flow: Inflow
    dictionary: AttachedDictionary | None
    qk: QKRule
    atlas: MemoryDescriptions | None

    def __post_init__(self) -> None:
        self.longest = max(self.cases, key=lambda case: len(case.prompt)).prompt
        self.texts = self.lm.token_strings(list(self.longest))
        self.names = [node_name(self.lm, node, self.position(node.back)) for node, _ in self.chosen]

    def graph(self) -> CircuitGraph:
        """Return the graph: nodes with their influence on the metric, edges, and the ranking of nodes for tests.

        The ranking has up to `RANKED` nodes of each kind, also those that are not in the graph.
        """
        lm, scores, n = self.lm, self.scores, len(self.cases)
        is_paired = self.cases[0].counterfactual is not None
        notes: dict[str, object] = {"prompts": n, "counterfactual": is_paired}
        provenance = lm.provenance(basis="frozen", notes=notes if self.qk == "constant" else {**notes, "qk": self.qk})
        everything = [node for kind in KINDS for node in ranked(scores.parts, RANKED, kind)]
        everything.sort(key=lambda one: -abs(one[1]))
        places = [(KINDS.index(node.kind), node.layer, node.back, node.index) for node, _ in everything]
        kind, layer, back, index = torch.tensor(places, dtype=torch.long).view(-1, 4).unbind(1)
        order = Ranking(kind, layer, back, index, torch.tensor([score / n for _, score in everything]))
        nodes, edges = self.nodes(provenance), self.edges(provenance)
        kinds = {row["name"]: row["name"] if row["name"] == "positions" else row["kind"] for row in nodes.rows()}
        reach = influence(kinds, [(e["source"], e["target"], e["weight"]) for e in edges.rows()], METRIC)
        return CircuitGraph(
            nodes=replace(nodes, columns={**nodes.columns, "influence": [reach.of[name] for name in nodes["name"]]}),
            edges=edges,
            replacement=reach.replacement,
            completeness=reach.completeness,
            metric=scores.metric / n,
            counterfactual_metric=scores.counterfactual_metric / n if is_paired else None,
            error=max(scores.error, self.flow.error),
            cases=self.cases,
            tokens=tuple(lm.token_strings(list(self.cases[0].prompt))),
            ranking=order,
            unopened=scores.unopened,
            n_nodes=self._count(),
            provenance=provenance,
            lm=lm,
            dictionary=self.dictionary,
        )

    def position(self, back: int) -> int:
        """Convert a position counted back from the last token, which is 0.

        For one prompt, return the position counted from the first token; for several, -1 for the last, -2, and so on.
        """
        return len(self.longest) - 1 - back if len(self.cases) == 1 else -1 - back

    def token_name(self, back: int) -> str:
        """Return the name of the node for the token embedding at a position, counted from the end (0, 1, ...)."""
        return f"token@{self.position(back)}"

    def nodes(self, provenance: Provenance) -> Table:
        """Return the table of nodes: selected nodes by relevance, tokens, biases, and each layer's others, added up."""
        n, rows = len(self.cases), list[tuple[object, ...]]()
        nodes = [node for node, _ in self.chosen]
        words = promoted(self.lm, self.longest, nodes, self.dictionary)
        known = described(self.lm, self.longest, nodes, self.atlas)
        for number, (node, score) in enumerate(self.chosen):
            position, reads = self._read(number) if node.kind == "head" else (None, "")
            label = label_of(reads, words[number], known.get(number))
            row = (node.kind, node.layer, self.position(node.back), node.index, score / n, label)
            rows.append((self.names[number], *row, position, words[number], known.get(number)))
        for back, score in enumerate(self.scores.tokens.tolist()):
            text = self.texts[len(self.longest) - 1 - back] if len(self.cases) == 1 else ""
            rows.append((self.token_name(back), "token", None, self.position(back), None, score / n, visible(text)))
        if self.scores.positions:
            rows.append(("positions", "bias", None, None, None, self.scores.positions / n, "position embeddings"))
        constants = "" if self.qk == "constant" else ", and what its attention patterns have besides their scores"
        for layer, score in enumerate(self.scores.biases.tolist()):
            if score:
                label = f"biases of layer {layer}{constants}"
                rows.append((f"bias L{layer}", "bias", layer, None, None, score / n, label))
        if self.scores.constants:
            rows.append(("readout", "bias", None, None, None, self.scores.constants / n, "biases and cap of logits"))
        rows += self._rest()
        own = ("reads", "promoted_tokens", "atlas")
        names = ("name", "kind", "layer", "position", "index", "relevance", "label", *own)
        whole = [row if len(row) == len(names) else (*row, None, [], None) for row in rows]
        about = format_signed(self.scores.metric / n)
        title = f"Circuit of {about} logits: {len(nodes)} of {self._count():,} heads and memories at positions"
        return Table.of_rows(title, names, whole, provenance)

    def _rest(self) -> list[tuple[object, ...]]:
        n, layers = len(self.cases), [0.0] * self.lm.n_layers
        for (_, layer), part in self.scores.parts.items():
            layers[layer] += float(part.sum())
        for node, score in self.chosen:
            layers[node.layer] -= score
        rows: list[tuple[object, ...]] = []
        for layer, score in enumerate(layers):
            label = f"all other heads and memories of layer {layer}"
            rows.append((f"rest L{layer}", "rest", layer, None, None, score / n, label))
        for (layer, label), score in self.scores.closed.items():
            if not label.startswith("unopened "):
                label = label if label == ERROR else f"{label}, not opened"
                rows.append((f"closed L{layer}", "rest", layer, None, None, score / n, label))
        if self.cases[0].counterfactual is not None:
            label = "changes of attention patterns, gates and norms"
            rows.append(("changes", "rest", None, None, None, None, label))
        return rows

    def _count(self) -> int:
        return sum(part.numel() for part in self.scores.parts.values())

    def _read(self, number: int) -> tuple[int, str]:
        """Return the position that a head reads most, and the part of the head's label that says so.

        Args:
            number: the index of the head among the selected nodes.
        """
        back = int(self.flow.by_position[number].abs().argmax())
        where = quoted(self.texts[len(self.longest) - 1 - back]) if len(self.cases) == 1 else ""
        return self.position(back), f"reads {where}@{self.position(back)}, "

    def edges(self, provenance: Provenance) -> Table:
        """Return a table of all nonzero edges, by target; edges with the largest absolute weights come first."""
        n, flow = min(len(self.cases), EDGE_PROMPTS), self.flow
        sources = [
            *zip(self.names, flow.nodes.T, strict=True),
            *((self.token_name(back), column) for back, column in enumerate(flow.tokens.T)),
            ("positions", flow.positions),
            ("readout", flow.ends),
            *((f"bias L{layer}", column) for layer, column in enumerate(flow.biases.T)),
            *((f"closed L{layer}", column) for layer, column in enumerate(flow.closed.T)),
            *((f"rest L{layer}", column) for layer, column in enumerate(flow.rest.T)),
        ]
        if self.cases[0].counterfactual is not None:
            sources.append(("changes", flow.missed))
        rows: list[tuple[str, str, float]] = []
        for number, target in enumerate([*self.names, METRIC]):
            into = [(name, target, float(column[number]) / n) for name, column in sources if float(column[number])]
            rows += sorted(into, key=lambda edge: -abs(edge[2]))
        title = "Edges: the part of a node's relevance that comes directly from each other"
        return Table.of_rows(title, ("source", "target", "weight"), rows, provenance)
