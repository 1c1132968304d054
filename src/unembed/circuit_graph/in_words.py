"""A circuit for reading: the most relevant nodes as a table, the first in a sentence, and the test in another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unembed.circuit_graph.faithfulness import CircuitTest, OfSize, Share
from unembed.circuit_graph.graph import METRIC, CircuitGraph
from unembed.circuit_graph.labels import text_of
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
        return int(str(self.rows[name]["label"]).rsplit("@", 1)[1].split(",")[0])

    def reads(self, name: str) -> str:
        """Say what a node reads: the token of a head, and the node of the graph of which it reads most."""
        sign = 1.0 if self.rows[name]["relevance"] >= 0 else -1.0
        found = [
            source
            for source, weight in self.into.get(name, [])
            if self.rows[source]["kind"] in ("head", "memory") and weight * sign > 0
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
        chosen = [row for row in self.rows.values() if row["kind"] in ("head", "memory")][:top]
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
        row = next((row for row in self.rows.values() if row["kind"] in ("head", "memory")), None)
        if row is None:
            return ""
        name = row["name"]
        short, at, layer = name.split("@")[0], self.place(row["position"]), row["layer"]
        if row["kind"] == "head":
            does = f"head {parse_head(short).head} of layer {layer}, reads {self.place(self.read_position(name))}"
        else:
            does = f"a memory (FFN neuron) of layer {layer}, reads {self.reads(name)}"
        target = "the difference" if self.graph.cases[0].against is not None else "the logit"
        ways = sorted((e for e in self.out_of.get(name, []) if e[0] != METRIC), key=lambda e: -abs(e[1]))
        through = " and ".join(f"{weight:+.2f} through {to.split('@')[0]}" for to, weight in ways[:_WAYS])
        direct = f"{self.directly(name):+.2f} directly" + (f", {through}" if through else "")
        return f"{short}, {does} at {at} and adds {row['relevance']:+.2f} to {target}: {direct}."

    def how(self) -> str:
        """Explain what the numbers mean."""
        differs = " compared with the counterfactual" if self.graph.is_paired else ""
        closed = f" Not opened: {', '.join(self.graph.unopened)}." if self.graph.unopened else ""
        return (
            f"Relevance: what a node adds on all ways{differs}, with attention patterns, gates and norm scales as in "
            f"the run. Sums at all layers and nodes hold to {self.graph.error:.0e}.{closed}"
        )


def _share(share: Share) -> str:
    bounds = "" if share.low is None or share.high is None else f" [{share.low:.2f}, {share.high:.2f}]"
    return f"{share.value:.2f}{bounds}".replace("-0.00", "0.00")


def _in_passing(rows: Sequence[OfSize]) -> str:
    return "".join(f", {row.nodes} {_share(replace(row.faithfulness, low=None))}" for row in rows)


def test_in_words(tested: CircuitTest, *, held_out: bool = False) -> str:
    """A test in two sentences: of its middle size, the others in passing."""
    row = tested.rows[len(tested.rows) // 2]
    others = [one for one in tested.rows if one is not row]
    what = "memories" if tested.kinds == ("memory",) else "heads and memories"
    where = f" on {tested.n_prompts} pairs that it was not found on" if held_out else ""
    some = f"the {row.nodes} most relevant of {tested.n_nodes:,} {what}"
    none = " Random nodes do as well: this is no circuit of the behaviour." if row.is_matched else ""
    random = f"{_share(replace(row.random, low=None))} and {_share(replace(row.random_complement, low=None))}"
    if tested.baseline in ("corpus", "zero"):
        return f"Test{where}: {_without(tested, row, others, some)}{none}"
    if "head" in tested.kinds and tested.baseline == "counterfactual":
        text = f"put into the counterfactual's run, {some} bring {_share(row.faithfulness)} of the difference"
    else:
        text = f"with all others at their {tested.baseline} over the counterfactuals, {some} keep "
        text = text.replace("counterfactual over", "values in") + f"{_share(row.faithfulness)} of the difference"
    return (
        f"Test{where}: {text}{_in_passing(others)}; taken out, they leave {_share(row.complement)}. "
        f"Random ones of the same layers and positions: {random}.{none}"
    )


def _without(tested: CircuitTest, row: OfSize, others: Sequence[OfSize], some: str) -> str:
    """Without a counterfactual: what removing the nodes does to the metric, and that alone they may not suffice."""

    def metric(share: Share) -> str:
        return f"{tested.none + share.value * (tested.model - tested.none):+.2f}"

    to = "their mean over a text" if tested.baseline == "corpus" else "0"
    also = "".join(f", of {one.nodes} {metric(one.complement)}" for one in others)
    return (
        f"with {some} at {to}, {tested.model:+.2f} becomes {metric(row.complement)}{also}; with as many random ones of "
        f"the same layers and positions {metric(row.random_complement)}. Alone they give {metric(row.faithfulness)}, "
        f"and none at all {tested.none:+.2f}."
    )
