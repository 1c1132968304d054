"""Compute the edges of a graph: the part of a node's relevance that comes directly from each other node.

In a cut pass (see `linear_pass`), heads and memories are leaves of the autograd graph. The gradient of a node's input
then shows what each other node contributes to it through the residual stream, norms and constant attention patterns,
but not through a third node. The edges into a node, and its constants, add up to its relevance; this is checked for
every node and case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.circuit_graph.cases import Case, batches
from unembed.circuit_graph.features import in_place_of_memories
from unembed.circuit_graph.node_scores import Node, changes
from unembed.circuit_graph.relevance import contribution, readout, relevance, seed
from unembed.dictionaries import AttachedDictionary
from unembed.errors import SumNotProved
from unembed.linear_model.linear_pass import attention_patterns, linear_pass
from unembed.linear_model.pass_tensors import LinearPass, Part, PartKind
from unembed.models.decoder import Decoder
from unembed.names import QKRule
from unembed.results import format_error
from unembed.stream.decomposition import tolerance

_GRADIENT_NUMBERS = 2**26
"""Largest number of gradient values in memory at once: 256 MiB in float32."""


@dataclass(eq=False)
class Inflow:
    """The edges into each target of a graph, summed over cases.

    Targets are the selected nodes and, in the last row of each tensor, the metric.

    Attributes:
        nodes: edges from each selected node.
        rest: edges from each layer's other heads and memories, added up.
        tokens: edges from the token embedding at each position, counted back from the end.
        positions: edges from the position embeddings, added up.
        biases: edges from the biases of each layer, added up.
        closed: edges from components of each layer to which no linear rule applies, added up.
        by_position: the sum of the edges from each position, counted back from the end, which shows where a head reads.
        ends: what the biases of final norm and unembedding, and the logit soft cap, add to the metric.
        targets: the relevance of each target.
        error: the largest error of a sum of edges, relative to the larger of the sum and its largest term.
    """

    nodes: Float[Tensor, "target node"]
    rest: Float[Tensor, "target layer"]
    tokens: Float[Tensor, "target back"]
    positions: Float[Tensor, " target"]
    biases: Float[Tensor, "target layer"]
    closed: Float[Tensor, "target layer"]
    ends: Float[Tensor, " target"]
    by_position: Float[Tensor, "target back"]
    targets: Float[Tensor, " target"]
    error: float = 0.0

    @property
    def missed(self) -> Float[Tensor, " target"]:
        """Return the part of each target's relevance that the linear model does not explain.

        With counterfactuals, this comes from differences between the two runs in what the linear model takes as
        constant, such as attention patterns.
        """
        parts = (self.nodes, self.rest, self.tokens, self.biases, self.closed)
        return self.targets - sum(part.sum(1) for part in parts) - self.positions - self.ends


def inflow(
    lm: Decoder,
    cases: Sequence[Case],
    nodes: Sequence[Node],
    dictionary: AttachedDictionary | None = None,
    qk: QKRule = "constant",
) -> Inflow:
    """Compute the edges between nodes, and into the metric.

    With counterfactuals, the source's activation is replaced by its difference between the two runs, and an edge is
    what this difference contributes to the target in the linear model of the prompt's run.

    Raises:
        SumNotProved: the edges into a node do not add up to its relevance.

    Memory: `_GRADIENT_NUMBERS` twice, activations of a batch, and the result. Cost: one backward pass for each node.
    """
    longest = max(len(case.prompt) for case in cases)
    rows, n = len(nodes) + 1, lm.n_layers

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(rows, *shape, dtype=torch.float64)

    total = Inflow(
        zeros(len(nodes)), zeros(n), zeros(longest), zeros(), zeros(n), zeros(n), zeros(), zeros(longest), zeros()
    )
    for batch in batches(lm, cases):
        patterns = attention_patterns(lm, batch.tokens, qk)
        whole = linear_pass(lm, batch.tokens, patterns, in_place_of_memories(dictionary), qk=qk)
        found = relevance(whole, batch.aim)
        made = linear_pass(lm, batch.tokens, patterns, in_place_of_memories(dictionary), cut=True, qk=qk)
        differences, start, other = changes(lm, batch, made, dictionary)
        into = _Collector(total, made, nodes, differences, start, is_paired=other is not None)
        for targets in _targets(made, found.gradients, nodes):
            read = made.parts[targets.key].read
            assert read is not None
            into.add(targets, read, differences[targets.key])
        end = readout(made, batch.aim)
        metric = _Targets(("memory", n), [len(nodes)], seed(made, end.u)[None])
        into.add(metric, made.last, torch.zeros_like(made.last))
        if other is None:
            total.ends[-1] += (end.bias + end.cap).sum()
            total.targets[-1] += end.metric.sum()
        else:
            total.targets[-1] += (end.metric - batch.aim.of(other.logits[:, -1]).cpu()).sum()
    return total


@dataclass(frozen=True, eq=False)
class _Targets:
    """Nodes of one layer whose incoming edges are computed together.

    Attributes:
        key: the kind and the layer of the nodes.
        rows: the rows of the nodes in the tensors of `Inflow`.
        seeds: for each node, the gradient of the metric with respect to the layer's activations, 0 at all other nodes.
    """

    key: tuple[PartKind, int]
    rows: list[int]
    seeds: Float[Tensor, "target batch ..."]


def _targets(
    made: LinearPass, gradients: dict[tuple[PartKind, int], Tensor], nodes: Sequence[Node]
) -> Iterator[_Targets]:
    """Yield the nodes that have incoming edges, in chunks of nodes of one layer."""
    length = made.tokens.shape[1]
    width = sum(part.own[0, 0].numel() for part in made.parts.values())
    most = max(1, _GRADIENT_NUMBERS // max(1, width * made.tokens.numel()))
    by_part: dict[tuple[PartKind, int], list[int]] = {}
    for number, node in enumerate(nodes):
        part = made.parts[node.kind, node.layer]
        reads = part.read is not None and (part.constant is None or not bool(part.constant[node.index]))
        if reads and node.back < length:
            by_part.setdefault((node.kind, node.layer), []).append(number)
    for key, numbers in by_part.items():
        own = made.parts[key].own
        for at in range(0, len(numbers), most):
            some = numbers[at : at + most]
            seeds = torch.zeros(len(some), *own.shape, dtype=own.dtype, device=own.device)
            for row, number in enumerate(some):
                place = (slice(None), length - 1 - nodes[number].back, nodes[number].index)
                seeds[row][place] = gradients[key][place]
            yield _Targets(key, some, seeds)


class _Collector:
    """Adds the edges of one cut pass to the totals over cases."""

    def __init__(
        self,
        total: Inflow,
        made: LinearPass,
        nodes: Sequence[Node],
        differences: dict[tuple[PartKind, int], Tensor],
        start: Tensor,
        *,
        is_paired: bool,
    ) -> None:
        self.total, self.made, self.is_paired = total, made, is_paired
        self.differences, self.start = differences, start
        self.length = made.tokens.shape[1]
        self.of_part: dict[tuple[PartKind, int], list[int]] = {}
        for number, node in enumerate(nodes):
            if node.back < self.length:
                self.of_part.setdefault((node.kind, node.layer), []).append(number)
        self.nodes = nodes

    def add(self, targets: _Targets, read: Tensor, change: Tensor) -> None:
        """Add the edges into some targets, and check that they add up to the targets' relevance.

        Args:
            targets: nodes of one layer and kind, or the metric.
            read: the activations of all nodes of this layer and kind, as a function of what they read; for the metric,
                the last residual stream.
            change: the difference of these activations between the two runs; without counterfactuals, the activations
                themselves. It is 0 for the metric, whose relevance the caller adds.

        Raises:
            SumNotProved: the edges do not add up to the relevance.
        """
        made, total, rows = self.made, self.total, targets.rows
        _, layer = targets.key
        parts = [part for part in made.parts.values() if part.layer <= layer and part.own is not read]
        biases = [one for one in made.biases if one.layer <= layer]
        closed = [one for one in made.closed if one.layer <= layer]
        inputs = [made.start, *(p.own for p in parts), *(b.factor for b in biases), *(c.own for c in closed)]
        found = torch.autograd.grad(
            [read], inputs, [targets.seeds], is_grads_batched=True, retain_graph=True, allow_unused=True
        )
        check = _Check(len(rows), len(made.tokens))
        for at, (t, g) in enumerate(zip(inputs, found, strict=True)):
            if g is None:
                continue
            if at == 0:
                self._start(rows, g, check)
            elif at <= len(parts):
                self._part(rows, parts[at - 1], g, check)
            elif at <= len(parts) + len(biases):
                bias = biases[at - 1 - len(parts)]
                check.add(g.double()[..., None])
                if not self.is_paired:
                    total.biases[rows, bias.layer] += g.double().sum((1, 2)).cpu()
            else:
                one = closed[at - 1 - len(parts) - len(biases)]
                flow = (t.detach().double() * g.double()).flatten(2).sum(-1)
                check.add(flow[..., None, None])
                if not self.is_paired:
                    total.closed[rows, one.layer] += flow.sum(1).cpu()
        seeds = targets.seeds.double()
        own = (read.detach().double() * seeds).flatten(2).sum(-1)
        total.error = max(total.error, check.error(own))
        if not total.error <= tolerance(made.lm):
            raise SumNotProved(
                f"the edges into {targets.key[0]}s of layer {layer} of {made.lm.name}",
                why=f"their sum is not the nodes' relevance (relative error {format_error(total.error, 2)})",
                instead="Load with dtype='float32', remove hooks of your own from lm.hf, or report this model",
            )
        total.targets[rows] += (change.double() * seeds).flatten(1).sum(-1).cpu()

    def _start(self, rows: list[int], g: Tensor, check: _Check) -> None:
        made, total = self.made, self.total
        check.add((made.start.detach().double() * g.double()).sum(-1, keepdim=True))
        flow = (self.start.double() * g.double()).sum(-1).sum(1).flip(1).cpu()
        total.by_position[rows, : self.length] += flow
        if made.positions is not None and not self.is_paired:
            placed = (made.positions.double() * g.double()).sum(-1).sum(1).flip(1).cpu()
            total.positions[rows] += placed.sum(1)
            flow = flow - placed
        total.tokens[rows, : self.length] += flow

    def _part(self, rows: list[int], part: Part, g: Tensor, check: _Check) -> None:
        total = self.total
        own = contribution(part.own, g, part.kind)
        check.add(own)
        flow = contribution(self.differences[part.kind, part.layer], g, part.kind) if self.is_paired else own
        flow = flow.sum(1).flip(1).double().cpu()  # (target, position from the end, node)
        total.by_position[rows, : self.length] += flow.sum(-1)
        numbers = self.of_part.get((part.kind, part.layer), [])
        backs = [self.nodes[n].back for n in numbers]
        indices = [self.nodes[n].index for n in numbers]
        mine = flow[:, backs, indices]
        total.nodes[torch.tensor(rows)[:, None], torch.tensor(numbers, dtype=torch.long)] += mine
        total.rest[rows, part.layer] += flow.sum((1, 2)) - mine.sum(1)


class _Check:
    """The sum of the edges into each target in each case, and the largest edge, to which errors are compared."""

    def __init__(self, n: int, batch: int) -> None:
        self.sum = torch.zeros(n, batch, dtype=torch.float64)
        self.largest = torch.zeros(n, batch, dtype=torch.float64)

    def add(self, flow: Float[Tensor, "target batch pos node"]) -> None:
        """Add edges to the sums."""
        flow = flow.flatten(2)
        self.sum += flow.double().sum(-1).cpu()
        self.largest = torch.maximum(self.largest, flow.abs().amax(-1).double().cpu())

    def error(self, whole: Float[Tensor, "target batch"]) -> float:
        """Return the largest error of a sum, relative to the larger of its expected value and its largest term."""
        whole = whole.cpu()
        size = torch.maximum(whole.abs(), self.largest).clamp_min(1e-30)
        return float(((self.sum - whole).abs() / size).max())
