"""Which memories (FFN neurons) are on for nearly every token, and how large each one's coefficient usually is."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unembed.corpus import open_corpus
from unembed.models.decoder import Decoder
from unembed.stream.run import run

if TYPE_CHECKING:
    from unembed.index.index import Index

ALWAYS_ON = 0.9
"""A memory that fires on at least this share of tokens is listed as always on."""
_WORK, _LEAST, _MOST, _WINDOW = 1e11, 64, 512, 64
"""The sample of the shipped text that is measured without an index: its largest cost in multiplications, its
fewest and most tokens, and the tokens of a window."""


@dataclass(frozen=True, eq=False)
class UsualCoefficients:
    """By layer; layers without memories have none."""

    always_on: dict[int, Bool[Tensor, " d_mlp"]]
    """Coefficient above 0 on at least nine of ten tokens; in gated layers, the mean's distance from 0 is larger than
    the standard deviation."""
    usual: dict[int, Float[Tensor, " d_mlp"]]
    """Root mean square of the coefficient over the tokens where the memory is active (gated layers: over all). Empty
    without an index: most memories are active too rarely for a sample to show it."""
    mean: dict[int, Float[Tensor, " d_mlp"]] = field(default_factory=dict[int, Float[Tensor, " d_mlp"]])
    """Mean of the coefficient over all tokens: the value used by mean ablation."""


def usual_coefficients(lm: Decoder, index: Index | None) -> UsualCoefficients:
    """From the statistics of an index of the model, else measured on a sample of the shipped text.

    A model without a tokenizer cannot read that text: then no memory is listed as always on.

    Memory: without an index, layers * 512 * d_mlp coefficients.
    """
    return lm.once(__name__, lambda: _measured(lm)) if index is None else _of_index(lm, index)


def _of_index(lm: Decoder, index: Index) -> UsualCoefficients:
    columns = {name: torch.from_numpy(column).float() for name, column in index.statistics.items()}
    always, usual, means = {}, {}, {}
    for layer in range(lm.n_layers):
        rows = slice(int(index.bounds[layer]), int(index.bounds[layer + 1]))
        if rows.start == rows.stop:
            continue
        mean, variance, active = (columns[name][rows] for name in ("mean", "variance", "active_fraction"))
        always[layer] = _is_always_on(lm, layer, mean, variance, active)
        usual[layer] = ((mean**2 + variance) / active.clamp_min(1e-12)).sqrt()
        means[layer] = mean
    return UsualCoefficients(always, usual, means)


@torch.no_grad()
def _measured(lm: Decoder) -> UsualCoefficients:
    if lm.tokenizer is None:
        return UsualCoefficients({}, {})
    window = min(_WINDOW, lm.n_ctx or _WINDOW)
    work = 12 * lm.n_layers * lm.d_model**2
    rows = max(1, int(min(_MOST, max(_LEAST, _WORK / work))) // window)
    text = open_corpus(None, segmentation="windows", window=window, max_documents=4 * rows)
    # The second window of each document: the first begins with its title.
    cut = (one.tokens for one in text.segments(lm) if one.sentence == 1 and len(one) == window)
    if not (batch := list(islice(cut, rows))):
        return UsualCoefficients({}, {})
    captured = run(lm, torch.stack(batch).to(lm.device), ["coefficients"], logits=False)
    always, means = {}, {}
    for layer in range(lm.n_layers):
        if captured.has("coefficients", layer):
            m = captured.at("coefficients", layer).flatten(0, 1).float().cpu()
            means[layer] = m.mean(0)
            always[layer] = _is_always_on(lm, layer, means[layer], m.var(0, correction=0), (m > 0).float().mean(0))
    return UsualCoefficients(always, {}, means)


def _is_always_on(lm: Decoder, layer: int, mean: Tensor, variance: Tensor, active: Tensor) -> Bool[Tensor, " d_mlp"]:
    return mean**2 > variance if lm.feed_forward(layer).is_gated else active >= ALWAYS_ON
