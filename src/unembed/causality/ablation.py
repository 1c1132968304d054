"""Ablate heads, memories, components or layers, and measure the change in prediction, in prompts or over a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, cast, overload

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.causality.ablation_sources import sources_of
from unembed.causality.ablation_targets import Components, Heads, Layers, Memories, grid_of, groups_of
from unembed.causality.corpus_ablation import CorpusAblation, ablate_corpus
from unembed.causality.effect_order import ranked
from unembed.causality.estimated_effects import EstimatedEffects, attribution_patching
from unembed.causality.metrics import Metric, MetricFunction, bound, metric_of_each
from unembed.causality.rerun import Rerun, measured_together
from unembed.corpus import Corpus, CorpusSource
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import AblatedTo
from unembed.results import Displayed, Provenance, Table, format_signed
from unembed.stream.interventions import Edits
from unembed.stream.run import OnePrompt, SeveralPrompts, are_several, unpadded
from unembed.validation import as_int, one_of, positive_int


@dataclass(frozen=True, eq=False, repr=False)
class Ablation(Displayed):
    """The metric after each ablation in one prompt.

    Attributes:
        values: the metric after each ablation: (layer, head) for heads="all", (layer, memory) for memories="all", else
            one axis in the order of `labels`.
        labels: what was ablated, such as "L5H3" or "L5M278".
        baseline: the metric of the unchanged run.
        to: what replaced the activations, as text.
        spread: the standard deviation of the metric over several other prompts, if their activations were used as
            replacements; else None.
    """

    metric: str
    values: Float[Tensor, "..."]
    labels: tuple[str, ...]
    baseline: float
    to: str
    provenance: Provenance
    spread: Float[Tensor, "..."] | None = None

    @property
    def effects(self) -> Float[Tensor, "..."]:
        """Baseline minus value: how much the metric falls, positive if the ablated component raises the metric."""
        return self.baseline - self.values

    def to_table(self) -> Table:
        """Return a table with one row for each ablation, the largest effect first."""
        columns = {"ablated": self.labels, "metric": self.values, "effect": self.effects, "spread": self.spread}
        title = f"Ablation to {self.to}: {self.metric}, baseline {format_signed(self.baseline)}"
        return ranked(title, columns, self.effects, self.provenance)


@dataclass(frozen=True, eq=False, repr=False)
class PromptAblations(Displayed):
    """The results of the same ablations in several prompts, in the order of the prompts."""

    each: tuple[Ablation, ...]

    @property
    def all_effects(self) -> Float[Tensor, "prompt ..."]:
        """The effects in each prompt."""
        return torch.stack([one.effects for one in self.each])

    @property
    def effects(self) -> Float[Tensor, "..."]:
        """The mean over prompts of how much the metric falls."""
        return self.all_effects.mean(dim=0)

    @property
    def spread(self) -> Float[Tensor, "..."]:
        """The standard deviation of the effects over prompts; NaN if there is only one prompt."""
        every = self.all_effects
        return every.std(dim=0) if len(every) > 1 else torch.full_like(every[0], float("nan"))

    def to_table(self) -> Table:
        """Return a table with one row for each ablation, the largest mean effect first."""
        first, spread = self.each[0], self.spread if len(self.each) > 1 else None
        columns = {"ablated": first.labels, "effect": self.effects, "spread": spread}
        title = f"Ablation to {first.to}: mean effect over {len(self.each)} prompts"
        return ranked(title, columns, self.effects, first.provenance)


class _What(TypedDict, total=False):
    memories: Memories | None
    components: Components | None
    layers: Layers | None
    to: AblatedTo | Sequence[str]
    mean_tokens: int
    by_position: bool
    edits: Edits


class _InPrompts(_What, total=False):
    positions: Sequence[int] | None
    corpus: CorpusSource
    batch: int | None


@overload
def ablate(
    lm: Decoder,
    prompt: OnePrompt,
    heads: Heads | None = None,
    *,
    metric: Metric | MetricFunction | None = None,
    how: Literal["exact"] = "exact",
    **options: Unpack[_InPrompts],
) -> Ablation: ...
@overload
def ablate(
    lm: Decoder,
    prompt: OnePrompt,
    *,
    metric: Metric | MetricFunction | None = None,
    how: Literal["attribution_patching"],
    top: int = 20,
    edits: Edits = (),
) -> EstimatedEffects: ...
@overload
def ablate(
    lm: Decoder,
    prompt: SeveralPrompts,
    heads: Heads | None = None,
    *,
    metric: Metric | MetricFunction | Sequence[Metric | MetricFunction | None] | None = None,
    attention_mask: Tensor | None = None,
    **options: Unpack[_InPrompts],
) -> PromptAblations: ...
@overload
def ablate(
    lm: Decoder,
    prompt: Corpus,
    heads: Heads | None = None,
    *,
    n_tokens: int = 4_000,
    tokens_per_batch: int = 1024,
    seed: int = 0,
    **options: Unpack[_What],
) -> CorpusAblation: ...
@torch.no_grad()
def ablate(
    lm: Decoder,
    prompt: OnePrompt | SeveralPrompts | Corpus,
    heads: Heads | None = None,
    memories: Memories | None = None,
    components: Components | None = None,
    to: AblatedTo | Sequence[str] = "zero",
    metric: Metric | MetricFunction | Sequence[Metric | MetricFunction | None] | None = None,
    *,
    layers: Layers | None = None,
    how: Literal["exact", "attribution_patching"] = "exact",
    attention_mask: Tensor | None = None,
    positions: Sequence[int] | None = None,
    corpus: CorpusSource = None,
    mean_tokens: int = 20_000,
    by_position: bool = False,
    n_tokens: int = 4_000,
    tokens_per_batch: int = 1024,
    seed: int = 0,
    top: int = 20,
    edits: Edits = (),
    batch: int | None = None,
) -> Ablation | PromptAblations | CorpusAblation | EstimatedEffects:
    """Ablate activations one at a time and measure the prediction after the last token.

    Args:
        prompt: a prompt; a list of prompts of any lengths; or a corpus from `unembed.open_corpus`. Over a corpus, the
            loss of every predicted token is measured.
        heads: pairs (layer, head), or "all", which is the default if no memories, components or layers are given.
        memories: pairs (layer, index), lists of such pairs (each list is ablated together), a dict of names and lists,
            or "all".
        components: ("attn_out" or "mlp_out", layer), or "all".
        to: what replaces the activations: "zero"; "mean", their mean over a corpus; a list of prompts, whose
            activations are used one prompt after another (the result is the mean of the metric over these prompts); or,
            over a corpus only, "resample": the activations of other segments at the same position.
        metric: the metric of the logits after the last token; by default, the logit difference of the two most probable
            tokens. For several prompts, one metric or a list of one for each.
        layers: whole layers (attention and FFN together), or "all".
        how: "exact", or "attribution_patching": the effect of setting each head and memory to zero is estimated from
            one backward pass, and then the `top` memories with the largest estimates, and all heads, are ablated to
            check the estimates (see `attribution_patching`).
        attention_mask: if the prompts are token ids (prompt, pos), 1 at real tokens; padding may be on either side.
        positions: the positions to ablate, counted from a prompt's first real token; by default, all.
        corpus: for "mean" in prompts, a corpus as `unembed.open_corpus` accepts it; by default, the shipped text.
        mean_tokens: number of tokens of the corpus to take the mean over.
        by_position: for "mean", whether to take the mean of each position separately.
        n_tokens: number of tokens of a corpus to run.
        tokens_per_batch: number of tokens in a batch of a corpus, padding included.
        seed: over a corpus, the seed of resampling and of the intervals.
        top: with attribution patching, the number of estimates to check by ablation.
        edits: changes to make in all forward passes.
        batch: number of rows (copies of a prompt, each with its own ablation) that run at once.

    Returns:
        An `Ablation`; for several prompts `PromptAblations`, for a corpus a `CorpusAblation`; with attribution patching
        the `EstimatedEffects`.

    Raises:
        OutOfRange: the model does not have a layer, head or memory that is named.
        InvalidInput: there is nothing to ablate, a position is outside the prompt, the prompts in `to` are shorter than
            this one, or nothing is predicted in the corpus.
        Unsupported: the corpus has only one segment, so it cannot be resampled.
        PointMissing: the model does not have an activation that is to be ablated.

    Memory: the stream of every prompt at every layer, and one batch of copies; for a corpus the stream of one batch at
    every layer, its logits, and one number for each ablation and predicted token.

    Several prompts run in padded batches. In float64 this changes a prompt's results by less than 1e-9 (1e-6 if the
    model's norms compute in float32). In half precision, rounding changes them by up to 2e-2 of the largest logit in
    bfloat16 and 2e-3 in float16.
    """
    one_of("how", how, ("exact", "attribution_patching"))
    chosen = (heads, memories, components, layers)
    if how != "exact" and not isinstance(prompt, Corpus):
        if to != "zero" or any(one is not None for one in chosen):
            raise InvalidInput(
                "a choice of components with attribution patching",
                why="attribution patching always estimates the effect of setting each head and memory to zero",
            )
        return attribution_patching(lm, cast(Any, prompt), cast(Any, metric), top=top, edits=edits)
    groups = groups_of(lm, *chosen)
    if isinstance(prompt, Corpus):
        if metric is not None or positions is not None or how != "exact":
            what = "metric" if metric is not None else "positions" if positions is not None else how
            raise InvalidInput(f"{what} over a corpus", why="over a corpus the loss of every token is measured exactly")
        return ablate_corpus(lm, prompt, groups, to, n_tokens, mean_tokens, by_position, seed, edits, tokens_per_batch)
    is_list = attention_mask is not None or are_several(prompt)
    prompts = unpadded(lm, cast(Any, prompt), attention_mask) if is_list else [prompt]
    metrics = metric_of_each(metric, len(prompts), "prompts")
    reruns = [Rerun(lm, cast(OnePrompt, one), (), edits) for one in prompts]
    bounds = [bound(lm, one, rerun.reference) for one, rerun in zip(metrics, reruns, strict=True)]
    needs = sorted({(point, layer) for group in groups for point, layer, _ in group.targets})
    longest = max(rerun.n_pos for rerun in reruns)
    mean_tokens = positive_int("mean_tokens", mean_tokens)
    sources, words = sources_of(lm, to, needs, longest, corpus, mean_tokens, by_position, edits)
    parts = []
    for rerun, (function, _) in zip(reruns, bounds, strict=True):
        where = None if positions is None else torch.tensor([_position(p, rerun.n_pos) for p in positions])
        rows = [
            [source.replacement(target, where, rerun.n_pos) for target in group.targets]
            for source in sources
            for group in groups
        ]
        parts.append((rerun, rows, function))
    shape, labels = grid_of(lm, *chosen, len(groups)), tuple(group.label for group in groups)
    found = []
    for (rerun, _, function), (_, name), values in zip(parts, bounds, measured_together(parts, batch), strict=True):
        each = values.view(len(sources), len(groups))
        found.append(
            Ablation(
                name,
                each.mean(dim=0).view(shape),
                labels,
                float(function(rerun.reference[None])[0]),
                words,
                lm.provenance(notes={"ablated_to": words}),
                each.std(dim=0).view(shape) if len(each) > 1 else None,
            )
        )
    return PromptAblations(tuple(found)) if is_list else found[0]


def _position(position: int, n_pos: int) -> int:
    position = as_int("position", position)
    if not -n_pos <= position < n_pos:
        raise InvalidInput(f"position {position}", why=f"the prompt has {n_pos} tokens, counted from 0")
    return position % n_pos
