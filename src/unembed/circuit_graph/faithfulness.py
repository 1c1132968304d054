"""Test a circuit: does the model show the behaviour with the circuit's nodes alone, and does it without these nodes?

A test of memories sets all memories outside the circuit, at every position, to the values that they have without the
behaviour. The circuit's memories have the values that the model then computes, and attention is not changed. A test of
heads and memories with a counterfactual instead copies the circuit's nodes into the run of the counterfactual, where
the model computes everything else. In both tests, the complement is the run of the prompt with the circuit's nodes set
to their values without the behaviour. As a control, both tests are repeated with as many random nodes of the same
layers and positions.

F is the metric (the explained logit or difference of logits), averaged over prompts:

    faithfulness = (F(circuit) - F(none)) / (F(model) - F(none))
    complement   = (F(all but the circuit) - F(none)) / (F(model) - F(none))

Source: Marks et al. 2024 (faithfulness and completeness); Arora et al. 2026 (neurons at positions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unembed.causality.corpus_means import corpus_means
from unembed.circuit_graph.cases import Case, CaseBatch, batches
from unembed.circuit_graph.node_scores import Node
from unembed.circuit_graph.node_values import POINTS, Place, Values, capture_points, places, run_changed, values
from unembed.corpus import open_corpus
from unembed.dictionaries import AttachedDictionary
from unembed.errors import Unsupported
from unembed.linear_model.pass_tensors import PartKind
from unembed.models.decoder import Decoder
from unembed.names import SetTo
from unembed.stream.run import run

_WORDS: dict[PartKind, str] = {"head": "heads", "memory": "memories", "feature": "features"}
SIZES = (10, 30, 100)
"""Numbers of nodes with which a circuit is tested by default."""
DRAWS = 5
"""Number of random circuits of each size."""
_RESAMPLES = 1000
_CORPUS_TOKENS = 1024
_CORPUS_POINTS: dict[PartKind, Literal["z", "coefficients"]] = {"head": "z", "memory": "coefficients"}

Mask = Mapping[Place, Bool[Tensor, "_back _node"]]


@dataclass(frozen=True)
class Share:
    """A share of the difference between the metric with all nodes and without any, with a 95 % interval over prompts.

    The bounds of the interval are None for one prompt.
    """

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class OfSize:
    """The results for a circuit of one size: with its nodes alone, without them, and the same for random nodes."""

    nodes: int
    faithfulness: Share
    complement: Share
    random: Share
    """The mean over the random circuits; the bounds are the lowest and the highest value among them."""
    random_complement: Share

    @property
    def is_matched(self) -> bool:
        """Tell whether random nodes do as well as the circuit's nodes, both alone and when they are removed.

        They do if the interval of the random nodes overlaps that of the circuit in both tests.
        """
        low = self.faithfulness.value if self.faithfulness.low is None else self.faithfulness.low
        left = self.complement.value if self.complement.high is None else self.complement.high
        assert self.random.high is not None and self.random_complement.low is not None
        return low <= self.random.high and left >= self.random_complement.low


@dataclass(frozen=True)
class CircuitTest:
    """The test of a circuit at several sizes; `model` is the metric with all nodes, `none` the metric without any."""

    baseline: SetTo
    kinds: tuple[PartKind, ...]
    n_nodes: int
    """Number of nodes of the tested kinds, at all positions of the longest prompt."""
    n_prompts: int
    model: float
    none: float
    rows: tuple[OfSize, ...]

    @property
    def what(self) -> str:
        """The tested kinds of nodes, in words."""
        return " and ".join(_WORDS[kind] for kind in self.kinds)


class Bench:
    """Prompts on which circuits are tested, with the values to which nodes are set.

    Args:
        kinds: the kinds of nodes that are tested; nodes of other kinds are not changed.
    """

    def __init__(
        self,
        lm: Decoder,
        cases: Sequence[Case],
        baseline: SetTo,
        kinds: Sequence[PartKind],
        dictionary: AttachedDictionary | None = None,
    ) -> None:
        self.lm, self.dictionary = lm, dictionary
        self.sizes = places(lm, dictionary, kinds)
        present: set[PartKind] = {kind for kind, _ in self.sizes}
        self.kinds = tuple[PartKind, ...](kind for kind in kinds if kind in present)
        self.is_interchange = "head" in kinds and baseline == "counterfactual"
        self.longest = max(len(case.prompt) for case in cases)
        self.batches: list[tuple[CaseBatch, Values, Values]] = []
        means = self._means(cases) if baseline == "mean" else {}
        for batch in batches(lm, cases):
            length = batch.tokens.shape[1]
            replacement = means[length] if length in means else self._replacement(batch, baseline)
            # If heads are tested, the circuit's nodes are set to their values in the unchanged run, which are captured
            # here. If no heads are tested, the circuit's nodes are not set: the model computes their values, after the
            # nodes outside the circuit have been changed.
            own = self._captured(batch.tokens) if "head" in self.kinds else {}
            self.batches.append((batch, replacement, own))

    @property
    def n_nodes(self) -> int:
        """The number of nodes of the tested kinds, at all positions of the longest prompt."""
        return self.longest * sum(self.sizes.values())

    def _captured(self, tokens: Tensor) -> Values:
        where = list(self.sizes)
        seen = run(self.lm, tokens, capture_points(self.dictionary, where), logits=False)
        return values(seen, self.dictionary, where)

    def _replacement(self, batch: CaseBatch, baseline: SetTo) -> Values:
        if baseline in ("zero", "corpus"):
            means = {} if baseline == "zero" else self.lm.once(("circuit_graph", self.kinds), self._corpus)
            length = batch.tokens.shape[1]
            found = dict[Place, Tensor]()
            for (kind, layer), size in self.sizes.items():
                mixer = self.lm.structure.blocks[layer].mixer
                shape = (1, length, size, mixer.d_head) if kind == "head" and mixer is not None else (1, length, size)
                mean = means.get((POINTS[kind], layer)) if kind in POINTS else None
                found[kind, layer] = torch.zeros(shape) if mean is None else mean.expand(shape)
            return found
        assert batch.counterfactual is not None
        return self._captured(batch.counterfactual)

    def _means(self, cases: Sequence[Case]) -> dict[int, Values]:
        """Return the nodes' mean values at each position over the counterfactual prompts, by prompt length."""
        sums: dict[int, dict[Place, Tensor]] = {}
        counts: dict[int, int] = {}
        for batch in batches(self.lm, cases):
            assert batch.counterfactual is not None
            rows, length = batch.tokens.shape
            own = {p: t.double().sum(0, keepdim=True) for p, t in self._captured(batch.counterfactual).items()}
            before = sums.get(length)
            sums[length] = own if before is None else {p: t + before[p] for p, t in own.items()}
            counts[length] = counts.get(length, 0) + rows
        return {length: {p: t / counts[length] for p, t in of.items()} for length, of in sums.items()}

    def _corpus(self) -> dict[tuple[str, int], Tensor]:
        if "feature" in self.kinds:
            raise Unsupported(
                "setting features to their mean over a text",
                why="means are computed for memories and heads only",
                instead="Set them to zero",
            )
        needs = [(_CORPUS_POINTS[kind], layer) for kind, layer in self.sizes]
        return corpus_means(self.lm, open_corpus(), needs, _CORPUS_TOKENS).numbers

    def mask(self, nodes: Sequence[Node]) -> dict[Place, Tensor]:
        """Return masks of the nodes in a circuit, by kind and layer, with positions counted back from the end."""
        mask = {place: torch.zeros(self.longest, size, dtype=torch.bool) for place, size in self.sizes.items()}
        for node in nodes:
            mask[node.kind, node.layer][node.back, node.index] = True
        return mask

    def metric(self, nodes: Sequence[Node] | None, *, without: bool = False) -> Float[np.ndarray, " case"]:
        """Return each prompt's metric while all nodes of the tested kinds except `nodes` are set to other values.

        Args:
            nodes: the nodes of a circuit; None changes no node.
            without: change `nodes` instead, and no others.
        """
        mask = None if nodes is None else self.mask(nodes)
        metrics = [self._of_batch(*one, mask, without=without) for one in self.batches]
        return torch.cat(metrics).numpy()

    def _of_batch(
        self, batch: CaseBatch, other: Values, own: Values, mask: Mask | None, *, without: bool
    ) -> Float[Tensor, " case"]:
        """Return the metric of one batch with the nodes inside the mask, or outside it, changed."""
        put_in = self.is_interchange and mask is not None and not without
        tokens = batch.counterfactual if put_in else batch.tokens
        assert tokens is not None
        changes_circuit = put_in or without
        new = own if put_in else other
        recorded = own if own and not changes_circuit else {}

        def replaced(t: Tensor, place: Place) -> Tensor:
            assert mask is not None
            chosen = mask[place][: tokens.shape[1]].flip(0).to(t.device)
            chosen = chosen[..., None] if place[0] == "head" else chosen
            value, kept = new[place].to(t), recorded.get(place, t).to(t)
            return torch.where(chosen, value, t) if changes_circuit else torch.where(chosen, kept, value)

        where = [] if mask is None else list(self.sizes)
        seen = run_changed(self.lm, tokens, self.dictionary, where, replaced)
        return batch.aim.of(seen.logits[:, -1]).cpu()

    def random_nodes(self, nodes: Sequence[Node], draw: np.random.Generator) -> list[Node]:
        """Draw random nodes outside a circuit: for each of its nodes, one of the same kind, layer and position."""
        of_place: dict[tuple[PartKind, int, int], list[int]] = {}
        for node in nodes:
            of_place.setdefault((node.kind, node.layer, node.back), []).append(node.index)
        found = list[Node]()
        for (kind, layer, back), taken in of_place.items():
            free = np.setdiff1d(np.arange(self.sizes[kind, layer]), taken)
            drawn = draw.choice(free, min(len(taken), len(free)), replace=False)
            found += [Node(kind, layer, back, int(index)) for index in drawn]
        return found


