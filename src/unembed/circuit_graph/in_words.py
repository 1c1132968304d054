"""Describe a circuit: the most relevant nodes in a table, the first node in a sentence, and the test in another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unembed.circuit_graph.faithfulness import CircuitTest, OfSize, Share
from unembed.circuit_graph.graph import KINDS, METRIC, CircuitGraph
from unembed.circuit_graph.labels import text_of
from unembed.circuit_graph.removal_of_each import Removal
from unembed.linear_model.pass_tensors import PartKind
from unembed.models.named_tokens import MovedTokens
from unembed.names import SetTo, parse_head
from unembed.results import (
    Table,
    format_cell,
    format_number,
    format_signed,
    format_with_interval,
    quoted,
    visible,
)

_TOKENS = 2
"""Number of promoted tokens in a cell of the table."""
_MOST = 0.5
"""A node's source is named if at least this share of the node's relevance comes directly from it."""
_MEASURED = ("raises", "lowers", "effect")
"""Columns of the table of nodes that are measured in the model."""
_BRIEF = ("node", "at", "reads", "raises", "lowers", "relevance", "effect")
"""Columns of the table of nodes that the terminal shows, if the table has them."""


class CircuitWords:
    """Describes one graph in English.

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
        self.has_one_question = len({(case.token, case.against) for case in graph.cases}) == 1
        case = graph.cases[0]
        self.names = self.lm.token_strings([t for t in (case.token, case.against) if t is not None])
        self.answers = [quoted(name) for name in self.names]

    @property
    def subject(self) -> str:
        """What is explained, in one line."""
        graph, case = self.graph, self.graph.cases[0]
        after, after_other = f" after {self._text(case.prompt)}", ""
        if not self.is_one:
            after = f", the mean over {len(graph.cases)} prompts"
        if graph.counterfactual_metric is not None and case.counterfactual is not None:
            other = self._text(case.counterfactual) if self.is_one else "the counterfactuals"
            after_other = f", {self._compared(graph.counterfactual_metric)} after {other}"
        return f"Why {self._first_answer} {self._stands(graph.metric)}{after}{after_other}"

    @property
    def _first_answer(self) -> str:
        if self.is_one:
            return self.answers[0]
        return "the answer" if self.graph.cases[0].against is None else "the first answer"

    def _stands(self, metric: float) -> str:
        """Say by how much the answer's logit exceeds the other answer's; without another answer, give its logit."""
        if self.graph.cases[0].against is None:
            return f"has a logit of {format_number(metric)}"
        other = self.answers[1] if self.is_one else "the second"
        return f"{_leads(metric)} {other} by {format_number(abs(metric))} logits"

    def _compared(self, metric: float) -> str:
        """Continue the sentence of `_stands` with the counterfactual's metric, without repeating words."""
        if self.graph.cases[0].against is None:
            return f"and one of {format_number(metric)}"
        if _leads(metric) == _leads(self.graph.metric):
            return f"and by {format_number(abs(metric))}"
        return f"but {_leads(metric)} it by {format_number(abs(metric))}"

    def _text(self, tokens: Sequence[int]) -> str:
        return f'"{visible(text_of(self.lm, tokens), prose=True)}"'

    def place(self, position: int) -> str:
        """Return a position in words: its token for one prompt, or its distance from the end for several."""
        return (
            quoted(self.graph.tokens[position]) if self.is_one else "last" if position == -1 else f"last{position + 1}"
        )

    def reads(self, name: str) -> str:
        """Name what a node reads.

        For a memory or feature, this is the node from which at least half of its relevance comes directly, or "many
        parts" if there is none. For a head, it is the token from which most of its relevance comes, followed by that
        node, if there is one, in brackets.
        """
        relevance = self.rows[name]["relevance"]
        found = [
            source.split("@")[0]
            for source, weight in self.into.get(name, [])
            if self.rows[source]["kind"] in KINDS and relevance and weight / relevance >= _MOST
        ]
        if self.rows[name]["kind"] != "head":
            return found[0] if found else "many parts"
        token = self.place(self.rows[name]["reads"])
        return f"{token} ({found[0]})" if found else token

    def directly(self, name: str) -> float:
        """Return what a node adds to the metric directly, without passing through other nodes."""
        return dict(self.out_of.get(name, [])).get(METRIC, 0.0)

    @staticmethod
    def _tokens(texts: Sequence[str]) -> str:
        return " ".join(visible(text) for text in texts[:_TOKENS])

    def of_atlas(self, chain: Table) -> tuple[str, ...]:
        """Return a sentence for each node of `chain` that an atlas describes."""
        known = {row["name"].split("@")[0]: row["atlas"] for row in self.rows.values()}
        return tuple(
            f"By its atlas, {name} fires {known[name]}." for name in dict.fromkeys(chain["node"]) if known[name]
        )

    def chain(self, top: int, removals: Mapping[str, Removal] | None = None) -> Table:
        """Return a table of the most relevant nodes: position, what they read and promote, relevance, measured effect.

        Args:
            top: number of nodes.
            removals: the model's prediction without a node, by name; if None, the table has no measured columns.
        """
        chosen = self.first_nodes(top)
        columns: dict[str, list[Any]] = {
            "node": [row["name"].split("@")[0] for row in chosen],
            "at": [self.place(row["position"]) for row in chosen],
            "reads": [self.reads(row["name"]) for row in chosen],
            "promotes": [" ".join(map(quoted, row["promoted_tokens"][:_TOKENS])) for row in chosen],
            "relevance": [row["relevance"] for row in chosen],
            "directly": [self.directly(row["name"]) for row in chosen],
        }
        if removals:
            found = [removals[row["name"]] for row in chosen]
            if self.has_one_question:
                columns["raises"] = [self._tokens(one.tokens.raised if one.tokens else ()) for one in found]
                columns["lowers"] = [self._tokens(one.tokens.lowered if one.tokens else ()) for one in found]
            columns["effect"] = [self.graph.metric - one.metric for one in found]
            columns["without_it"] = [one.metric for one in found]
        return Table(self.subject, columns, self.graph.provenance)

    def first_nodes(self, top: int) -> list[dict[str, Any]]:
        """Return the rows of the most relevant heads, memories and features."""
        return [row for row in self.rows.values() if row["kind"] in KINDS][:top]

    def brief(self, chain: Table) -> tuple[str, ...]:
        """Return the columns of `chain` that the terminal shows; positions only if they differ between nodes."""
        known = [name for name in _BRIEF if name in chain.column_names]
        return tuple(name for name in known if name != "at" or len(set(chain["at"])) > 1)

    def first(self, removals: Mapping[str, Removal] | None = None, to: SetTo = "zero") -> str:
        """Say what the most relevant node is, what it reads and raises, and what the model predicts without it.

        Args:
            removals: the model's prediction without a node, by the node's name.
            to: what the node's output was set to.
        """
        row = next(iter(self.first_nodes(1)), None)
        if row is None:
            return ""
        removal = (removals or {}).get(row["name"])
        if removal is None:
            return self._does(row, removal)
        effect = (
            f"{self._becomes(removal.metric)}: an effect of {format_number(self.graph.metric - removal.metric)} logits"
        )
        return f"{self._does(row, removal)} If its output is {self._replaced(to)}, {effect}."

    def columns(self, chain: Table) -> str:
        """Explain the rows and the columns of the table of nodes.

        Args:
            chain: the table of nodes, from the method `chain`.
        """
        if not len(chain):
            return ""
        has_only_heads = {row["kind"] for row in self.first_nodes(len(chain))} == {"head"}
        sentences = [] if has_only_heads else [f"A node is {self._a_node()} at one token."]
        measured = [name for name in _MEASURED if name in chain.column_names]
        if measured:
            *more, last = measured
            what = f"{', '.join(more)} and {last} are" if more else f"{last} is"
            sentences.append(
                f"{what.capitalize()} measured in the model, by replacing one node's output in the same way."
            )
        sentences.append(self._estimate())
        if min(chain["relevance"]) < 0:
            sentences.append(f"A node with a negative value works against {self._first_answer}.")
        if any("(" in cell.rpartition('"')[2] for cell in chain["reads"]):
            sentences.append("In brackets: the node that supplies most of the relevance.")
        return " ".join(sentences)

    def _does(self, row: dict[str, Any], removal: Removal | None) -> str:
        """Say where a node is, what it is, what it reads, which tokens it raises, and what it does to the answers."""
        name, is_last = row["name"], row["position"] in (len(self.graph.tokens) - 1, -1)
        short, place = name.split("@")[0], self.place(row["position"])
        at = "the last token" if is_last else place if self.is_one else f"the {place} token"
        does = self._moves(removal.tokens) if removal and removal.tokens and self.has_one_question else []
        if row["kind"] == "head":
            reads = self.place(row["reads"])
            does = [f"reads {reads if self.is_one else f'the {reads} token'}", *does]
            what = f"attention head {parse_head(short).head}"
        else:
            feature = "the dictionary's feature" if row["kind"] == "feature" else "memory (FFN neuron)"
            what = f"{feature} {row['index']}"
        return f"At {at}, {what} of layer {row['layer']} ({short}) {_clauses(does or ['is the most relevant node'])}."

    def _moves(self, tokens: MovedTokens) -> list[str]:
        """Say which tokens a node raises most, which of the answers it lowers, and which it hardly changes."""
        raised, lowered = tokens.raised[:_TOKENS], [text for text in tokens.lowered[:_TOKENS] if text in self.names]
        neither = [name for name in self.names if name not in (*raised, *lowered)]
        sides = (("raises", raised), ("lowers", lowered), ("hardly changes", neither))
        return [f"{verb} {_listed([visible(text) for text in texts])}" for verb, texts in sides if texts]

    def _a_node(self) -> str:
        has = (self.lm.n_heads, self.lm.n_memories, self.graph.dictionary is not None)
        names = ("an attention head", "a memory (FFN neuron)", "a feature of the dictionary")
        return " or ".join(name for name, there in zip(names, has, strict=True) if there)

    def _estimate(self) -> str:
        """Explain relevance, with the most relevant node as an example."""
        graph, row = self.graph, self.first_nodes(1)[0]
        whole = graph.metric - (graph.counterfactual_metric or 0.0)
        between = ""
        if graph.is_paired:
            between = " between the two prompts" if self.is_one else " between prompts and counterfactuals"
        return (
            f"Relevance is a linear estimate, with {self._frozen()} fixed: {format_number(row['relevance'])} of the "
            f"{format_number(whole)} logits{between} pass through {row['name'].split('@')[0]}."
        )

    def _replaced(self, to: SetTo) -> str:
        """Say what the output of a removed node is replaced by."""
        counterfactual = self.graph.cases[0].counterfactual
        if to == "zero":
            return "set to 0"
        if to == "corpus" or counterfactual is None:
            return "replaced by its mean over a text"
        other = f"on {self._text(counterfactual)}" if self.is_one else "in the counterfactuals"
        return f"replaced by its output {other}"

    def _becomes(self, metric: float) -> str:
        """Say which answer has the larger logit, and by how much."""
        if self.graph.cases[0].against is None:
            return f"the logit of {self._first_answer} is {format_number(metric)}"
        answers = self.answers if self.is_one else ["the first answer", "the second"]
        return f"{answers[metric < 0]} leads by {format_number(abs(metric))}"

    def how(self) -> str:
        """Explain the column of relevance."""
        differs = ", less those of the counterfactual" if self.graph.is_paired else ""
        return (
            f"relevance: logits that pass through a node{differs}, with {self._frozen()} as in the run. A path through "
            "two nodes counts for both."
        )

    def unopened(self) -> str:
        """Name the components through which relevance is not followed; empty if there are none."""
        return f"Not opened: {', '.join(self.graph.unopened)}." if self.graph.unopened else ""

    def _frozen(self) -> str:
        shared = self.graph.provenance.notes.get("qk") == "shared"
        return "gates and norm scales" if shared else "attention patterns, gates and norm scales"


