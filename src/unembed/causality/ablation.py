"""Ablation: what the prediction becomes when heads, memories or whole components are taken away.

An ablated activation is set to zero, to its mean over a corpus, or to what it is in other prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.causality.metrics import Metric, MetricFunction, bound
from unembed.causality.replacement import Replacement
from unembed.causality.rerun import Rerun
from unembed.corpus import open_corpus
from unembed.errors import InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.results import Provenance, Table
from unembed.results.display import Displayed
from unembed.stream.interventions import Edit
from unembed.stream.run import Tokens, run
from unembed.validation import positive_int

Component = tuple[str, int]
"""("attn_out" or "mlp_out", layer)."""
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False, repr=False)
class Ablation(Displayed):
    """The metric after each ablation.

    Attributes:
        values: the metric: (layer, head) for heads="all", (layer, memory) for memories="all", else one number for each
            ablation in the order of `labels`.
        labels: what was ablated, such as "L5H3" or "L5M278".
        baseline: the metric of the unchanged run.
        to: what took the place of the activations, in words.
    """

    metric: str
    values: Float[Tensor, "..."]
    labels: tuple[str, ...]
    baseline: float
    to: str
    provenance: Provenance

    @property
    def effects(self) -> Float[Tensor, "..."]:
        """Baseline minus value: the total effect of what was ablated, positive where it supports the metric."""
        return self.baseline - self.values

    def to_table(self) -> Table:
        """One row for each ablation, the largest effect first."""
        effects = self.effects.flatten()
        order = effects.abs().argsort(descending=True).tolist()
        columns = {
            "ablated": [self.labels[i] for i in order],
            "metric": [float(self.values.flatten()[i]) for i in order],
            "effect": [float(effects[i]) for i in order],
        }
        title = f"Ablation to {self.to}: {self.metric}, baseline {self.baseline:+.4g}"
        return Table(title, columns, self.provenance)


@torch.no_grad()
def ablate(
    lm: Decoder,
    prompt: Tokens,
    heads: Literal["all"] | Sequence[Pair] | None = None,
    memories: Literal["all"] | Sequence[Pair] | Sequence[Sequence[Pair]] | None = None,
    components: Literal["all"] | Sequence[Component] | None = None,
    to: Literal["zero", "mean"] | Sequence[str] = "zero",
    metric: Metric | MetricFunction | None = None,
    *,
    positions: Sequence[int] | None = None,
    corpus: Any = None,
    mean_tokens: int = 20_000,
    edits: Sequence[Edit] = (),
    batch: int | None = None,
) -> Ablation:
    """Take activations away one at a time and measure the prediction after the last token.

    Args:
        lm: the model.
        prompt: one prompt.
        heads: pairs (layer, head), or "all"; "all" too where nothing else is chosen.
        memories: pairs (layer, index), groups of such pairs (each group is ablated together), or "all".
        components: ("attn_out" or "mlp_out", layer), or "all".
        to: "zero"; "mean", over a corpus; or prompts, whose activations take the place (the metric is averaged).
        metric: of the logits after the last token; the two likeliest tokens' logit difference by default.
        positions: where to ablate; every position if not given.
        corpus: for "mean", what `unembed.open_corpus` takes; the shipped text by default.
        mean_tokens: tokens of the corpus that the mean is taken over.
        edits: changes that hold in all runs.
        batch: rows in memory at once.

    Raises:
        OutOfRange: no such head or memory.
        InvalidInput: nothing to ablate, or prompts shorter than this one.
        PointMissing: the model has no such activation.

    Memory: the run's activations, and one batch of rows.
    """
    if heads is None and memories is None and components is None:
        heads = "all"
    targets = _targets(lm, heads, memories, components)
    points = sorted({point for group in targets for point, _, _ in group})
    rerun = Rerun(lm, prompt, (), edits)
    function, label = bound(lm, metric, rerun.reference)
    where = None if positions is None else torch.tensor([_position(p, rerun.n_pos) for p in positions])
    sources, words = _sources(lm, to, points, rerun.n_pos, corpus, positive_int("mean_tokens", mean_tokens), edits)
    total: Tensor | None = None
    for source in sources:
        rows = [
            [_replacement(source, point, layer, index, where) for point, layer, index in group] for group in targets
        ]
        found = rerun.measured(rows, function, batch)
        total = found if total is None else total + found
    assert total is not None
    values = total / len(sources)
    if heads == "all" and memories is None and components is None:
        values = values.view(lm.n_layers, lm.n_heads)
    elif memories == "all" and heads is None and components is None:
        values = values.view(lm.n_layers, lm.d_mlp)
    return Ablation(
        label,
        values,
        tuple(_name(group) for group in targets),
        float(function(rerun.reference[None])[0]),
        words,
        lm.provenance(notes={"ablated_to": words}),
    )


Target = tuple[str, int, int | None]
"""Point, layer, and the head or memory; None for a whole component."""


def _targets(lm: Decoder, heads: Any, memories: Any, components: Any) -> list[list[Target]]:
    found: list[list[Target]] = []
    if heads is not None:
        pairs = [(n, h) for n in range(lm.n_layers) for h in range(lm.n_heads)] if heads == "all" else heads
        for layer, head in pairs:
            found.append([("z", lm.layer(layer), lm.head(head))])
    if memories is not None:
        groups: Any = [(n, i) for n in range(lm.n_layers) for i in range(lm.d_mlp)] if memories == "all" else memories
        for group in groups:
            pairs = [group] if isinstance(group[0], int) else group
            found.append([("coefficients", *lm.memory(layer, index)) for layer, index in pairs])
    if components is not None:
        if components == "all":
            components = [("attn_out", n) for n in range(lm.n_layers)]
            components += [("mlp_out", n) for n, b in enumerate(lm.structure.blocks) if b.feed_forward is not None]
        for point, layer in components:
            if point not in ("attn_out", "mlp_out"):
                raise InvalidInput(f"component {point!r}", why="it is not attn_out or mlp_out")
            found.append([(point, lm.layer(layer), None)])
    if not found:
        raise InvalidInput("an ablation of nothing", why="heads, memories and components are empty")
    return found


def _name(group: Sequence[Target]) -> str:
    def one(target: Target) -> str:
        point, layer, index = target
        return f"L{layer}{'H' if point == 'z' else 'M'}{index}" if index is not None else f"{point} {layer}"

    return " + ".join(map(one, group[:4])) + (f" + {len(group) - 4} more" if len(group) > 4 else "")


def _position(position: int, n_pos: int) -> int:
    if not -n_pos <= position < n_pos:
        raise InvalidInput(f"position {position}", why=f"the prompt has {n_pos} tokens, from 0")
    return position % n_pos


def _replacement(source: Any, point: str, layer: int, index: int | None, where: Tensor | None) -> Replacement:
    value = source(point, layer)
    if isinstance(value, Tensor) and value.dim() and index is not None:
        value = value[..., index, :] if point == "z" else value[..., index]
    if where is not None and value.dim() == (2 if point != "coefficients" else 1) and source.by_position:
        value = value[where.to(value.device)]
    chosen: Any = index if point != "coefficients" or index is None else torch.tensor([index])
    if point == "coefficients" and value.dim():
        value = value[..., None]
    return Replacement(point, layer, where, chosen, value)


@dataclass(frozen=True, eq=False)
class _Source:
    """What takes an activation's place."""

    numbers: dict[tuple[str, int], Tensor] | None
    by_position: bool

    def __call__(self, point: str, layer: int) -> Tensor:
        return torch.tensor(0.0) if self.numbers is None else self.numbers[point, layer]