def faithfulness(
    lm: Decoder,
    cases: Sequence[Case],
    ranking: Sequence[Node],
    sizes: Sequence[int],
    baseline: SetTo,
    kinds: Sequence[PartKind] = ("memory",),
    seed: int = 0,
    dictionary: AttachedDictionary | None = None,
    draws: int = DRAWS,
) -> CircuitTest:
    """Test circuits of the first nodes of a ranking, one circuit for each size.

    Returns:
        Shares with bootstrap intervals over prompts. Each size takes two passes over the prompts, and two for each of
        its `draws` random circuits.
    """
    bench, draw = Bench(lm, cases, baseline, tuple(kinds), dictionary), np.random.default_rng(seed)
    usable = [node for node in ranking if node.back < bench.longest and node.kind in bench.kinds]
    model, none = bench.metric(None), bench.metric([])
    rows = list[OfSize]()
    for size in sizes:
        nodes = usable[:size]
        kept, left = bench.metric(nodes), bench.metric(nodes, without=True)
        controls = [bench.random_nodes(nodes, draw) for _ in range(draws)]
        random = [_share(bench.metric(control), none, model) for control in controls]
        without = [_share(bench.metric(control, without=True), none, model) for control in controls]
        rows.append(
            OfSize(
                len(nodes),
                _interval(kept, none, model, seed),
                _interval(left, none, model, seed),
                _range(random),
                _range(without),
            )
        )
    ends = float(model.mean()), float(none.mean())
    return CircuitTest(baseline, bench.kinds, bench.n_nodes, len(model), *ends, tuple(rows))


def _range(shares: Sequence[float]) -> Share:
    return Share(float(np.mean(shares)), min(shares), max(shares))


def _share(some: np.ndarray, none: np.ndarray, model: np.ndarray) -> float:
    whole = float(model.mean() - none.mean())
    return float(some.mean() - none.mean()) / whole if whole else float("nan")


def _interval(some: np.ndarray, none: np.ndarray, model: np.ndarray, seed: int) -> Share:
    """Return (some - none) / (model - none), of means over prompts, with its 95 % bootstrap interval.

    Args:
        some: each prompt's metric with the circuit alone, or without it.
        none: each prompt's metric without any node.
        model: each prompt's metric with all nodes.
        seed: the seed of the bootstrap.
    """
    value = _share(some, none, model)
    if len(model) < 2:
        return Share(value, None, None)
    rows = np.random.default_rng(seed).integers(0, len(model), (_RESAMPLES, len(model)))
    shares = (some[rows].mean(1) - none[rows].mean(1)) / (model[rows].mean(1) - none[rows].mean(1))
    low, high = np.quantile(shares, [0.025, 0.975])
    return Share(value, float(low), float(high))
