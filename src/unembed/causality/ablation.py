"""Ablation: the prediction when heads, memories, components or layers are removed.

An ablated activation is set to zero, to its mean over a corpus, or to its values in other prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.causality.ablation_targets import Components, Heads, Layers, Memories, Target, grid_of, groups_of
from unembed.causality.corpus_means import corpus_means
from unembed.causality.metrics import Metric, MetricFunction, bound
from unembed.causality.replaced_pass import Replacement
from unembed.causality.rerun import Rerun, measured_together
from unembed.corpus import CorpusSource, open_corpus
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.names import AblatedTo
from unembed.results import Displayed, Provenance, Table
from unembed.stream.interventions import Edits
from unembed.stream.run import Tokens, run
from unembed.sweeps.reducers.reducer import Need
from unembed.validation import as_int, positive_int


@dataclass(frozen=True, eq=False, repr=False)
class Ablation(Displayed):
    """The metric after each ablation.

    Attributes:
        values: the metric: (layer, head) for heads="all", (layer, memory) for memories="all", else one number for each
            ablation in the order of `labels`.
        labels: what was ablated, such as "L5H3" or "L5M278".
        baseline: the metric of the unchanged run.
        to: what replaced the activations, in words.
        spread: with activations of several other prompts, the standard deviation of the metric over them; else None.
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
        """Baseline minus value: the total effect of what was ablated, positive where it supports the metric."""
        return self.baseline - self.values

    def to_table(self) -> Table:
        """One row for each ablation, the largest effect first."""
        effects = self.effects.flatten()
        order = effects.abs().argsort(descending=True).tolist()
        columns: dict[str, list[Any]] = {
            "ablated": [self.labels[i] for i in order],
            "metric": [float(self.values.flatten()[i]) for i in order],
            "effect": [float(effects[i]) for i in order],
        }
        if self.spread is not None:
            columns["spread"] = [float(self.spread.flatten()[i]) for i in order]
        title = f"Ablation to {self.to}: {self.metric}, baseline {self.baseline:+.4g}"
        return Table(title, columns, self.provenance)


def ablate(
    lm: Decoder,
    prompt: Tokens,
    heads: Heads | None = None,
    memories: Memories | None = None,
    components: Components | None = None,
    to: AblatedTo | Sequence[str] = "zero",
    metric: Metric | MetricFunction | None = None,
    *,
    layers: Layers | None = None,
    positions: Sequence[int] | None = None,
    corpus: CorpusSource = None,
    mean_tokens: int = 20_000,
    by_position: bool = False,
    edits: Edits = (),
    batch: int | None = None,
) -> Ablation:
    """Ablate activations one at a time and measure the prediction after the last token.

    Args:
        heads: pairs (layer, head), or "all"; "all" is the default where nothing is chosen.
        memories: pairs (layer, index), groups of such pairs (each ablated together), groups by name, or "all".
        components: ("attn_out" or "mlp_out", layer), or "all".
        to: "zero"; "mean", over a corpus; or prompts, whose activations replace the prompt's (the metric is averaged).
        metric: of the logits after the last token; the two most probable tokens' logit difference by default.
        layers: whole layers (what attention and FFN add), or "all".
        positions: where to ablate; every position if not given.
        corpus: for "mean", what `unembed.open_corpus` takes; the shipped text by default.
        mean_tokens: tokens of the corpus that the mean is taken over.
        by_position: for "mean", the mean of each position separately.
        edits: changes that hold in all runs.
        batch: rows in memory at once.

    Raises:
        OutOfRange: no such layer, head or memory.
        InvalidInput: nothing to ablate, a position outside the prompt, or other prompts shorter than this one.
        PointMissing: the model has no such activation.

    Memory: the run's activations, and one batch of rows.
    """
    chosen = (heads, memories, components, layers)
    (found,) = ablate_each(
        lm, [prompt], [metric], chosen, to, positions, corpus, mean_tokens, by_position, edits, batch
    )
    return found


Chosen = tuple[Heads | None, Memories | None, Components | None, Layers | None]
"""What is ablated, as `ablation_targets.groups_of` takes it."""


