"""A circuit for reading: the most relevant nodes as a table, the first in a sentence, and the test in another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unembed.circuit_graph.faithfulness import CircuitTest, OfSize, Share
from unembed.circuit_graph.graph import KINDS, METRIC, CircuitGraph
from unembed.circuit_graph.labels import read_position, text_of
from unembed.names import parse_head
from unembed.results import Table, visible

_WAYS = 2
"""Nodes named through which another acts."""
_TOKENS = 2
"""Promoted tokens shown."""


def quoted(text: str) -> str:
    """A token's text in quotes, what is invisible made visible."""
    return f'"{visible(text)}"'


class CircuitWords:
    """The words of one graph.

    Args:
        graph: the graph of one prompt, or of several.
    """

    def __init__(self, graph: CircuitGraph) -> None:
        assert graph.lm is not None
        self.graph, self.lm = graph, graph.lm
        self.rows: dict[str, dict[str, Any]] = {row["name"]: row for row in graph.nodes.rows()}
        self.into: dict[str, list[tuple[str, float]]] = {}
        self.out_of: dict[str, list[tuple[str, float]]] = {}
        for edge in graph.edges.rows():
            self.into.setdefault(edge["target"], []).append((edge["source"], edge["weight"]))
            self.out_of.setdefault(edge["source"], []).append((edge["target"], edge["weight"]))
        self.is_one = len(graph.cases) == 1
        case = graph.cases[0]
        names = self.lm.token_strings([t for t in (case.token, case.against) if t is not None])
        self.answers = [quoted(name) for name in names]

    @property
    def subject(self) -> str:
        """Say in one line what is explained."""
        graph, case = self.graph, self.graph.cases[0]
        other = graph.counterfactual_metric
        if not self.is_one:
            with_other = "" if other is None else f"; {other:+.2f} after the counterfactuals"
            return f"What {len(graph.cases)} prompts have in common: {graph.metric:+.2f} logits{with_other}"
        against = f" rather than {self.answers[1]}" if case.against is not None else ""
        with_other = ""
        if other is not None and case.counterfactual is not None:
            with_other = f"; {other:+.2f} after {self._text(case.counterfactual)}"
        return f"Why {self.answers[0]}{against} after {self._text(case.prompt)}: {graph.metric:+.2f} logits{with_other}"

    def _text(self, tokens: Sequence[int]) -> str:
        return f'"{visible(text_of(self.lm, tokens), prose=True)}"'

    def place(self, position: int) -> str:
        """A position in words: its token in one prompt, else how far from the end."""
        return (
            quoted(self.graph.tokens[position]) if self.is_one else "last" if position == -1 else f"last{position + 1}"
        )

    def read_position(self, name: str) -> int:
        """The position that a head reads most."""
        return read_position(self.rows[name]["label"])

    def reads(self, name: str) -> str:
        """Say what a node reads: the token of a head, and the node of the graph of which it reads most."""
        sign = 1.0 if self.rows[name]["relevance"] >= 0 else -1.0
        found = [
            source
            for source, weight in self.into.get(name, [])
            if self.rows[source]["kind"] in KINDS and weight * sign > 0
        ]
        most = found[0].split("@")[0] if found else ""
        if self.rows[name]["kind"] != "head":
            return most or "other parts"
        token = self.place(self.read_position(name))
        return f"{token} ({most})" if most else token

    def directly(self, name: str) -> float:
        """Say what a node adds to the metric without passing through other nodes."""
        return dict(self.out_of.get(name, [])).get(METRIC, 0.0)

    def promotes(self, label: str) -> str:
        """The first tokens that a node promotes."""
        return " ".join(label.split("promotes ")[1].split(" ")[:_TOKENS])

    def chain(self, top: int) -> Table:
        """The most relevant nodes: where they are, what they read, what they promote, what they add."""
        chosen = [row for row in self.rows.values() if row["kind"] in KINDS][:top]
        columns: dict[str, list[Any]] = {
            "node": [row["name"].split("@")[0] for row in chosen],
            "at": [self.place(row["position"]) for row in chosen],
            "reads": [self.reads(row["name"]) for row in chosen],
            "promotes": [self.promotes(row["label"]) for row in chosen],
            "relevance": [row["relevance"] for row in chosen],
            "directly": [self.directly(row["name"]) for row in chosen],
        }
        return Table(self.subject, columns, self.graph.provenance)

    def first(self) -> str:
        """The most relevant node in a sentence."""
        row = next((row for row in self.rows.values() if row["kind"] in KINDS), None)
        if row is None:
            return ""
        name, last = row["name"], row["position"] in (len(self.graph.tokens) - 1, -1) and self.is_one
        short, at, layer = name.split("@")[0], self.place(row["position"]), row["layer"]
        at = f"the last token, {at}," if last else at
        writes = ""
        if abs(self.directly(name)) >= abs(row["relevance"]) / 2:
            writes = " and promotes " + " and ".join(self.promotes(row["label"]).split(" "))
        if row["kind"] == "head":
            what = f"attention head {parse_head(short).head} of layer {layer}"
            reads = self.place(self.read_position(name))
        else:
            what = "a feature of the dictionary at" if row["kind"] == "feature" else "a memory (FFN neuron) of"
            what, reads = f"{what} layer {layer}", self.reads(name)
        return f"{short} is {what}: at {at} it reads {reads}{writes}. {self._passes(name, row['relevance'])}"

    def _passes(self, name: str, relevance: float) -> str:
        """How much of the metric passes through a node, and where it goes on."""
        graph = self.graph
        whole = graph.metric - (graph.counterfactual_metric or 0.0)
        of = " by which the prompts differ" if graph.is_paired else ""
        ways = sorted((e for e in self.out_of.get(name, []) if e[0] != METRIC), key=lambda e: -abs(e[1]))
        on = [f"{weight:+.2f} on through {to.split('@')[0]}" for to, weight in ways[:_WAYS]]
        goes = ", ".join([f"{self.directly(name):+.2f} straight to the answer", *on])
        return f"Of the {whole:+.2f} logits{of}, {relevance:+.2f} pass through it: {goes}."

    def how(self) -> str:
        """Explain what the numbers mean."""
        graph = self.graph
        differs = ", less those of the counterfactual" if graph.is_paired else ""
        closed = f" Not opened: {', '.join(graph.unopened)}." if graph.unopened else ""
        memory = next((row for row in self.rows.values() if row["kind"] == "memory"), None)
        named = ""
        if memory is not None:
            named = (
                f" {memory['name'].split('@')[0]} is memory (FFN neuron) {memory['index']} of layer {memory['layer']}."
            )
        return (
            f"reads: the token that a head reads most (and the node that wrote most of it).{named} "
            f"relevance: logits that pass through a node{differs}; directly: through no later node. "
            f"{self._frozen()} stay frozen.{closed}"
        )

    def _frozen(self) -> str:
        shared = self.graph.provenance.notes.get("qk") == "shared"
        return "Gates and norms" if shared else "Attention patterns, gates and norms"


