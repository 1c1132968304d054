"""Measure the time that an exit decision takes, and find the layers where exits save more time than decisions take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.early_exit.example_prefixes import Examples
from unembed.early_exit.layer_skipping import skip_layers
from unembed.early_exit.protocols import Exit, Score, require_exit
from unembed.early_exit.thresholds import exit_layers
from unembed.models.decoder import Decoder
from unembed.names import Basis


@dataclass(frozen=True, eq=False)
class _IgnoredScore:
    """A score that is computed but never causes an exit, to time its computation."""

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
class _NeverExits:
    """A rule that never exits, but computes the score at each layer whose threshold is not infinite."""

    lm: Decoder
    score: Score
    thresholds: np.ndarray
    basis: Basis

    def at(self, threshold: float) -> _NeverExits:
        return replace(self, thresholds=np.full_like(self.thresholds, threshold))


@torch.no_grad()
def decision_cost(
    rule: Exit,
    prompt: str | Int[Tensor, "1 pos"],
    *,
    tokens: int = 16,
    rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Measure the time of one exit decision as a fraction of a block's time, in single-token forward passes.

    Args:
        prompt: a text, or its tokens, to run the model on.
        tokens: number of forward passes in one round.
        rounds: number of rounds with decisions, and of rounds without, which alternate. Their median times are
            compared, not the smallest, because in the fastest round a decision's data may still be in the CPU cache.
        clock: returns the time in seconds.
    """
    lm = require_exit(rule).lm
    ids = prompt.to(lm.device) if isinstance(prompt, Tensor) else lm.encode(prompt)
    thresholds = np.where(rule.thresholds == np.inf, np.finfo(float).max, rule.thresholds)
    deciding = _NeverExits(lm, _IgnoredScore(rule.score), thresholds, rule.basis)
    decoder = lm.hf.get_decoder()

    def seconds(exit_rule: _NeverExits) -> float:
        with skip_layers(exit_rule):
            cache = decoder(ids, use_cache=True).past_key_values
            began = clock()
            for n in range(tokens):
                decoder(ids[:, n % ids.shape[1]][None], past_key_values=cache, use_cache=True)
            return clock() - began

    times = [[seconds(one) for one in (deciding, deciding.at(np.inf))] for _ in range(rounds)]
    with_decisions, without = np.median(times, axis=0).tolist()
    return max(0.0, (with_decisions - without) / (lm.n_layers - 1) / (without / lm.n_layers))


def profitable_thresholds(
    scores: Float[np.ndarray, "example layer"], thresholds: Float[np.ndarray, " layer"], decision: float
) -> Float[np.ndarray, " layer"]:
    """Set thresholds to infinity at layers where decisions cost more than exits there save.

    Layers are removed one by one, each time the one whose removal saves most, until no removal saves anything.

    Args:
        scores: scores of examples that were not used for fitting.
        thresholds: the threshold of each layer; with infinity, no decision is made at the layer.
        decision: the time of one decision, as a fraction of a block's time.
    """

    def saving(chosen: np.ndarray) -> float:
        layer = exit_layers(scores, chosen)
        decisions = np.cumsum(chosen < np.inf)[np.minimum(layer, len(chosen) - 1)]
        return float((scores.shape[1] - layer).mean() - decision * decisions.mean())

    def without(chosen: np.ndarray, layer: int) -> np.ndarray:
        return np.where(np.arange(len(chosen)) == layer, np.inf, chosen)

    best = thresholds
    while (best < np.inf).any():
        tried = max((without(best, n) for n in np.flatnonzero(best < np.inf).tolist()), key=saving)
        if saving(tried) < saving(best):
            break
        best = tried
    return best
