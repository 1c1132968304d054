"""Attribution patching: estimate the effect of every head and memory (FFN neuron) from one backward pass.

The estimate is first-order: (new - a) * dm/da for the metric m and an activation a that becomes `new`, which is zero or
the activation in another forward pass. The derivative is the model's own (the gradient), or that of a linearised model
(relevance), which is accurate for larger changes. Estimates are never reported as exact: every head, and the memories
with the largest estimates, are also replaced in the model. How well estimates and exact effects agree is measured on
these, and on other memories drawn at random. The random sample also shows how many large effects the estimates may have
missed.

Source: Nanda 2023, "Attribution patching"; Syed et al. 2023; Rezaei Jafari et al. 2025 ("RelP") for relevance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.attention.weights.by_layer import by_layer
from unembed.causality.ablation_sources import Source
from unembed.causality.estimate_agreement import Agreement, Unmeasured, agreement, share_above
from unembed.causality.metrics import Metric, MetricFunction, bound
from unembed.causality.prompt_pair import Alignment, PromptPair, prompt_pair, taken_from
from unembed.causality.relevance_estimates import relevance_slopes
from unembed.causality.replaced_pass import Place, Replacement
from unembed.causality.rerun import Rerun, last_logits, n_heads_of
from unembed.errors import InvalidInput, PointMissing, SumNotProved, Unsupported
from unembed.models.decoder import Decoder
from unembed.names import head_name
from unembed.results import Displayed, Provenance, Table, format_signed
from unembed.stream.capture_points import has_point
from unembed.stream.gradients import on_the_graph
from unembed.stream.hooks import attach_hooks, memory_guard
from unembed.stream.interventions import Edits
from unembed.stream.run import Tokens, cache_argument, prepare
from unembed.validation import positive_int


@dataclass(frozen=True, eq=False, repr=False)
class EstimatedEffects(Displayed):
    """Estimated effects of replacing each head and memory at all positions, with exact effects of the strongest.

    Attributes:
        baseline: the metric of the unchanged run (of the corrupted run if there are two).
        to: what replaces the activations, as text.
        heads: estimated effect of each head: how much the metric falls when the head is ablated to zero, or how much it
            rises from the corrupted run when the head is taken from the clean run. NaN where a layer has no heads.
        memories: the same for each memory; NaN where a layer has no memories, None if the model has none.
        head_relevance: the effect of each head estimated by relevance; None if the model cannot be linearised.
        memory_relevance: the same for each memory.
        labels: the heads and memories with the largest exact effects, among those that were replaced.
        estimated: the effects of `labels` estimated by the gradient.
        relevance: the effects of `labels` estimated by relevance; empty if the model cannot be linearised.
        exact: the exact effects of `labels`.
        agreements: correlations of estimates with exact effects.
        unmeasured: a bound on the effects of the memories that were not replaced; None if no sample was drawn.
        exact_heads: exact effect of each head; None if no head was replaced.
        without_relevance: why the model cannot be linearised in this run; empty if it can.
    """

    metric: str
    baseline: float
    to: str
    heads: Float[Tensor, "layer head"]
    memories: Float[Tensor, "layer d_mlp"] | None
    head_relevance: Float[Tensor, "layer head"] | None
    memory_relevance: Float[Tensor, "layer d_mlp"] | None
    labels: tuple[str, ...]
    estimated: tuple[float, ...]
    relevance: tuple[float, ...]
    exact: tuple[float, ...]
    agreements: tuple[Agreement, ...]
    unmeasured: Unmeasured | None
    exact_heads: Float[Tensor, "layer head"] | None
    without_relevance: str
    provenance: Provenance

    def to_table(self) -> Table:
        """Return a table of the heads and memories with the largest exact effects, with their estimates."""
        columns: dict[str, list[Any]] = {
            "writer": list(self.labels),
            "exact_effect": list(self.exact),
            "estimated_effect": list(self.estimated),
        }
        if self.relevance:
            columns["relevance"] = list(self.relevance)
        title = (
            f"Attribution patching to {self.to} (an approximation): {self.metric}, baseline "
            f"{format_signed(self.baseline)}"
        )
        return Table(title, columns, self.provenance)

    def agreement_table(self) -> Table:
        """Return a table of how well each kind of estimate agrees with exact effects, for each set of components."""
        columns = {name: [getattr(one, name) for one in self.agreements] for name in Agreement._fields}
        return Table("Estimates against exact effects: correlation of sizes and of ranks", columns, self.provenance)


Part = tuple[str, int, int]
"""Capture point, layer and index of a head or memory."""
_Effects = dict[Place, Float[Tensor, " writer"]]


def attribution_patching(
    lm: Decoder,
    prompt: Tokens,
    metric: Metric | MetricFunction | None = None,
    *,
    corrupted: Tokens | None = None,
    alignment: Alignment | None = None,
    top: int = 20,
    sample: int = 50,
    seed: int = 0,
    edits: Edits = (),
) -> EstimatedEffects:
    """Estimate the effect of replacing every head and memory (FFN neuron), and check the strongest by replacing them.

    Args:
        prompt: one prompt; the clean prompt if there are two.
        metric: the metric of the logits after the last token. The default is that of `patch`; without a second prompt,
            it is the logit of the most probable token minus the logit of the second most probable one.
        corrupted: a second prompt, whose activations are replaced by those of the first; if None, activations of the
            first prompt are replaced by zero.
        alignment: pairs (position in clean, position in corrupted), or "auto"; needed if lengths differ.
        top: number of rows to list, and number of memories with the largest estimates, by gradient and by relevance, to
            replace in the model. All heads are replaced too. With 0, no estimate is checked.
        sample: number of other memories to draw at random and replace in the model, to measure how well estimates agree
            with exact effects, and how many large effects the estimates may have missed.
        seed: the seed of that draw.
        edits: changes to make in all runs; with edits, effects are not estimated by relevance.

    Raises:
        InvalidInput: there are several prompts at once, two prompts of unequal length, or a metric that is equal in
            both runs.
        PointMissing: the model has no layers.

    Memory: activations of one forward and backward pass, and of a linear pass (`unembed.linear_model`).
    """
    top = positive_int("top", top, least=0)
    if not lm.n_layers:
        raise PointMissing(f"{lm.name} has no heads or memories", why="it has no layers")
    places = [(p, n) for p in ("z", "coefficients") for n in range(lm.n_layers) if has_point(lm, p, n)]
    if not places:
        why = "no attention has an output projection that can be split by head, and no FFN is a sum of memories"
        raise PointMissing(f"{lm.name} has no heads or memories", why=why, instead="Ablate whole layers")
    pair = None
    if corrupted is not None:
        points = list(dict.fromkeys(point for point, _ in places))
        pair = prompt_pair(lm, prompt, corrupted, points, metric, alignment, edits=edits)
    ids, mask = prepare(lm, prompt if pair is None else pair.target.ids)
    if ids.shape[0] != 1 or not bool(mask.all()):
        raise InvalidInput(f"{ids.shape[0]} prompts", why="effects are estimated for one prompt at a time")
    activations, logits = _with_graph(lm, ids, places, edits)
    function, label = bound(lm, metric, logits[0].detach()) if pair is None else (pair.function, pair.label)
    with torch.enable_grad():
        value = function(logits)[0]
    baseline = float(value.detach())
    by_gradient = _estimates(lm, _gradients(value, activations), pair)
    del activations, logits, value
    by_relevance, without = _by_relevance(lm, ids, places, function, pair, edits)
    of_heads, drawn, best = _chosen([by_gradient, by_relevance], top, sample, seed)
    wanted = list(dict.fromkeys([*of_heads, *best, *drawn]))
    exact: dict[Part, float] = {}
    if wanted:
        rows = [[_replacement(place, i, pair)] for *place, i in wanted]
        changes = Rerun(lm, ids, (), edits).measured(rows, function) - baseline
        exact = dict(zip(wanted, (-changes if pair is None else changes).tolist(), strict=True))
    listed = sorted(wanted, key=lambda one: -abs(exact[one]))[:top]
    sets = {
        "all heads": of_heads,
        "memories of the largest estimates": best,
        "other memories, drawn at random": drawn,
    }
    agreements = [
        agreement(words, name, [_of(effects, one) for one in parts], [exact[one] for one in parts])
        for words, parts in sets.items()
        for name, effects in (("gradient", by_gradient), ("relevance", by_relevance))
        if parts and effects
    ]
    has_memories = any(point == "coefficients" for point, _ in by_gradient)
    by_head = {place: torch.zeros_like(values) for place, values in by_gradient.items() if place[0] == "z"}
    for point, layer, i in of_heads:
        by_head[point, layer][i] = exact[point, layer, i]
    return EstimatedEffects(
        metric=label,
        baseline=baseline,
        to="zero" if pair is None else "the clean run",
        heads=_grid(lm, by_gradient, "z"),
        memories=_grid(lm, by_gradient, "coefficients") if has_memories else None,
        head_relevance=_grid(lm, by_relevance, "z") if by_relevance else None,
        memory_relevance=_grid(lm, by_relevance, "coefficients") if by_relevance and has_memories else None,
        labels=tuple(_name(lm, one) for one in listed),
        estimated=tuple(_of(by_gradient, one) for one in listed),
        relevance=tuple(_of(by_relevance, one) for one in listed) if by_relevance else (),
        exact=tuple(exact[one] for one in listed),
        agreements=tuple(agreements),
        unmeasured=_unmeasured(lm, by_gradient, len(best), drawn, exact),
        exact_heads=_grid(lm, by_head, "z") if of_heads else None,
        without_relevance=without,
        provenance=lm.provenance(
            seed=seed, notes={"method": "attribution patching (approximation), exact for the rows shown"}
        ),
    )


def _by_relevance(
    lm: Decoder,
    ids: Int[Tensor, "1 pos"],
    places: Sequence[Place],
    function: MetricFunction,
    pair: PromptPair | None,
    edits: Edits,
) -> tuple[_Effects, str]:
    """Return the effects estimated by relevance; or no effects and the reason, if the model cannot be linearised."""
    if edits:
        return {}, "the linear rules are those of the model's own parts, and this run is edited"
    try:
        return _estimates(lm, relevance_slopes(lm, ids, places, function), pair), ""
    except (Unsupported, SumNotProved) as error:
        return {}, str(error)


def _chosen(
    estimates: Sequence[_Effects], top: int, sample: int, seed: int
) -> tuple[list[Part], list[Part], list[Part]]:
    """Return the heads and memories to replace in the model, to check their estimates.

    Returns:
        All heads; memories drawn at random from those that are not in the next list; and the memories with the largest
        estimates. All three lists are empty if `top` is 0.
    """
    if not top:
        return [], [], []
    heads = [(p, n, i) for (p, n), values in estimates[0].items() if p == "z" for i in range(len(values))]
    of_memories = [{place: v for place, v in one.items() if place[0] == "coefficients"} for one in estimates]
    best = list(dict.fromkeys(part for one in of_memories for part in _strongest(one, top)))
    return heads, _drawn(of_memories[0], sample, seed, set(best)), best


def _unmeasured(
    lm: Decoder, effects: _Effects, measured: int, drawn: Sequence[Part], exact: Mapping[Part, float]
) -> Unmeasured | None:
    if not drawn:
        return None
    number = sum(len(values) for (point, _), values in effects.items() if point == "coefficients") - measured
    largest = max(drawn, key=lambda one: abs(exact[one]))
    return Unmeasured(number, len(drawn), abs(exact[largest]), _name(lm, largest), share_above(len(drawn)))


def _of(effects: _Effects, part: Part) -> float:
    point, layer, i = part
    return float(effects[point, layer][i]) if (point, layer) in effects else float("nan")


def _name(lm: Decoder, part: Part) -> str:
    point, layer, i = part
    return head_name(layer, i) if point == "z" else lm.memory_name(layer, i)


def _drawn(effects: _Effects, sample: int, seed: int, without: set[Part]) -> list[Part]:
    """Draw memories at random, all equally likely, from those that are not in `without`."""
    sizes = torch.tensor([0, *(len(values) for values in effects.values())]).cumsum(0)
    order = torch.randperm(int(sizes[-1]), generator=torch.Generator().manual_seed(seed))[: sample + len(without)]
    of = torch.searchsorted(sizes, order, right=True) - 1
    places = list(effects)
    parts = [(*places[n], i) for n, i in zip(of.tolist(), (order - sizes[of]).tolist(), strict=True)]
    return sorted([part for part in parts if part not in without][:sample])


def _with_graph(
    lm: Decoder, ids: Tensor, places: Sequence[Place], edits: Edits
) -> tuple[dict[Place, Tensor], Float[Tensor, "1 d_vocab"]]:
    """Run the prompt with an autograd graph that begins at the first block's input.

    Returns:
        The activations at `places`, and the logits after the last token.
    """
    own: dict[Place, Tensor] = {}
    with torch.enable_grad(), ExitStack() as stack:
        stack.enter_context(memory_guard(f"a forward and backward pass of {ids.shape[1]} tokens"))
        current = stack.enter_context(attach_hooks(lm, {}, edits))
        stack.enter_context(on_the_graph(lm, places, own, current))
        logits = lm.hf(ids, **cache_argument(lm), **last_logits(lm, ids.shape[1]), **current.arguments).logits[:, -1]
    return {place: own[place] for place in places}, logits


def _gradients(value: Float[Tensor, ""], activations: Mapping[Place, Tensor]) -> dict[Place, tuple[Tensor, Tensor]]:
    """Return each activation, as (pos, width), with the derivative of `value` with respect to it."""
    gradients = torch.autograd.grad(value, list(activations.values()), allow_unused=True)
    found: dict[Place, tuple[Tensor, Tensor]] = {}
    for (place, a), gradient in zip(activations.items(), gradients, strict=True):
        a = a.detach().reshape(-1, a.shape[-1])
        found[place] = a, torch.zeros_like(a) if gradient is None else gradient.view(a.shape)
    return found


def _estimates(lm: Decoder, slopes: Mapping[Place, tuple[Tensor, Tensor]], pair: PromptPair | None) -> _Effects:
    """Return the estimated effects of the heads or memories of each layer."""
    found: _Effects = {}
    for (point, layer), (a, slope) in slopes.items():
        a, slope = a.to(lm.device), slope.to(lm.device)
        if pair is None:
            product = a * slope
        else:
            from_, into = pair.columns()
            product = (pair.clean.activation(point, layer).flatten(1)[from_] - a[into]) * slope[into]
        total = product.double().sum(dim=0)
        found[point, layer] = (total.view(n_heads_of(lm, layer), -1).sum(dim=-1) if point == "z" else total).cpu()
    return found


def _replacement(place: Sequence[Any], i: int, pair: PromptPair | None) -> Replacement:
    """Return the replacement of a head or memory: zero, or its activation in the clean run."""
    point, layer = place
    if pair is None:
        return Source().replacement((point, layer, i))
    return taken_from(pair.clean, point, layer, pair.positions, i)


def _strongest(effects: dict[tuple[str, int], Tensor], top: int) -> list[tuple[str, int, int]]:
    """Return (capture point, layer, index) of the `top` largest estimates."""
    best: list[tuple[float, str, int, int]] = []
    for (point, layer), values in effects.items():
        indices = values.abs().topk(min(top, len(values))).indices.tolist()
        best += [(abs(float(values[i])), point, layer, i) for i in indices]
    return [(point, layer, i) for _, point, layer, i in sorted(best, key=lambda row: -row[0])[:top]]


def _grid(lm: Decoder, effects: dict[tuple[str, int], Tensor], point: str) -> Float[Tensor, "layer writer"]:
    """Return the effects with one row for each layer; NaN where a layer has fewer heads or memories than others."""
    found = {layer: values for (p, layer), values in effects.items() if p == point}
    return by_layer(lm.n_layers, found) if found else torch.full((lm.n_layers, 0), torch.nan, dtype=torch.float64)