def _share(share: Share) -> str:
    bounds = "" if share.low is None or share.high is None else f" [{share.low:.2f}, {share.high:.2f}]"
    return f"{share.value:.2f}{bounds}".replace("-0.00", "0.00")


def _in_passing(rows: Sequence[OfSize]) -> str:
    shares = ", ".join(f"{row.nodes}: {_share(replace(row.faithfulness, low=None))}" for row in rows)
    return f" ({shares})" if shares else ""


def test_in_words(tested: CircuitTest, *, held_out: bool = False) -> str:
    """A test in three sentences: of its middle size, the others in passing."""
    row = tested.rows[len(tested.rows) // 2]
    others = [one for one in tested.rows if one is not row]
    where = f" on {tested.n_prompts} pairs that it was not found on" if held_out else ""
    some = f"the {row.nodes} most relevant of {tested.n_nodes:,} {tested.what}"
    verdict = " Random nodes do as well: this is no circuit of the behaviour." if row.is_matched else ""
    if tested.n_prompts == 1 and tested.baseline in ("corpus", "zero"):
        return f"Test{where} in the model itself: {_without(tested, row, others, some)}{verdict}"
    brought = f"{_share(row.faithfulness)} of the difference{_in_passing(others)}"
    random, left = _share(replace(row.random, low=None)), _share(replace(row.random_complement, low=None))
    if "head" in tested.kinds and tested.baseline == "counterfactual":
        alone = f"copied from the prompt's run into the counterfactual's, {some} restore {brought}"
        without = f"with their counterfactual values in the prompt's run, {_share(row.complement)} is left"
    else:
        to = _REPLACED[tested.baseline]
        alone = f"with all others at {to}, {some} alone give {brought}"
        without = f"with only these at {to}, {_share(row.complement)} is left"
    return (
        f"Test{where} in the model itself: {alone}; {without}. Random ones at the same layers and positions: "
        f"{random} and {left}.{verdict}"
    )


_REPLACED = {
    "mean": "their mean over the counterfactuals",
    "counterfactual": "their value in the counterfactual",
    "corpus": "their mean over a text",
    "zero": "0",
}


def _without(tested: CircuitTest, row: OfSize, others: Sequence[OfSize], some: str) -> str:
    """Without a counterfactual: what removing the nodes does to the metric, and that alone they may not suffice."""

    def metric(share: Share) -> str:
        return f"{tested.none + share.value * (tested.model - tested.none):+.2f}"

    to = _REPLACED[tested.baseline]
    also = "".join(f", of {one.nodes} {metric(one.complement)}" for one in others)
    return (
        f"with {some} at {to}, {tested.model:+.2f} becomes {metric(row.complement)}{also}; with "
        f"as many random ones at the same layers and positions {metric(row.random_complement)}. Alone they give "
        f"{metric(row.faithfulness)}, and none at all {tested.none:+.2f}."
    )