def _listed(tokens: Sequence[str]) -> str:
    """Join tokens as in a sentence."""
    *others, last = tokens
    return f"{', '.join(others)} and {last}" if others else last


def _clauses(clauses: Sequence[str]) -> str:
    """Join clauses as in a sentence: with a comma before "and" if there are three, or if the first one has an "and"."""
    *others, last = clauses
    has_comma = len(others) > 1 or any(" and " in clause for clause in others)
    return f"{', '.join(others)}, and {last}" if has_comma else _listed(clauses)


def _leads(metric: float) -> str:
    return "leads" if metric >= 0 else "trails"


def _share(share: Share) -> str:
    if share.low is None or share.high is None:
        return f"{format_cell(100 * share.value, 0)} %"
    return format_with_interval(share.value, share.low, share.high, percent=True, decimals=0)


def _in_passing(rows: Sequence[OfSize]) -> str:
    shares = ", ".join(f"{_share(replace(row.faithfulness, low=None))} with {row.nodes}" for row in rows)
    return f" ({shares})" if shares else ""


def test_in_words(tested: CircuitTest, *, held_out: bool = False) -> str:
    """Describe the result of a test: fully for the circuit of the middle size, briefly for the other sizes."""
    row = tested.rows[len(tested.rows) // 2]
    others = [one for one in tested.rows if one is not row]
    where = f" on {tested.n_prompts} pairs that it was not found on" if held_out else ""
    kinds = " and ".join(_NAMES[kind] for kind in tested.kinds)
    some = f"the {row.nodes} most relevant of {tested.n_nodes:,} nodes (each {kinds} at each token)"
    verdict = " Random nodes do as well: this is no circuit of the behaviour." if row.is_matched else ""
    if tested.n_prompts == 1 and tested.baseline in ("corpus", "zero"):
        return f"Test in the model{where}: {_without(tested, row, others, some)}{verdict}"
    difference = f"the difference of {format_number(abs(tested.model - tested.none))} logits"
    brought = f"{_share(row.faithfulness)} of {difference}{_in_passing(others)}"
    random, left = _share(replace(row.random, low=None)), _share(replace(row.random_complement, low=None))
    as_many = f"{row.nodes} random ones of the same layers and positions"
    if "head" in tested.kinds and tested.baseline == "counterfactual":
        other = "the other prompt's run" if tested.n_prompts == 1 else "the counterfactual's run"
        alone = f"copying {some} from this run into {other} brings {brought}; copying {as_many} brings {random}"
        return (
            f"Test in the model{where}: {alone}. With the {row.nodes} copied from {other} into this one, "
            f"{_share(row.complement)} of the difference is left ({left} with the random ones).{verdict}"
        )
    to = _REPLACED[tested.baseline]
    return (
        f"Test in the model{where}: {some}, with all others at {to}, keep {brought}; {as_many} keep {random}. "
        f"With only these at {to}, {_share(row.complement)} is left; with the random ones, {left}.{verdict}"
    )


_REPLACED = {
    "mean": "their mean over the counterfactuals",
    "counterfactual": "their value in the counterfactual",
    "corpus": "their mean over a text",
    "zero": "0",
}
_NAMES: dict[PartKind, str] = {"head": "attention head", "memory": "FFN neuron", "feature": "feature"}


def _without(tested: CircuitTest, row: OfSize, others: Sequence[OfSize], some: str) -> str:
    """Describe the result of a test without a counterfactual: the metric without the nodes, and with these alone."""

    def metric(share: Share) -> str:
        return format_signed(tested.none + share.value * (tested.model - tested.none))

    to = _REPLACED[tested.baseline]
    also = "".join(f", of {one.nodes} {metric(one.complement)}" for one in others)
    return (
        f"with {some} at {to}, {format_signed(tested.model)} becomes {metric(row.complement)}{also}; with "
        f"as many random ones at the same layers and positions {metric(row.random_complement)}. Alone they give "
        f"{metric(row.faithfulness)}, and none at all {format_signed(tested.none)}."
    )