def _sources(
    lm: Decoder, to: Any, points: Sequence[str], n_pos: int, corpus: Any, n_tokens: int, edits: Sequence[Edit]
) -> tuple[list[_Source], str]:
    if to == "zero":
        return [_Source(None, False)], "zero"
    if to == "mean":
        text = open_corpus(corpus)
        return [_Source(_means(lm, text, points, n_tokens), False)], f"the mean over {text.name}"
    if isinstance(to, str) or not to or not all(isinstance(prompt, str) for prompt in to):
        raise InvalidInput(f"ablation to {to!r:.60}", why='it is not "zero", "mean" or a list of prompts')
    sources = []
    for prompt in to:
        other = run(lm, prompt, tuple(points), edits)
        if other.tokens.shape[1] < n_pos:
            raise InvalidInput(
                f"prompt {prompt!r:.60}", why=f"it has {other.tokens.shape[1]} tokens, fewer than the {n_pos} here"
            )
        numbers = {(p, n): other.at(p, n)[0, :n_pos] for p in points for n in range(lm.n_layers)}
        sources.append(_Source(numbers, True))
    return sources, f"activations of {len(sources)} other prompts"


def _means(lm: Decoder, corpus: Any, points: Sequence[str], n_tokens: int) -> dict[tuple[str, int], Tensor]:
    """The mean of each activation over the first tokens of a corpus, in float64."""
    sums: dict[tuple[str, int], Tensor] = {}
    count = 0
    for segment in corpus.segments(lm):
        seen = run(lm, segment.tokens[None], tuple(points), logits=False)
        for point in points:
            for layer in range(lm.n_layers):
                total = seen.at(point, layer)[0].double().sum(dim=0)
                sums[point, layer] = sums.get((point, layer), torch.zeros_like(total)) + total
        count += len(segment.tokens)
        if count >= n_tokens:
            break
    if not count:
        raise Unsupported("a mean over this corpus", why="it has no text")
    return {key: (total / count).to(lm.dtype) for key, total in sums.items()}
