"""Scores that sub-updates give to the tokens of saturation and elimination events, from an `EventSample`.

Source: Geva et al. 2022: Tab. 4 (events), Fig. 3 and section 5.2 (layers, extreme sub-updates), Tab. 9-10 (saturation
by layer), Fig. 6 (contribution).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from unembed.errors import InvalidInput
from unembed.memories.event_sample import TOKENS, EventSample
from unembed.names import SCORE_BASES, ScoreBasis

Kind = Literal["saturation", "elimination"]
_TOKEN: dict[Kind, str] = {"saturation": "final", "elimination": "candidate"}


def counted_events(sample: EventSample, kind: Kind) -> tuple[Int[np.ndarray, " event"], Int[np.ndarray, " event"]]:
    """Return the layer and example number of each event of a kind that counts in the paper's tables.

    A saturation counts if an FFN caused it, in any layer but the last. An elimination counts if the candidate no longer
    ranks first after the FFN.

    Raises:
        InvalidInput: `kind` is neither saturation nor elimination.
    """
    examples = np.arange(len(sample))
    if kind == "saturation":
        layers = sample.saturation
        keep = sample.by_ffn() & (layers < sample.n_layers - 1)
    elif kind == "elimination":
        layers, rank = sample.elimination
        keep = rank > 1
    else:
        raise InvalidInput(f"event {kind!r}", why="the kinds of event are saturation and elimination")
    return layers[keep], examples[keep]


def event_scores(
    sample: EventSample,
    kind: Kind,
    *,
    basis: ScoreBasis = "raw",
    random: bool = False,
) -> Float[np.ndarray, "event 10"]:
    """Return the scores that each event's sub-updates give to the token whose rank the event changed.

    For a saturation, this is the predicted token; for an elimination, the top token before the FFN.

    Args:
        basis: "raw", "frozen" or, for an adaptive softmax, "adaptive".
        random: take 10 random sub-updates of the same layer instead of the 10 dominant ones.
    """
    scores = sample.random_scores if random else sample.scores
    return of_events(sample, kind, scores[..., _basis(basis, sample)])


def of_events(
    sample: EventSample, kind: Kind, scores: Float[np.ndarray, "layer example 10 token"]
) -> Float[np.ndarray, "event 10"]:
    """Select the scores for each event's token: the prediction (saturation) or the fallen candidate (elimination)."""
    return scores[(*counted_events(sample, kind), slice(None), TOKENS.index(_TOKEN[kind]))]


def _basis(basis: ScoreBasis, sample: EventSample) -> int:
    there = SCORE_BASES[: sample.scores.shape[-1]]
    if basis not in there:
        raise InvalidInput(f"basis {basis!r} for scores", why=f"for this model it must be one of {', '.join(there)}")
    return there.index(basis)


def scores_in_logits(
    sample: EventSample, *, basis: ScoreBasis = "raw", random: bool = False
) -> Float[np.ndarray, "layer example 10 token"]:
    """Return each sub-update's score in logits, as the logit lens reads them from the stream before the FFN.

    If the model has a final norm, a raw score is not the change of a logit, because the norm divides the stream by its
    scale. Here each sub-update is divided by the scale that the final norm would have on the stream before the FFN.
    Scores in the basis "adaptive" are changes of log-probabilities already and are returned unchanged.
    """
    scores = sample.random_scores if random else sample.scores
    if basis == "adaptive":
        return scores[..., _basis(basis, sample)]
    ratio = sample.last_norm_scale / sample.norm_scale
    return scores[..., _basis("frozen", sample)] * ratio[..., None, None]


def candidate_scores(
    sample: EventSample, *, basis: ScoreBasis = "raw", random: bool = False
) -> Float[np.ndarray, "layer example 10"]:
    """Return the scores that dominant (or random) sub-updates give the top token before their FFN (Fig. 3)."""
    scores = sample.random_scores if random else sample.scores
    return scores[..., TOKENS.index("candidate"), _basis(basis, sample)]


def saturation_shares(sample: EventSample) -> Float[np.ndarray, " layer"]:
    """Return the share of examples whose saturation is in each layer, whatever its cause (Tab. 9-10)."""
    return np.bincount(sample.saturation, minlength=sample.n_layers) / len(sample)


@dataclass(frozen=True, eq=False)
class ExtremeSubUpdates:
    """Dominant sub-updates whose score for the top token before the FFN exceeds a threshold, one in each row."""

    threshold: float
    basis: ScoreBasis
    layer: Int[np.ndarray, " row"]
    index: Int[np.ndarray, " row"]
    example: Int[np.ndarray, " row"]
    score: Float[np.ndarray, " row"]

    @property
    def memories(self) -> Int[np.ndarray, "memory 2"]:
        """Layer and index of each distinct memory (FFN neuron) in the rows."""
        return np.unique(np.column_stack([self.layer, self.index]), axis=0)

    def __len__(self) -> int:
        return len(self.layer)


def extreme_sub_updates(
    sample: EventSample, threshold: float | None = None, *, share: float = 0.005, basis: ScoreBasis = "raw"
) -> ExtremeSubUpdates:
    """Return the dominant sub-updates whose absolute score for the top token before the FFN exceeds a threshold.

    Args:
        threshold: an absolute score (the paper: 10 for GPT-2 medium, 5 for WikiLM). When None, it is chosen so that
            the share `share` of all dominant sub-updates exceeds it, because scores differ in size between models.
        share: the share of sub-updates to return when `threshold` is None.
    """
    scores = candidate_scores(sample, basis=basis)
    size = np.abs(scores)
    limit = float(np.quantile(size, 1 - share)) if threshold is None else float(threshold)
    layer, example, rank = np.nonzero(size > limit)
    index = sample.dominant[layer, example, rank]
    return ExtremeSubUpdates(limit, basis, layer, index, example, scores[layer, example, rank])
