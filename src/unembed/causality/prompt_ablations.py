"""Ablation in several prompts: the mean effect of each part, and its spread.

Prompts share batches. They may differ in length: the batches are padded, and each prompt gives the numbers that it
gives alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.causality.ablation import Ablation, ablate_each
from unembed.causality.ablation_targets import Components, Heads, Layers, Memories
from unembed.causality.metrics import Metric, MetricFunction
from unembed.corpus import CorpusSource
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import AblatedTo
from unembed.results import Displayed, Table
from unembed.stream.interventions import Edits
from unembed.stream.run import Tokens, unpadded


@dataclass(frozen=True, eq=False, repr=False)
class PromptAblations(Displayed):
    """The same ablations in several prompts, in the order of the prompts."""

    each: tuple[Ablation, ...]

    @property
    def all_effects(self) -> Float[Tensor, "prompt ..."]:
        """The effects in every prompt."""
        return torch.stack([one.effects for one in self.each])

    @property
    def effects(self) -> Float[Tensor, "..."]:
        """The mean effect: by how much the metric falls."""
        return self.all_effects.mean(dim=0)

    @property
    def spread(self) -> Float[Tensor, "..."]:
        """The standard deviation over prompts; NaN with one prompt."""
        every = self.all_effects
        return every.std(dim=0) if len(every) > 1 else torch.full_like(every[0], float("nan"))

    def to_table(self) -> Table:
        """One row for each ablation, the largest mean effect first."""
        first, effects, spread = self.each[0], self.effects.flatten(), self.spread.flatten()
        order = effects.abs().argsort(descending=True).tolist()
        columns: dict[str, list[object]] = {
            "ablated": [first.labels[i] for i in order],
            "effect": [float(effects[i]) for i in order],
        }
        if len(self.each) > 1:
            columns["spread"] = [float(spread[i]) for i in order]
        title = f"Ablation to {first.to}: mean effect over {len(self.each)} prompts"
        return Table(title, columns, first.provenance)


def ablate_prompts(
    lm: Decoder,
    prompts: Sequence[Tokens] | Tensor,
    heads: Heads | None = None,
    memories: Memories | None = None,
    components: Components | None = None,
    to: AblatedTo | Sequence[str] = "zero",
    metric: Metric | MetricFunction | Sequence[Metric | MetricFunction | None] | None = None,
    *,
    layers: Layers | None = None,
    attention_mask: Tensor | None = None,
    positions: Sequence[int] | None = None,
    corpus: CorpusSource = None,
    mean_tokens: int = 20_000,
    by_position: bool = False,
    edits: Edits = (),
    batch: int | None = None,
) -> PromptAblations:
    """`ablate` in each of several prompts, in padded batches.

    The other arguments are those of `ablate`; positions count from each prompt's first real token.

    Args:
        prompts: texts, tokens of each, or ids (prompt, pos) with a mask.
        metric: one for all prompts, or one for each.
        attention_mask: of the ids, 1 at real tokens; padding may be on either side.
        batch: rows in memory at once, of all prompts together.

    Raises:
        InvalidInput: needs one metric, or one for each prompt; or a prompt that `ablate` refuses.
        OutOfRange: no such layer, head or memory.
        PointMissing: the model has no such activation.

    Memory: the stream of every prompt at every layer, and one batch of rows.

    In float64 the numbers are those of `ablate` to 1e-9 (1e-6 where the model's norms compute in float32); in half
    precision they differ by rounding, up to 2e-2 of the largest logit in bfloat16 and 2e-3 in float16.
    """
    rows = unpadded(lm, prompts, attention_mask)
    metrics = list(metric) if isinstance(metric, Sequence) else [metric] * len(rows)
    if len(metrics) != len(rows):
        raise InvalidInput(
            f"{len(metrics)} metrics", why=f"there are {len(rows)} prompts", instead="Give one, or one for each prompt"
        )
    chosen = (heads, memories, components, layers)
    found = ablate_each(lm, rows, metrics, chosen, to, positions, corpus, mean_tokens, by_position, edits, batch)
    return PromptAblations(tuple(found))
