"""A circuit as a graph: nodes with their relevance, edges that add up to it, and the test of removing the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from jaxtyping import Float, Int
from torch import Tensor

from unembed.circuit_graph.cases import Case, GivenPair, read_cases
from unembed.circuit_graph.faithfulness import CircuitTest, faithfulness
from unembed.circuit_graph.node_scores import Node
from unembed.errors import InvalidInput, Unsupported
from unembed.linear_model.pass_tensors import PartKind
from unembed.models.decoder import Decoder
from unembed.names import CircuitNodes, SetTo
from unembed.results import Displayed, Provenance, Table
from unembed.validation import one_of, positive_int

NodeKind = Literal["memory", "head", "token", "bias", "rest"]
METRIC = "metric"
"""The name of the metric as the target of edges."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """The nodes with the largest relevance, positive or negative, including more than the graph has.

    Attributes:
        is_head: whether a node is a head; else it is a memory.
        back: positions counted back from the last token.
    """

    is_head: Int[Tensor, " node"]
    layer: Int[Tensor, " node"]
    back: Int[Tensor, " node"]
    index: Int[Tensor, " node"]
    relevance: Float[Tensor, " node"]

    def nodes(self, kinds: Sequence[PartKind]) -> list[Node]:
        """Return the nodes of some kinds, in this order."""
        columns = zip(self.is_head.tolist(), self.layer.tolist(), self.back.tolist(), self.index.tolist(), strict=True)
        found = [Node("head" if h else "memory", layer, back, index) for h, layer, back, index in columns]
        return [node for node in found if node.kind in kinds]


@dataclass(frozen=True, eq=False, repr=False)
class CircuitGraph(Displayed):
    """The circuit of a behaviour: memories and heads at positions, what they read from each other, and what they add.

    Attributes:
        nodes: name, kind ("memory", "head", "token", "bias" or "rest"), layer, position, index, relevance, label.
            Relevance is a node's contribution to the metric along all paths, averaged over the prompts; with
            counterfactuals, to the difference of the metric between the two prompts. Positions count from 0 for one
            prompt, back from -1 for several. "rest": all other heads and memories of a layer, and what is not opened.
        edges: source and target (names of nodes, or "metric"), and weight: the part of the target's relevance that
            comes directly from the source. Edges into a node add up to its relevance.
        metric: the logit of the token, or its difference to the other, of the model itself; the mean over prompts.
        counterfactual_metric: the same of the counterfactual prompts; None without them.
        error: the largest relative error of a sum: of relevance at any layer, or of edges into any node.
        cases: the prompts.
        tokens: the text of the tokens of the first prompt.
        ranking: the nodes in the order in which the test takes them.
        unopened: parts of the model whose own inside is not opened, by name.
        n_nodes: heads and memories at all positions.
    """

    nodes: Table
    edges: Table
    metric: float
    counterfactual_metric: float | None
    error: float
    cases: tuple[Case, ...]
    tokens: tuple[str, ...]
    ranking: Ranking
    unopened: tuple[str, ...]
    n_nodes: int
    provenance: Provenance
    lm: Decoder | None = field(default=None, metadata={"saved": False})
    """The model; None in a graph that was opened from a file, until `bound_to`."""

    @property
    def is_paired(self) -> bool:
        """Tell whether there are counterfactual prompts."""
        return self.cases[0].counterfactual is not None

    def __getstate__(self) -> dict[str, object]:
        """Return what is pickled: everything except the model."""
        return {**vars(self), "lm": None}

    def to_table(self) -> Table:
        """The nodes, the largest relevance first."""
        return self.nodes

    def bound_to(self, lm: Decoder) -> CircuitGraph:
        """Return the same graph with the model that it was found on, for tests.

        Raises:
            InvalidInput: it was found on another model.
        """
        if lm.name != self.provenance.model:
            raise InvalidInput(
                f"a circuit of {self.provenance.model} with {lm.name}",
                why="its nodes are those of another model",
                instead=f"Open {self.provenance.model}",
            )
        return replace(self, lm=lm)

    def test(
        self,
        pairs: Sequence[GivenPair] | None = None,
        sizes: Sequence[int] = (10, 30, 100),
        *,
        kinds: CircuitNodes | None = None,
        to: SetTo | None = None,
        seed: int = 0,
    ) -> Table:
        """Measure what the model does with only the circuit's nodes, and without them, compared with random nodes.

        Args:
            pairs: prompts that the circuit was not found on; the graph's own when None.
            sizes: how many nodes are kept, in the order of their relevance.
            kinds: "memories": all other memories are set, and attention is not changed, as published; "all": heads
                too, and with counterfactuals the circuit's nodes are put into the counterfactual's run, or taken out
                of the prompt's. By default memories for several prompts, all for one.
            to: what nodes are set to: "mean" of the counterfactual prompts at each position (the default for memories
                of several prompts), each prompt's own "counterfactual" (the default else), the mean over a text
                ("corpus", the default without counterfactuals), or "zero".

        Returns:
            A row for each size: nodes, faithfulness, complement, random, random_complement, each share with bounds
            (95 % over prompts; for random the lowest and highest of five draws), and whether random nodes do as well.

        Raises:
            Unsupported: the graph was opened from a file and has no model yet.
        """
        return test_table(self, self.tested(pairs, sizes, kinds=kinds, to=to, seed=seed))

    def tested(
        self,
        pairs: Sequence[GivenPair] | None = None,
        sizes: Sequence[int] = (10, 30, 100),
        *,
        kinds: CircuitNodes | None = None,
        to: SetTo | None = None,
        seed: int = 0,
    ) -> CircuitTest:
        """Return the test as values; see `test`."""
        if self.lm is None:
            raise Unsupported("a test of this circuit", why="it has no model", instead="Use graph.bound_to(lm)")
        cases = self.cases if pairs is None else read_cases(self.lm, pairs)
        return self.tested_on(cases, sizes, kinds=kinds, to=to, seed=seed)

    def tested_on(
        self,
        cases: Sequence[Case],
        sizes: Sequence[int],
        *,
        kinds: CircuitNodes | None = None,
        to: SetTo | None = None,
        seed: int = 0,
    ) -> CircuitTest:
        """The test on cases; see `test`."""
        if self.lm is None:
            raise Unsupported("a test of this circuit", why="it has no model", instead="Use graph.bound_to(lm)")
        sizes = [positive_int("size", size) for size in sizes]
        several = len(cases) > 1
        kinds = ("memories" if several and self.lm.n_memories else "all") if kinds is None else kinds
        one_of("kinds", kinds, get_args(CircuitNodes))
        paired = cases[0].counterfactual is not None
        if to is None:
            to = "corpus" if not paired else "mean" if several and kinds == "memories" else "counterfactual"
        one_of("to", to, get_args(SetTo))
        if to in ("mean", "counterfactual") and not paired:
            raise InvalidInput(f"to={to!r}", why="the prompts have no counterfactuals", instead='Use to="corpus"')
        chosen: tuple[PartKind, ...] = ("memory",) if kinds == "memories" else ("head", "memory")
        return faithfulness(self.lm, cases, self.ranking.nodes(chosen), sizes, to, chosen, seed)


def test_table(graph: CircuitGraph, tested: CircuitTest) -> Table:
    """Return a test as a table."""
    columns: dict[str, list[object]] = {"nodes": [row.nodes for row in tested.rows]}
    for name in ("faithfulness", "complement", "random", "random_complement"):
        shares = [getattr(row, name) for row in tested.rows]
        columns[name] = [share.value for share in shares]
        columns[f"{name}_low"] = [share.low for share in shares]
        columns[f"{name}_high"] = [share.high for share in shares]
    columns["random_does_as_well"] = [row.is_matched for row in tested.rows]
    what = "memories" if tested.kinds == ("memory",) else "heads and memories"
    title = (
        f"Circuit of {tested.n_nodes:,} {what} on {tested.n_prompts} prompts, all others at their {tested.baseline} "
        f"values: {tested.model:+.3g} with all, {tested.none:+.3g} with none"
    )
    notes = {"to": tested.baseline, "kinds": list(tested.kinds)}
    return Table(title, columns, replace(graph.provenance, notes={**graph.provenance.notes, **notes}))
