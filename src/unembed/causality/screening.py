"""Attribution patching: the effect of ablating every head and memory at once, estimated from one backward pass.

A first-order estimate, -a * dm/da for an activation a set to zero; it is a screen, never shown as exact. The strongest
are ablated for real, and the rank agreement of the two is part of the result.

Source: Nanda 2023, "Attribution patching"; Syed et al. 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor, nn

from unembed.causality.ablation import ablate
from unembed.causality.metrics import Metric, MetricFunction, bound
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.results import Provenance, Table
from unembed.results.display import Displayed
from unembed.stream.hooks import attach_hooks, memory_guard
from unembed.stream.interventions import Edit
from unembed.stream.run import Tokens, prepare, run
from unembed.validation import positive_int


@dataclass(frozen=True, eq=False, repr=False)
class Screening(Displayed):
    """Estimated effects of ablating to zero, at all positions, and exact ones of the strongest.

    Attributes:
        heads: estimated effect of each head.
        memories: estimated effect of each memory; None where the model has none.
        labels: the strongest writers by estimate.
        estimated: their estimated effects.
        exact: their effects by ablation.
        rank_agreement: Spearman's rank correlation of the two.
    """

    metric: str
    baseline: float
    heads: Float[Tensor, "layer head"]
    memories: Float[Tensor, "layer d_mlp"] | None
    labels: tuple[str, ...]
    estimated: tuple[float, ...]
    exact: tuple[float, ...]
    rank_agreement: float
    provenance: Provenance

    def to_table(self) -> Table:
        """The strongest writers by estimate, with their exact effects."""
        columns = {
            "writer": list(self.labels),
            "estimated_effect": list(self.estimated),
            "exact_effect": list(self.exact),
        }
        title = (
            f"Attribution patching (an approximation): {self.metric}, baseline {self.baseline:+.4g}; "
            f"rank agreement with exact ablation {self.rank_agreement:.2f}"
        )
        return Table(title, columns, self.provenance)


def screen(
    lm: Decoder,
    prompt: Tokens,
    metric: Metric | MetricFunction | None = None,
    *,
    top: int = 20,
    edits: Sequence[Edit] = (),
) -> Screening:
    """Estimate the effect of zeroing every head and memory, and ablate the `top` strongest for real.

    Args:
        lm: the model.
        prompt: one prompt.
        metric: of the logits after the last token; the two likeliest tokens' logit difference by default.
        top: how many are ablated for real.
        edits: changes that hold in all runs.

    Memory: activations of one forward and backward pass.
    """
    top = positive_int("top", top)
    ids, mask = prepare(lm, prompt)
    if ids.shape[0] != 1 or not bool(mask.all()):
        raise InvalidInput(f"{ids.shape[0]} prompts", why="one prompt is screened at a time")
    reference = run(lm, ids, edits=edits).logits[0, -1]
    function, label = bound(lm, metric, reference)
    activations, value = _with_graph(lm, ids, edits, function)
    gradients = torch.autograd.grad(value, list(activations.values()), allow_unused=True)
    effects: dict[tuple[str, int], Tensor] = {}
    for (key, a), gradient in zip(activations.items(), gradients, strict=True):
        product = torch.zeros_like(a) if gradient is None else a.detach() * gradient
        product = product.double().view(ids.shape[1], -1)
        if key[0] == "z":
            product = product.view(ids.shape[1], lm.n_heads, lm.d_head).sum(dim=-1)
        effects[key] = product.sum(dim=0).cpu()
    heads = torch.stack([effects["z", n] for n in range(lm.n_layers)])
    has = [("coefficients", n) in effects for n in range(lm.n_layers)]
    memories = torch.stack([effects["coefficients", n] for n in range(lm.n_layers)]) if all(has) else None
    ranked = [(float(e), "z", n, h) for n, row in enumerate(heads) for h, e in enumerate(row)]
    if memories is not None:
        best = memories.abs().flatten().topk(min(top, memories.numel())).indices.tolist()
        ranked += [(float(memories.flatten()[i]), "coefficients", *divmod(i, memories.shape[1])) for i in best]
    ranked = sorted(ranked, key=lambda row: -abs(row[0]))[:top]
    chosen_heads = [(n, i) for _, point, n, i in ranked if point == "z"]
    chosen_memories = [(n, i) for _, point, n, i in ranked if point == "coefficients"]
    exact: dict[tuple[str, int, int], float] = {}
    for point, pairs in (("z", chosen_heads), ("coefficients", chosen_memories)):
        if pairs:
            heads_only, memories_only = (pairs, None) if point == "z" else (None, pairs)
            done = ablate(lm, ids, heads_only, memories_only, metric=function, edits=edits)
            exact |= {(point, *pair): float(e) for pair, e in zip(pairs, done.effects, strict=True)}
    estimated = [row[0] for row in ranked]
    measured = [exact[point, n, i] for _, point, n, i in ranked]
    correlation: Any = spearmanr(estimated, measured) if len(ranked) > 1 else None
    agreement = float("nan") if correlation is None else float(correlation.statistic)
    names = tuple(f"L{n}{'H' if point == 'z' else 'M'}{i}" for _, point, n, i in ranked)
    return Screening(
        label,
        float(value.detach()),
        heads,
        memories,
        names,
        tuple(estimated),
        tuple(measured),
        agreement,
        lm.provenance(notes={"method": "attribution patching (approximation), exact for the rows shown"}),
    )


def _with_graph(
    lm: Decoder, ids: Tensor, edits: Sequence[Edit], function: MetricFunction
) -> tuple[dict[tuple[str, int], Tensor], Tensor]:
    """What the out- and down-projections are given, with the graph behind the metric."""
    found: dict[tuple[str, int], Tensor] = {}

    def keep(key: tuple[str, int]) -> Any:
        def hook(_m: nn.Module, args: tuple[Any, ...]) -> None:
            found[key] = args[0]

        return hook

    def begin(_m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args and isinstance(args[0], Tensor):
            return (args[0].detach().requires_grad_(), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": kwargs["hidden_states"].detach().requires_grad_()}

    with torch.enable_grad(), ExitStack() as stack:
        stack.enter_context(memory_guard(f"a forward and backward pass of {ids.shape[1]} tokens"))
        current = stack.enter_context(attach_hooks(lm, {}, edits))
        first = lm.structure.blocks[0].module
        stack.callback(first.register_forward_pre_hook(begin, with_kwargs=True, prepend=True).remove)
        for n, block in enumerate(lm.structure.blocks):
            stack.callback(block.attention.out_proj.register_forward_pre_hook(keep(("z", n))).remove)
            if block.feed_forward is not None and block.feed_forward.down_proj is not None:
                down = block.feed_forward.down_proj
                stack.callback(down.register_forward_pre_hook(keep(("coefficients", n))).remove)
        logits = lm.hf(ids, use_cache=False, **current.arguments).logits[:, -1]
        return found, function(logits)[0]
