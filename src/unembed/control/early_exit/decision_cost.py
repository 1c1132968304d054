"""Which layers to ask: what a decision costs in this model, and where it brings in more than that."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.control.early_exit.examples import Examples
from unembed.control.early_exit.layer_skipping import skip_layers
from unembed.control.early_exit.protocols import Exit, Score, require_exit
from unembed.control.early_exit.thresholds import exit_layers
from unembed.models.decoder import Decoder


@dataclass(frozen=True, eq=False)
class _Unheeded:
    """A score that is asked, and whose answer nobody follows."""

    score: Score

    @property
    def name(self) -> str:
        return self.score.name

    @property
    def points(self) -> tuple[str, ...]:
        return self.score.points

    def scores(self, found: Examples) -> np.ndarray:
        return np.full_like(self.score.scores(found), -np.inf)

    def is_above(self, threshold: float, lm: Decoder, layer: int, seen: Mapping[str, Tensor]) -> bool:
        self.score.is_above(threshold, lm, layer, seen)
        return False

    def state(self) -> dict[str, Any]:
        return self.score.state()


@dataclass(frozen=True, eq=False)
class _Asked:
    """An exit for which nothing leaves: asked after every layer, or after none."""

    lm: Decoder
    score: Score
    thresholds: np.ndarray

    def at(self, threshold: float) -> _Asked:
        return _Asked(self.lm, self.score, np.full_like(self.thresholds, threshold))


@torch.no_grad()
def decision_cost(
    rule: Exit,
    prompt: str | Int[Tensor, "1 pos"],
    *,
    tokens: int = 16,
    rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """What asking the rule once costs, in blocks: measured over passes of one token in which nothing leaves.

    Args:
        rule: the exit.
        prompt: a text, or its tokens, which are what the passes read.
        tokens: passes in one round.
        rounds: of passes with and without asking, one after the other; the medians of either count: at its fastest a
            processor still has in its caches what asking reads, as between blocks it will not.
        clock: what tells the time.
    """
    lm = require_exit(rule).lm
    ids = prompt.to(lm.device) if isinstance(prompt, Tensor) else lm.encode(prompt)
    asked = _Asked(lm, _Unheeded(rule.score), np.where(rule.thresholds == np.inf, np.finfo(float).max, rule.thresholds))
    decoder = lm.hf.get_decoder() if hasattr(lm.hf, "get_decoder") else lm.hf.base_model

    def spent(exit_: _Asked) -> float:
        with skip_layers(exit_):
            cache = decoder(ids, use_cache=True).past_key_values
            began = clock()
            for n in range(tokens):
                decoder(ids[:, n % ids.shape[1]][None], past_key_values=cache, use_cache=True)
            return clock() - began

    took = [[spent(one) for one in (asked, asked.at(np.inf))] for _ in range(rounds)]
    with_asking, without = np.median(took, axis=0).tolist()
    return max(0.0, (with_asking - without) / (lm.n_layers - 1) / (without / lm.n_layers))


def profitable_thresholds(
    scores: Float[np.ndarray, "example layer"], thresholds: Float[np.ndarray, " layer"], decision: float
) -> Float[np.ndarray, " layer"]:
    """The thresholds, infinite at layers where asking costs more than leaving there saves.

    Layers are given up one at a time, the one whose loss helps most first, for as long as that helps.

    Args:
        scores: of examples that the score was not fitted to.
        thresholds: at infinity a layer is not asked.
        decision: what asking once costs, in blocks.
    """

    def worth(chosen: np.ndarray) -> float:
        layer = exit_layers(scores, chosen)
        asked = np.cumsum(chosen < np.inf)[np.minimum(layer, len(chosen) - 1)]
        return float((scores.shape[1] - layer).mean() - decision * asked.mean())

    def without(chosen: np.ndarray, layer: int) -> np.ndarray:
        return np.where(np.arange(len(chosen)) == layer, np.inf, chosen)

    best = thresholds
    while (best < np.inf).any():
        tried = max((without(best, n) for n in np.flatnonzero(best < np.inf).tolist()), key=worth)
        if worth(tried) < worth(best):
            break
        best = tried
    return best
