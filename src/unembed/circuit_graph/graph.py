"""A circuit as a graph: nodes with their relevance, edges that add up to it, and tests of the nodes in the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from jaxtyping import Float, Int
from torch import Tensor

from unembed.circuit_graph.cases import Case, GivenPair, read_cases
from unembed.circuit_graph.faithfulness import DRAWS, SIZES, CircuitTest, faithfulness
from unembed.circuit_graph.group_effects import group_effects
from unembed.circuit_graph.groups import by_description, by_role, by_values, named_by_effect
from unembed.circuit_graph.labels import with_parts_of_labels
from unembed.circuit_graph.node_scores import Node
from unembed.circuit_graph.other_rankings import other_ranking
from unembed.circuit_graph.outcome_tables import outcome_table, rankings_table
from unembed.dictionaries import AttachedDictionary
from unembed.errors import InvalidInput, Unsupported
from unembed.linear_model.pass_tensors import PartKind
from unembed.models.decoder import Decoder
from unembed.names import CircuitNodes, GroupChange, GroupRule, RankedBy, SetTo
from unembed.results import Displayed, Provenance, Table
from unembed.validation import one_of, positive_int

KINDS: tuple[PartKind, ...] = ("memory", "head", "feature")
"""The kinds of nodes in a circuit. Nodes of other kinds are the inputs of a circuit, or sums of what it leaves out."""
METRIC = "metric"
"""The name, as a target of edges, of the explained logit or difference of logits."""
_TESTED: dict[CircuitNodes, tuple[PartKind, ...]] = {
    "memories": ("memory", "feature"),
    "heads": ("head",),
    "all": ("head", "memory", "feature"),
}


@dataclass(frozen=True, eq=False)
class Ranking:
    """The nodes with the largest absolute relevance, in the order in which tests select them; not all are in the graph.

    Attributes:
        kind: index into `KINDS`.
        back: positions counted back from the last token.
    """

    kind: Int[Tensor, " node"]
    layer: Int[Tensor, " node"]
    back: Int[Tensor, " node"]
    index: Int[Tensor, " node"]
    relevance: Float[Tensor, " node"]

    def nodes(self, kinds: Sequence[PartKind], *, supporting: bool = False) -> list[Node]:
        """Return the nodes of some kinds, the largest absolute relevance first, or only those where it is positive."""
        columns = zip(self.kind.tolist(), self.layer.tolist(), self.back.tolist(), self.index.tolist(), strict=True)
        found = [Node(KINDS[kind], layer, back, index) for kind, layer, back, index in columns]
        chosen = zip(found, (self.relevance > 0).tolist(), strict=True)
        return [node for node, supports in chosen if node.kind in kinds and (supports or not supporting)]


@dataclass(frozen=True, eq=False, repr=False)
class CircuitGraph(Displayed):
    """The circuit of a behaviour: memories (FFN neurons) and heads at positions, and the edges between them.

    Attributes:
        nodes: a table with name, kind ("memory", "head", "feature", "token", "bias" or "rest"), layer, position, index,
            relevance, label, reads (the position that a head reads most), promoted_tokens, atlas (what an atlas says of
            a memory) and influence (see `influence.py`). Relevance is a node's contribution to the metric along
            all paths, averaged over the prompts; with counterfactuals, its contribution to the difference of the metric
            between the two prompts. Positions count from 0 for one prompt, and back from -1 for several. Nodes of kind
            "rest" are sums of a layer's other heads and memories, or components that relevance is not followed through.
        edges: a table with source and target (names of nodes, or "metric"), and weight: the part of the target's
            relevance that comes directly from the source. Edges into a node add up to its relevance.
        metric: the model's logit of the token, or the difference of the two tokens' logits; the mean over prompts.
        counterfactual_metric: the metric after the counterfactual prompts; None without them.
        replacement: the share of influence that begins at the prompt's tokens, and not at what the graph leaves out.
        completeness: the share of the edges into nodes, weighted by influence, that comes from nodes and tokens.
        error: the largest relative error of a sum: of relevance at any layer, or of edges into any node.
        cases: the prompts.
        tokens: the text of the tokens of the first prompt.
        ranking: the nodes in the order in which the test selects them.
        unopened: names of components through which relevance is not followed.
        n_nodes: number of heads, memories and features at all positions.
        groups: names of nodes, by the group's name; see `grouped` and `with_group`.
    """

    nodes: Table
    edges: Table
    metric: float
    counterfactual_metric: float | None
    replacement: float
    completeness: float
    error: float
    cases: tuple[Case, ...]
    tokens: tuple[str, ...]
    ranking: Ranking
    unopened: tuple[str, ...]
    n_nodes: int
    provenance: Provenance
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    lm: Decoder | None = field(default=None, metadata={"saved": False})
    """The model; None in a graph that was opened from a file (`bound_to` returns the graph with its model)."""
    dictionary: AttachedDictionary | None = field(default=None, metadata={"saved": False})
    """The dictionary whose features are nodes."""

    def __post_init__(self) -> None:
        """Add the columns that the nodes in an older file do not have."""
        object.__setattr__(self, "nodes", with_parts_of_labels(self.nodes))

    @property
    def is_paired(self) -> bool:
        """Tell whether there are counterfactual prompts."""
        return self.cases[0].counterfactual is not None

    def __getstate__(self) -> dict[str, object]:
        """Return the fields to pickle: all except the model and the dictionary."""
        return {**vars(self), "lm": None, "dictionary": None}

    def to_table(self) -> Table:
        """The nodes, the largest relevance first."""
        return self.nodes

    def bound_to(self, lm: Decoder, dictionary: AttachedDictionary | None = None) -> CircuitGraph:
        """Return this graph with its model, and the dictionary of its features, so that it can be tested.

        Raises:
            InvalidInput: the graph was found on another model, or it has features and no dictionary is given.
        """
        if lm.name != self.provenance.model:
            raise InvalidInput(
                f"a circuit of {self.provenance.model} with {lm.name}",
                why="its nodes are those of another model",
                instead=f"Open {self.provenance.model}",
            )
        if dictionary is None and "feature" in self.nodes["kind"]:
            raise InvalidInput(
                "a circuit of features without their dictionary",
                why="the dictionary's weights are not in the graph's file",
                instead="Give graph.bound_to(lm, lm.attach(...))",
            )
        return replace(self, lm=lm, dictionary=dictionary)

    def circuit_rows(self) -> dict[str, dict[str, Any]]:
        """Return the rows of heads, memories and features, by name, the largest relevance first."""
        return {row["name"]: row for row in self.nodes.rows() if row["kind"] in KINDS}

    def node(self, name: str) -> Node:
        """Return a head, memory or feature of the graph, its position counted back from the end.

        Raises:
            InvalidInput: the graph has no such node.
        """
        row = self.circuit_rows().get(name)
        if row is None:
            raise InvalidInput(
                f"node {name!r}",
                why="the graph has no head, memory or feature of this name",
                instead="Give names of graph.nodes, such as L23H4@4",
            )
        last = len(self.cases[0].prompt) - 1 if len(self.cases) == 1 else -1
        return Node(row["kind"], row["layer"], last - row["position"], row["index"])

    def with_group(self, name: str, nodes: Sequence[str]) -> CircuitGraph:
        """Return the graph with one more group of nodes; "L23H4" means all nodes of this head, at any position.

        Raises:
            InvalidInput: the graph has no such node.
        """
        rows = self.circuit_rows()
        chosen: list[str] = []
        for given in nodes:
            at_any = [row for row in rows if row.split("@")[0] == given]
            chosen += at_any or [given]
        for one in chosen:
            self.node(one)
        return replace(self, groups={**self.groups, name: tuple(dict.fromkeys(chosen))})

    def grouped(self, by: GroupRule = "role") -> CircuitGraph:
        """Return the graph with further groups, made by a rule; see `groups.py`.

        Raises:
            Unsupported: the rule is "values" or "description", and the graph was opened from a file and has no model.
        """
        one_of("by", by, get_args(GroupRule))
        rows = self.circuit_rows()
        if by == "role":
            found = by_role(rows, list(self.edges.rows()), METRIC)
        else:
            lm, longest = self._model("groups by values"), max(self.cases, key=lambda case: len(case.prompt))
            nodes = {name: self.node(name) for name in rows}
            given = lm, longest.prompt, rows, list(nodes.values()), self.dictionary
            if by == "description":
                found = by_description(*given)
            else:
                found = named_by_effect(lm, self.cases, by_values(*given), nodes, self.dictionary)
        return replace(self, groups={**self.groups, **found})

    def intervene(
        self,
        change: GroupChange = "silence",
        groups: Sequence[str] | None = None,
        *,
        factor: float = 2.0,
    ) -> Table:
        """Change one group of nodes at a time in the model itself, and measure what the prediction becomes.

        Args:
            change: "silence" sets the nodes' activations to 0, "scale" multiplies them by the factor, "patch" replaces
                them by those in the counterfactual.
            groups: names of groups, or of single nodes; all groups when None.
            factor: what "scale" multiplies the nodes by.

        Returns:
            A row for the unchanged model and one for each group. Columns: changed (the group), nodes (their number),
            relevance (the sum over these nodes), metric (mean over the prompts), and the most probable tokens after the
            first prompt with their probabilities.

        Raises:
            InvalidInput: there is no such group or node, or the change is "patch" and there are no counterfactuals.
            Unsupported: the graph was opened from a file and has no model yet.
        """
        one_of("change", change, get_args(GroupChange))
        if change == "patch" and not self.is_paired:
            raise InvalidInput("a patch", why="the prompts have no counterfactuals", instead='Use "silence"')
        rows, chosen = self.circuit_rows(), dict[str, tuple[list[Node], float]]()
        for name in self.groups if groups is None else groups:
            names = self.groups.get(name, (name,))
            nodes = [self.node(one) for one in names]
            chosen[name] = nodes, sum(rows[one]["relevance"] for one in names)
        lm = self._model("an intervention")
        return group_effects(lm, self.cases, chosen, change, factor, self.dictionary, self.provenance)

    def _model(self, what: str) -> Decoder:
        if self.lm is None:
            raise Unsupported(
                f"{what} of this circuit",
                why="it was opened from a file and has no model yet",
                instead="Use graph.bound_to(lm)",
            )
        return self.lm

    def test(
        self,
        pairs: Sequence[GivenPair] | None = None,
        sizes: Sequence[int] = SIZES,
        *,
        kinds: CircuitNodes | None = None,
        to: SetTo | None = None,
        ranked_by: RankedBy = "relevance",
        seed: int = 0,
    ) -> Table:
        """Measure what the model does with only the circuit's nodes, and without them, compared with random nodes.

        Args:
            pairs: prompts that the circuit was not found on; the graph's own when None.
            sizes: sizes of the circuits to test; each circuit has this many of the most relevant nodes.
            kinds: "memories": all memories outside the circuit are set to the values of `to`, and attention is not
                changed; "heads": the same for heads; "all": for both. If heads are tested and `to` is
                "counterfactual", the circuit's nodes are instead copied from the prompt's run into the counterfactual's
                (for faithfulness), and from the counterfactual's into the prompt's (for the complement). Default:
                "memories" for several prompts, "all" for one.
            to: the values to which nodes are set. "mean": over the counterfactual prompts, at each position (default
                for memories and several prompts). "counterfactual": those in the prompt's counterfactual (default for
                other tests with counterfactuals). "corpus": the mean over a text (default without counterfactuals).
                "zero": 0 (default without counterfactuals if the graph has a dictionary).
            ranked_by: the score that orders the nodes. "supporting": relevance, without nodes whose relevance is
                negative. Other scores than relevance are computed on the graph's own prompts.

        Returns:
            A row for each size. Columns: nodes (their number), and the shares faithfulness, complement, random and
            random_complement, each with bounds (95 % interval over prompts; for random nodes, the lowest and highest of
            five draws); and whether random nodes do as well.

        Raises:
            Unsupported: the graph was opened from a file and has no model yet.
        """
        return outcome_table(
            self.provenance, self.tested(pairs, sizes, kinds=kinds, to=to, ranked_by=ranked_by, seed=seed)
        )

    def rankings(
        self,
        pairs: Sequence[GivenPair] | None = None,
        sizes: Sequence[int] = SIZES,
        *,
        kinds: CircuitNodes | None = None,
        to: SetTo | None = None,
        seed: int = 0,
    ) -> Table:
        """Test circuits whose nodes are selected by relevance or by simpler scores; see `test` for the arguments.

        Returns:
            A row for each score and size, random nodes last. Columns: ranked_by, nodes (their number), and faithfulness
            and complement with bounds.
        """
        orders: tuple[RankedBy, ...] = get_args(RankedBy)
        tests: dict[RankedBy, CircuitTest] = {
            by: self.tested(
                pairs, sizes, kinds=kinds, to=to, ranked_by=by, seed=seed, draws=DRAWS if by == "relevance" else 1
            )
            for by in orders
        }
        return rankings_table(self.provenance, tests)

    def tested(
        self,
        pairs: Sequence[GivenPair] | None = None,
        sizes: Sequence[int] = SIZES,
        *,
        kinds: CircuitNodes | None = None,
        to: SetTo | None = None,
        ranked_by: RankedBy = "relevance",
        seed: int = 0,
        draws: int = DRAWS,
    ) -> CircuitTest:
        """Do the same as `test`, with `draws` random circuits of each size, and return a `CircuitTest`, not a table."""
        lm = self._model("a test")
        cases = self.cases if pairs is None else read_cases(lm, pairs)
        sizes = [positive_int("size", size) for size in sizes]
        several = len(cases) > 1
        kinds = ("memories" if several and lm.n_memories else "all") if kinds is None else kinds
        one_of("kinds", kinds, get_args(CircuitNodes))
        paired = cases[0].counterfactual is not None
        if to is None:
            alone: SetTo = "zero" if self.dictionary is not None else "corpus"
            to = alone if not paired else "mean" if several and kinds == "memories" else "counterfactual"
        one_of("to", to, get_args(SetTo))
        if to in ("mean", "counterfactual") and not paired:
            raise InvalidInput(f"to={to!r}", why="the prompts have no counterfactuals", instead='Use to="corpus"')
        one_of("ranked_by", ranked_by, get_args(RankedBy))
        chosen = _TESTED[kinds]
        if ranked_by in ("relevance", "supporting"):
            order = self.ranking.nodes(chosen, supporting=ranked_by == "supporting")
        else:
            if self.dictionary is not None:
                raise Unsupported(
                    f"features ranked by {ranked_by}", why="this score exists for memories and heads only"
                )
            order = other_ranking(lm, self.cases, ranked_by, chosen, max(sizes))
        return faithfulness(lm, cases, order, sizes, to, chosen, seed, self.dictionary, draws)
