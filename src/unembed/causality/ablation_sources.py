"""Find the values that replace an ablated activation: zero, its mean over a corpus, or its values in other prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unembed.causality.ablation_targets import Target
from unembed.causality.corpus_means import corpus_means
from unembed.causality.replaced_pass import Replacement
from unembed.corpus import CorpusSource, open_corpus
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.stream.interventions import Edits
from unembed.stream.run import run
from unembed.sweeps.reducers.reducer import Need


@dataclass(frozen=True, eq=False)
class Source:
    """The values that replace activations.

    Attributes:
        numbers: the values, by (capture point, layer); None to replace every activation by zero.
        by_position: whether the first axis of the values is the position; without it, all positions get the same.
    """

    numbers: dict[Need, Tensor] | None = None
    by_position: bool = False

    def replacement(self, target: Target, where: Tensor | None = None, n_pos: int | None = None) -> Replacement:
        """Return the replacement of a head, memory or component, at the positions `where` (all if None)."""
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

    def up_to(self, n_pos: int, corpus: str) -> Source:
        """Return a source with the means of the first `n_pos` positions. It must have a mean for each position.

        Raises:
            InvalidInput: no segment of the corpus has `n_pos` tokens.
        """
        assert self.numbers is not None
        known = min(map(len, self.numbers.values()))
        if known < n_pos:
            raise InvalidInput(
                f"a mean by position over {corpus}",
                why=f"its segments have {known} positions, the prompt has {n_pos}",
                instead='Open the corpus with segmentation="windows", or take the mean over all positions',
            )
        return Source({need: mean[:n_pos] for need, mean in self.numbers.items()}, True)


def sources_of(
    lm: Decoder,
    to: Any,
    needs: Sequence[Need],
    n_pos: int,
    corpus: CorpusSource,
    n_tokens: int,
    by_position: bool,
    edits: Edits,
) -> tuple[list[Source], str]:
    """Return the values that replace the activations `needs` in prompts of up to `n_pos` tokens, and a description.

    If `to` is a list of prompts, there is one `Source` for each of them.

    Raises:
        InvalidInput: `to` is not "zero", "mean" or a list of prompts, or a prompt or segment is too short.
    """
    if isinstance(to, str) and to == "zero":
        return [Source()], "zero"
    if isinstance(to, str) and to == "mean":
        text = open_corpus(corpus)
        found = corpus_means(lm, text, needs, n_tokens, by_position)
        means = Source(found.numbers, by_position)
        return [means.up_to(n_pos, text.name) if by_position else means], found.in_words(text.name)
    if isinstance(to, str) or not isinstance(to, Sequence) or not to or not all(isinstance(p, str) for p in to):
        raise InvalidInput(f"to={to!r:.60}", why='activations can be ablated to "zero", "mean" or a list of prompts')
    sources = []
    points = tuple(sorted({point for point, _ in needs}))
    for prompt in to:
        other = run(lm, prompt, points, edits)
        if other.tokens.shape[1] < n_pos:
            raise InvalidInput(
                f"prompt {prompt!r:.60}",
                why=f"it has {other.tokens.shape[1]} tokens, fewer than the {n_pos} of the ablated prompt",
            )
        sources.append(Source({(p, n): other.at(p, n)[0, :n_pos] for p, n in needs}, True))
    return sources, f"activations of {len(sources)} other prompts"
