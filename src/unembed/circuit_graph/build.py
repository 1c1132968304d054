"""Find the circuit of a behaviour: node scores, the nodes kept, their edges, and tables of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import torch

from unembed.circuit_graph.cases import Case, GivenPair, read_case, read_cases
from unembed.circuit_graph.direct_edges import Inflow, inflow
from unembed.circuit_graph.features import ERROR, require_nodes
from unembed.circuit_graph.graph import KINDS, METRIC, CircuitGraph, Ranking
from unembed.circuit_graph.influence import influence
from unembed.circuit_graph.labels import node_name, promoted
from unembed.circuit_graph.node_scores import Node, NodeScores, node_scores, ranked, select_nodes
from unembed.dictionaries import AttachedDictionary
from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.names import QKRule
from unembed.results import Provenance, Table, visible
from unembed.stream.run import OnePrompt
from unembed.validation import one_of, positive_int

SHARE = 0.8
"""The share of all |R| that the kept nodes have, unless `max_nodes` are fewer."""
RANKED = 2000
"""Nodes of either kind whose order is kept for tests."""
EDGE_PROMPTS = 20
"""Prompts over which edges are averaged; nodes are averaged over all."""


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
    """The circuit of a behaviour: which memories and heads at which positions produce a token, as a graph.

    The forward pass is the model's own. Relevance is propagated by linear rules: norm scales, attention patterns and
    router weights are those of the run, an activation is f(z) = z * c, and the factors of a gated FFN receive half
    each. Sums are checked at every layer and for every node.

    Args:
        prompt: one prompt; several are given as `pairs`.
        token: the token whose logit after the last position is explained.
        against: the token whose logit is subtracted.
        against_prompt: the same prompt without the behaviour, in as many tokens: then what differs is explained.
        pairs: several prompts, each as (prompt, counterfactual or None, token, against or None).
        max_nodes: heads and memories kept at most; fewer where they have 0.8 of all relevance.
        dictionary: what `lm.attach` returns: its features are nodes too, with its error of reconstruction as a rest
            node; where it writes mlp_out, in place of the layer's memories.
        qk: "constant": attention patterns are constants of the run; "shared": half of a head's relevance goes through
            its pattern to what queries and keys read.

    Raises:
        InvalidInput: a counterfactual of another length, or both a prompt and pairs.
        NotOneToken: a token is not a single one.
        SumNotProved: the linear model of a run misses the metric, or edges miss a node's relevance.
        Unsupported: the model has no layers, or several streams; or a dictionary at other points than
            `features.READS` and `features.WRITES`, or whose features write to several layers; or, with qk="shared",
            attention scores that do not follow from queries and keys.

    Memory: activations and gradients of a batch, one number for each node, and 256 MiB for edges. Cost: about four
    passes for the nodes, and less than one for each node that is kept.
    Source: Rezaei Jafari et al. 2025 (RelP); Arora et al. 2026; Ameisen et al. 2025 (graphs).
    """
    most = positive_int("max_nodes", max_nodes)
    if pairs is not None:
        if prompt is not None or token is not None or against is not None or against_prompt is not None:
            raise InvalidInput("a prompt and pairs", why="a circuit is of one or of the other")
        cases = read_cases(lm, pairs)
    elif prompt is None or token is None:
        raise InvalidInput(
            "a circuit of nothing",
            why="it needs a prompt and a token, or pairs",
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
) -> CircuitGraph:
    """The circuit of cases; see `circuit`."""
    if not lm.n_layers:
        raise Unsupported(f"a circuit of {lm.name}", why="it has no layers")
    if dictionary is not None:
        require_nodes(dictionary)
    one_of("qk", qk, get_args(QKRule))
    scores = node_scores(lm, cases, dictionary, qk)
    chosen = select_nodes(scores, most, SHARE)
    nodes = [node for node, _ in chosen]
    flow = inflow(lm, cases[:EDGE_PROMPTS], nodes, dictionary, qk)
    return _graph(lm, cases, scores, chosen, flow, dictionary, qk)


def _graph(
    lm: Decoder,
    cases: tuple[Case, ...],
    scores: NodeScores,
    chosen: Sequence[tuple[Node, float]],
    flow: Inflow,
    dictionary: AttachedDictionary | None,
    qk: QKRule,
) -> CircuitGraph:
    n = len(cases)
    is_paired = cases[0].counterfactual is not None
    notes: dict[str, object] = {"prompts": n, "counterfactual": is_paired}
    provenance = lm.provenance(basis="frozen", notes=notes if qk == "constant" else {**notes, "qk": qk})
    tables = _Tables(lm, cases, scores, chosen, flow, dictionary, qk)
    everything = [node for kind in KINDS for node in ranked(scores.parts, RANKED, kind)]
    everything.sort(key=lambda one: -abs(one[1]))
    places = [(KINDS.index(node.kind), node.layer, node.back, node.index) for node, _ in everything]
    kind, layer, back, index = torch.tensor(places, dtype=torch.long).view(-1, 4).unbind(1)
    order = Ranking(kind, layer, back, index, torch.tensor([score / n for _, score in everything]))
    nodes, edges = tables.nodes(provenance), tables.edges(provenance)
    kinds = {row["name"]: row["name"] if row["name"] == "positions" else row["kind"] for row in nodes.rows()}
    reach = influence(kinds, [(e["source"], e["target"], e["weight"]) for e in edges.rows()], METRIC)
    columns = {
        **{name: nodes[name] for name in nodes.column_names},
        "influence": [reach.of[name] for name in nodes["name"]],
    }
    return CircuitGraph(
        nodes=replace(nodes, columns=columns),
        edges=edges,
        replacement=reach.replacement,
        completeness=reach.completeness,
        metric=scores.metric / n,
        counterfactual_metric=scores.counterfactual_metric / n if is_paired else None,
        error=max(scores.error, flow.error),
        cases=cases,
        tokens=tuple(lm.token_strings(list(cases[0].prompt))),
        ranking=order,
        unopened=scores.unopened,
        n_nodes=sum(part.numel() for part in scores.parts.values()),
        provenance=provenance,
        lm=lm,
        dictionary=dictionary,
    )


class _Tables:
    """Builds the tables of a graph from sums over cases."""

    def __init__(
        self,
        lm: Decoder,
        cases: tuple[Case, ...],
        scores: NodeScores,
        chosen: Sequence[tuple[Node, float]],
        flow: Inflow,
        dictionary: AttachedDictionary | None,
        qk: QKRule,
    ) -> None:
        self.qk = qk
        self.lm, self.cases, self.scores, self.chosen, self.flow = lm, cases, scores, chosen, flow
        self.dictionary = dictionary
        self.longest = max(len(case.prompt) for case in cases)
        self.texts = lm.token_strings(list(max(cases, key=lambda case: len(case.prompt)).prompt))
        self.names = [node_name(lm, node, self.position(node.back)) for node, _ in chosen]

    def position(self, back: int) -> int:
        """Return a position as people count: from 0 in one prompt, from -1 backwards in several."""
        return self.longest - 1 - back if len(self.cases) == 1 else -1 - back

    def token_name(self, back: int) -> str:
        """Return the name of the token at a position, as a node."""
        return f"token@{self.position(back)}"

    def nodes(self, provenance: Provenance) -> Table:
        """Return the kept nodes by relevance, then tokens, biases, and the rest of each layer."""
        n, rows = len(self.cases), list[tuple[object, ...]]()
        longest = max(self.cases, key=lambda case: len(case.prompt))
        words = promoted(self.lm, longest.prompt, [node for node, _ in self.chosen], self.dictionary)
        for number, (node, score) in enumerate(self.chosen):
            label = self._label(number, node, words[number])
            row = (node.kind, node.layer, self.position(node.back), node.index, score / n, label)
            rows.append((self.names[number], *row))
        for back, score in enumerate(self.scores.tokens.tolist()):
            text = self.texts[self.longest - 1 - back] if len(self.cases) == 1 else ""
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
        names = ("name", "kind", "layer", "position", "index", "relevance", "label")
        return Table.of_rows(self._title(), names, rows, provenance)

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

    def _title(self) -> str:
        about = f"{self.scores.metric / len(self.cases):+.4g}"
        return f"Circuit of {about} logits: {len(self.chosen)} of {self._count():,} heads and memories at positions"

    def _count(self) -> int:
        return sum(part.numel() for part in self.scores.parts.values())

    def _label(self, number: int, node: Node, words: Sequence[str]) -> str:
        text = "promotes " + " ".join(f'"{visible(word)}"' for word in words)
        if node.kind != "head":
            return text
        flow = self.flow.by_position[number]
        back = int(flow.abs().argmax())
        where = f'"{visible(self.texts[self.longest - 1 - back])}"' if len(self.cases) == 1 else ""
        return f"reads {where}@{self.position(back)}, {text}"

    def edges(self, provenance: Provenance) -> Table:
        """Return every edge that is not 0, by target, largest first."""
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
