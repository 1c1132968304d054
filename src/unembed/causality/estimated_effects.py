"""Attribution patching: estimate the effect of every head and memory at once from one backward pass.

The estimate is first-order: (new - a) * dm/da for an activation a that becomes `new`, which is zero or the activation
in another run. It is never shown as exact: every head, and the memories of the largest estimates, are also replaced for
real. How well estimates and exact effects agree is measured on all heads, and on memories drawn at random: among those
chosen by their estimates, the ones that the estimates miss are not.

Source: Nanda 2023, "Attribution patching"; Syed et al. 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.causality.metrics import Metric, MetricFunction, bound
from unembed.causality.prompt_pair import Alignment, PromptPair, prompt_pair, taken_from
from unembed.causality.replaced_pass import Place, Replacement
from unembed.causality.rerun import Rerun, last_logits, n_heads_of
from unembed.errors import InvalidInput, PointMissing
from unembed.models.decoder import Decoder
from unembed.names import head_name
from unembed.results import Displayed, Provenance, Table
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
        baseline: the metric of the unchanged run (of the corrupted one where there are two).
        heads: estimated effect of each head: by how much the metric falls when it is ablated to zero, or by how much it
            rises from the corrupted run when the head is taken from the clean one. NaN where a layer has no heads.
        memories: the same of each memory; NaN where a layer has none, None where the model has none.
        labels: the strongest writers, of all heads and the memories of the largest estimates, by exact effect.
        exact: their effects when they are replaced for real.
        rank_agreement: Spearman's rank correlation of estimated and exact effects over all heads; NaN where it is not
            defined.
        memory_agreement: the same over memories drawn at random.
        sampled: how many were drawn.
        exact_heads: exact effect of each head; None where none was replaced.
        to: what replaces the activations, in words.
    """

    metric: str
    baseline: float
    to: str
    heads: Float[Tensor, "layer head"]
    memories: Float[Tensor, "layer d_mlp"] | None
    labels: tuple[str, ...]
    estimated: tuple[float, ...]
    exact: tuple[float, ...]
    rank_agreement: float
    provenance: Provenance
    memory_agreement: float = float("nan")
    sampled: int = 0
    exact_heads: Float[Tensor, "layer head"] | None = None

    def to_table(self) -> Table:
        """Tabulate the strongest writers by exact effect, with their estimates."""
        columns = {
            "writer": list(self.labels),
            "estimated_effect": list(self.estimated),
            "exact_effect": list(self.exact),
        }
        agreements = [
            f"{self.rank_agreement:.2f} over all heads" if self.exact_heads is not None else "",
            f"{self.memory_agreement:.2f} over {self.sampled} memories drawn at random" if self.sampled else "",
        ]
        told = " and ".join(one for one in agreements if one)
        title = (
            f"Attribution patching to {self.to} (an approximation): {self.metric}, baseline {self.baseline:+.4g}"
            + (f"; rank agreement with exact effects {told}" if told else "")
        )
        return Table(title, columns, self.provenance)


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
    """Estimate the effect of replacing every head and memory, and replace the `top` strongest for real.

    Args:
        prompt: one prompt; the clean one where there are two.
        metric: the metric of the logits after the last token; by default as in `patch`, and without a second prompt
            the logit of the prediction minus that of the runner-up.
        corrupted: a second prompt, whose activations become those of the first; ablation to zero when None.
        alignment: pairs (position in clean, position in corrupted), or "auto"; needed where lengths differ.
        top: how many are listed, and memories replaced for real beside all heads; 0 leaves the estimates unchecked.
        sample: memories drawn at random, to measure how well estimates and exact effects agree.
        seed: of the draw.
        edits: changes that hold in all runs.

    Raises:
        InvalidInput: several prompts at once, prompts of unequal length, or a metric that does not differ.
        PointMissing: the model has no layers.

    Memory: activations of one forward and backward pass.
    """
    top = positive_int("top", top, least=0)
    if not lm.n_layers:
        raise PointMissing(f"{lm.name} has no heads or memories", why="it has no layers")
    places = [(p, n) for p in ("z", "coefficients") for n in range(lm.n_layers) if has_point(lm, p, n)]
    if not places:
        why = "no layer ends in a projection over heads, and no FFN adds memories by themselves"
        raise PointMissing(f"{lm.name} has no heads or memories", why=why, instead="Ablate whole layers")
    pair = None
    if corrupted is not None:
        points = list(dict.fromkeys(point for point, _ in places))
        pair = prompt_pair(lm, prompt, corrupted, points, metric, alignment, edits=edits)
    ids, mask = prepare(lm, prompt if pair is None else pair.target.ids)
    if ids.shape[0] != 1 or not bool(mask.all()):
        raise InvalidInput(f"{ids.shape[0]} prompts", why="effects are estimated for one prompt at a time")
    from scipy.stats import spearmanr  # 0.4 seconds: only where it is needed

    activations, logits = _with_graph(lm, ids, places, edits)
    function, label = bound(lm, metric, logits[0].detach()) if pair is None else (pair.function, pair.label)
    with torch.enable_grad():
        value = function(logits)[0]
    effects, baseline = _effects(lm, value, activations, pair), float(value.detach())
    of_heads = [(p, n, i) for (p, n), values in effects.items() if p == "z" for i in range(len(values))]
    of_memories = {place: values for place, values in effects.items() if place[0] == "coefficients"}
    drawn = _drawn(of_memories, sample if top else 0, seed)
    wanted: list[tuple[str, int, int]] = list(
        dict.fromkeys([*(of_heads if top else []), *_strongest(of_memories, top), *drawn])
    )
    exact: dict[tuple[str, int, int], float] = {}
    if wanted:
        rows = [[_replacement(place, i, pair)] for *place, i in wanted]
        changes = Rerun(lm, ids, (), edits).measured(rows, function) - baseline
        exact = dict(zip(wanted, (-changes if pair is None else changes).tolist(), strict=True))
    estimated = {one: float(effects[one[0], one[1]][one[2]]) for one in wanted}
    listed = sorted(wanted, key=lambda one: -abs(exact[one]))[:top]

    def agreement(parts: Sequence[tuple[str, int, int]]) -> float:
        pairs = [(estimated[one], exact[one]) for one in parts if one in exact]
        if min((len(set(column)) for column in zip(*pairs, strict=True)), default=0) < 2:
            return float("nan")
        first, second = zip(*pairs, strict=True)
        correlation: Any = spearmanr(first, second)
        return float(correlation.statistic)

    by_head = {place: torch.zeros_like(values) for place, values in effects.items() if place[0] == "z"}
    for (point, layer, i), effect in exact.items():
        if point == "z":
            by_head[point, layer][i] = effect
    return EstimatedEffects(
        label,
        baseline,
        "zero" if pair is None else "the clean run",
        _grid(lm, effects, "z"),
        _grid(lm, effects, "coefficients") if of_memories else None,
        tuple(head_name(n, i) if point == "z" else lm.memory_name(n, i) for point, n, i in listed),
        tuple(estimated[one] for one in listed),
        tuple(exact[one] for one in listed),
        agreement(of_heads),
        lm.provenance(notes={"method": "attribution patching (approximation), exact for the rows shown"}),
        agreement(drawn),
        len(drawn),
        _grid(lm, by_head, "z") if top and of_heads else None,
    )


