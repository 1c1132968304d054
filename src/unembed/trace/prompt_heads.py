"""The heads behind a prediction: what each adds to a logit (or the difference of two), and the tokens that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.causality.replaced_pass import by_head
from unembed.errors import PointMissing, SumNotProved, Unsupported
from unembed.logit_attribution import points_needed
from unembed.trace.view import HeadSource

if TYPE_CHECKING:
    from unembed.logit_attribution import Attribution
    from unembed.stream.run import Run
    from unembed.trace.question import Question
    from unembed.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class HeadEffects:
    """What every head adds to a logit (or logit difference) at a position, split by source token if possible."""

    places: list[tuple[int, int]]
    """Layer and head of each entry."""
    effects: Float[Tensor, " head"]
    by_source: Float[Tensor, "head src"] | None
    """The effect of each head split by source position; None if they cannot be split by source."""
    run: Run | None
    """The forward pass at `position`, with that row of the attention patterns; None if heads cannot be split by source
    token."""
    position: int

    def largest(self, top: int) -> list[int]:
        """Return the indices of the `top` heads with the largest absolute effects, largest first."""
        return self.effects.abs().topk(min(top, len(self.places))).indices.tolist()

    def weights(self, n: int) -> Float[Tensor, " src"]:
        """Return a head's attention weights at the position, over the sources up to it."""
        assert self.run is not None
        layer, head = self.places[n]
        return self.run.at("pattern", layer)[0, head, 0, : self.position + 1]

    def values(self, n: int) -> Float[Tensor, "src d_head"]:
        """Return a head's value vectors at all source positions up to and including `self.position`."""
        assert self.run is not None
        layer, head = self.places[n]
        values = self.run.at("values", layer)
        n_heads = self.run.at("pattern", layer).shape[1]
        return by_head(values, n_heads)[0, head, : self.position + 1]

    def reads_itself(self, n: int) -> bool:
        """Return True if most of a head's effect comes from attention to its own position.

        Such a head acts mostly on its own position, like an FFN.
        """
        if self.by_source is None:
            return False
        parts = self.by_source[n].abs()
        return float(parts[self.position]) > 0.5 * float(parts.sum())

    def sources(self, trace: Trace, n: int, top: int) -> list[HeadSource]:
        """Return the source tokens that contribute most to a head's effect, largest absolute contribution first."""
        if self.by_source is None:
            return []
        row, weights = self.by_source[n], self.weights(n).float()
        best = row.abs().topk(min(top, len(row))).indices.tolist()
        texts = trace.token_strings
        return [HeadSource(i, int(trace.tokens[i]), texts[i], float(weights[i]), float(row[i])) for i in best]


def head_effects(trace: Trace, question: Question, position: int) -> HeadEffects | None:
    """Return what every head adds to the logit difference; None if heads do not add up to the layer's output.

    Args:
        position: counted from 0.
    """
    try:
        found = trace.attribution(question.token, position, question.against, by="source")
        run = trace.at(position, points_needed(trace.lm, "source", trace.edits))
    except (PointMissing, SumNotProved, Unsupported):
        run = None
        try:
            found = trace.attribution(question.token, position, question.against, by="head")
        except (PointMissing, SumNotProved, Unsupported):
            return None
    return _of_rows(found, position, run)


def _of_rows(found: Attribution, position: int, run: Run | None) -> HeadEffects | None:
    chosen = (found.kind == found.kinds.index("head")) if "head" in found.kinds else torch.zeros(0, dtype=torch.bool)
    chosen = chosen & (found.index >= 0)
    if not bool(chosen.any()):
        return None
    width = int(found.index[chosen].max()) + 1
    numbers, at = (found.layer[chosen] * width + found.index[chosen]).unique(return_inverse=True)
    places = [divmod(number, width) for number in numbers.tolist()]
    contributions, sources = found.contribution[chosen].double().cpu(), found.source[chosen]
    effects = torch.zeros(len(places), dtype=torch.float64).index_add_(0, at, contributions)
    by_source = None
    if run is not None and bool((sources >= 0).all()):
        by_source = torch.zeros(len(places), int(sources.max()) + 1, dtype=torch.float64)
        by_source.index_put_((at, sources), contributions, accumulate=True)
        by_source = by_source[:, : position + 1]
    return HeadEffects(places, effects, by_source, run, position)