@torch.no_grad()
def ablate_each(
    lm: Decoder,
    prompts: Sequence[Tokens],
    metrics: Sequence[Metric | MetricFunction | None],
    chosen: Chosen,
    to: str | Sequence[str],
    positions: Sequence[int] | None,
    corpus: CorpusSource,
    mean_tokens: int,
    by_position: bool,
    edits: Edits,
    batch: int | None,
) -> list[Ablation]:
    """The ablations of each of several prompts, with rows of all of them in one batch; arguments as in `ablate`."""
    groups = groups_of(lm, *chosen)
    reruns = [Rerun(lm, prompt, (), edits) for prompt in prompts]
    measures = [bound(lm, metric, rerun.reference) for metric, rerun in zip(metrics, reruns, strict=True)]
    needs = sorted({(point, layer) for group in groups for point, layer, _ in group.targets})
    tokens = positive_int("mean_tokens", mean_tokens)
    longest = max(rerun.n_pos for rerun in reruns)
    sources, words = _sources(lm, to, needs, longest, corpus, tokens, by_position, edits)
    parts = []
    for rerun, (function, _) in zip(reruns, measures, strict=True):
        where = None if positions is None else torch.tensor([_position(p, rerun.n_pos) for p in positions])
        rows = [
            [source.replacement(target, where, rerun.n_pos) for target in group.targets]
            for source in sources
            for group in groups
        ]
        parts.append((rerun, rows, function))
    shape = grid_of(lm, *chosen, len(groups))
    found = []
    for (rerun, _, function), (_, label), values in zip(parts, measures, measured_together(parts, batch), strict=True):
        each = values.view(len(sources), len(groups))
        found.append(
            Ablation(
                label,
                each.mean(dim=0).view(shape),
                tuple(group.label for group in groups),
                float(function(rerun.reference[None])[0]),
                words,
                lm.provenance(notes={"ablated_to": words}),
                each.std(dim=0).view(shape) if len(each) > 1 else None,
            )
        )
    return found


def _position(position: int, n_pos: int) -> int:
    position = as_int("position", position)
    if not -n_pos <= position < n_pos:
        raise InvalidInput(f"position {position}", why=f"the prompt has {n_pos} tokens, from 0")
    return position % n_pos


@dataclass(frozen=True, eq=False)
class Source:
    """What replaces an activation: zero where there are no numbers."""

    numbers: dict[Need, Tensor] | None = None
    by_position: bool = False

    def replacement(self, target: Target, where: Tensor | None = None, n_pos: int | None = None) -> Replacement:
        """The replacement of a head, memory or component at some positions, or at all."""
        point, layer, index = target
        chosen = torch.tensor([index]) if point == "coefficients" and index is not None else index
        if self.numbers is None:
            return Replacement(point, layer, where, chosen, torch.tensor(0.0))
        value = self.numbers[point, layer]
        if self.by_position:
            value = value[:n_pos] if where is None else value[where.to(value.device)]
        if index is not None:
            value = value[..., index, :] if point == "z" else value[..., [index]]
        return Replacement(point, layer, where, chosen, value)


def _sources(
    lm: Decoder,
    to: Any,
    needs: Sequence[Need],
    n_pos: int,
    corpus: CorpusSource,
    n_tokens: int,
    by_position: bool,
    edits: Edits,
) -> tuple[list[Source], str]:
    if isinstance(to, str) and to == "zero":
        return [Source()], "zero"
    if isinstance(to, str) and to == "mean":
        text = open_corpus(corpus)
        means = corpus_means(lm, text, needs, n_tokens, by_position)
        if by_position:
            means = {need: up_to(mean, n_pos, text.name) for need, mean in means.items()}
        return [Source(means, by_position)], f"the mean over {text.name}" + (" by position" if by_position else "")
    if isinstance(to, str) or not isinstance(to, Sequence) or not to or not all(isinstance(p, str) for p in to):
        raise InvalidInput(f"ablation to {to!r:.60}", why='it is not "zero", "mean" or a list of prompts')
    sources = []
    points = tuple(sorted({point for point, _ in needs}))
    for prompt in to:
        other = run(lm, prompt, points, edits)
        if other.tokens.shape[1] < n_pos:
            raise InvalidInput(
                f"prompt {prompt!r:.60}", why=f"it has {other.tokens.shape[1]} tokens, fewer than the {n_pos} here"
            )
        sources.append(Source({(p, n): other.at(p, n)[0, :n_pos] for p, n in needs}, True))
    return sources, f"activations of {len(sources)} other prompts"


def up_to(mean: Float[Tensor, "pos ..."], n_pos: int, corpus: str) -> Float[Tensor, "n_pos ..."]:
    """The means of the first positions.

    Raises:
        InvalidInput: the corpus has no segment as long.
    """
    if len(mean) < n_pos:
        raise InvalidInput(
            f"a mean by position over {corpus}",
            why=f"its segments have {len(mean)} positions, the prompt has {n_pos}",
            instead='Open it with segmentation="windows", or take the mean of all positions',
        )
    return mean[:n_pos]