def _drawn(effects: dict[Place, Float[Tensor, " memory"]], sample: int, seed: int) -> list[tuple[str, int, int]]:
    """Draw memories at random, each with equal chance."""
    sizes = torch.tensor([0, *(len(values) for values in effects.values())]).cumsum(0)
    total = int(sizes[-1])
    chosen = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:sample].sort().values
    of = torch.searchsorted(sizes, chosen, right=True) - 1
    places = list(effects)
    return [(*places[n], i) for n, i in zip(of.tolist(), (chosen - sizes[of]).tolist(), strict=True)]


def _with_graph(
    lm: Decoder, ids: Tensor, places: Sequence[Place], edits: Edits
) -> tuple[dict[Place, Tensor], Float[Tensor, "1 d_vocab"]]:
    """Return activations and last logits of one pass, whose graph starts at the input of the first block."""
    own: dict[Place, Tensor] = {}
    with torch.enable_grad(), ExitStack() as stack:
        stack.enter_context(memory_guard(f"a forward and backward pass of {ids.shape[1]} tokens"))
        current = stack.enter_context(attach_hooks(lm, {}, edits))
        stack.enter_context(on_the_graph(lm, places, own, current))
        logits = lm.hf(ids, **cache_argument(lm), **last_logits(lm, ids.shape[1]), **current.arguments).logits[:, -1]
    return {place: own[place] for place in places}, logits


def _effects(
    lm: Decoder, value: Float[Tensor, ""], activations: dict[Place, Tensor], pair: PromptPair | None
) -> dict[Place, Float[Tensor, " writer"]]:
    """Return, for each layer, the estimated effect of each head or memory on a number."""
    gradients = torch.autograd.grad(value, list(activations.values()), allow_unused=True)
    found: dict[Place, Tensor] = {}
    for ((point, layer), a), gradient in zip(activations.items(), gradients, strict=True):
        a = a.detach().reshape(-1, a.shape[-1])
        slope = torch.zeros_like(a) if gradient is None else gradient.view(a.shape)
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
    """Return what replaces a head or memory: zero, or its activation in the clean run."""
    point, layer = place
    index = i if point == "z" else torch.tensor([i])
    if pair is None:
        return Replacement(point, layer, None, index, torch.tensor(0.0))
    return taken_from(pair.clean, point, layer, pair.positions, i)


def _strongest(effects: dict[tuple[str, int], Tensor], top: int) -> list[tuple[str, int, int]]:
    """Return point, layer and index of the `top` largest estimates."""
    best: list[tuple[float, str, int, int]] = []
    for (point, layer), values in effects.items():
        indices = values.abs().topk(min(top, len(values))).indices.tolist()
        best += [(abs(float(values[i])), point, layer, i) for i in indices]
    return [(point, layer, i) for _, point, layer, i in sorted(best, key=lambda row: -row[0])[:top]]


def _grid(lm: Decoder, effects: dict[tuple[str, int], Tensor], point: str) -> Float[Tensor, "layer writer"]:
    """Arrange the estimates with one row for each layer; NaN where a layer has no or fewer parts."""
    of = {layer: values for (p, layer), values in effects.items() if p == point}
    width = max((len(values) for values in of.values()), default=0)
    grid = torch.full((lm.n_layers, width), float("nan"), dtype=torch.float64)
    for layer, values in of.items():
        grid[layer, : len(values)] = values
    return grid
