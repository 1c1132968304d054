"""Compute the mean of an activation over a corpus, for all positions together or for each position."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unembed.corpus import Corpus
from unembed.corpus.segments import Batch
from unembed.errors import Unsupported
from unembed.models.decoder import Decoder
from unembed.stream.massive_activations import massive_in_batch
from unembed.sweeps.forward import feed_reducers
from unembed.sweeps.reducers.reducer import Need, Reducer


class MeanActivation(Reducer):
    """The mean of some activations over a corpus, in float64.

    Padding is left out, and so are tokens that a window has in common with the window before it.

    Args:
        needs: pairs (capture point, layer).
        by_position: whether to take a mean for each position of a segment instead of one over all positions.

    Attributes:
        ignored: positions of the next batch that do not count, either; None if all do.
    """

    def __init__(self, needs: Sequence[Need], by_position: bool = False) -> None:
        self.points, self.by_position = tuple(needs), by_position
        self.ignored: Bool[Tensor, "batch pos"] | None = None

    def start(self, lm: Decoder) -> None:
        """Start with no tokens."""
        self._sums: dict[Need, Tensor] = {}
        self._counts = torch.zeros(0, dtype=torch.long)

    @property
    def needs(self) -> Collection[Need]:
        """The pairs (capture point, layer) whose means are taken."""
        return self.points

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Add the activations of the counted tokens to the sum."""
        counted = self._counted(batch).to(tensor.device)
        weighted = tensor.double() * counted.view(*counted.shape, *[1] * (tensor.dim() - 2))
        total = weighted.sum(dim=0)
        total = total if self.by_position else total.sum(dim=0, keepdim=True)
        self._sums[point, layer] = _added(self._sums.get((point, layer)), total)

    def update(self, batch: Batch) -> None:
        """Add the batch's counted tokens to the number of tokens in the mean."""
        counts = self._counted(batch).sum(dim=0)
        self._counts = _added(self._counts, counts if self.by_position else counts.sum()[None])

    def _counted(self, batch: Batch) -> Bool[Tensor, "batch pos"]:
        return batch.counted if self.ignored is None else batch.counted & ~self.ignored

    def merge(self, other: MeanActivation) -> None:
        """Add the sums and counts of another reducer."""
        for need, total in other._sums.items():
            self._sums[need] = _added(self._sums.get(need), total)
        self._counts = _added(self._counts, other._counts)

    def result(self) -> dict[Need, Float[Tensor, "..."]]:
        """Return the means: (width...) over all positions, or (pos, width...) for each position with tokens."""
        seen = int((self._counts > 0).cumprod(0).sum())
        found = {}
        for need, total in self._sums.items():
            counts = self._counts[:seen].to(total.device).view(-1, *[1] * (total.dim() - 1))
            mean = total[:seen] / counts
            found[need] = mean if self.by_position else mean.squeeze(0)
        return found

    def state(self) -> dict[str, Any]:
        """Return the sums and counts."""
        return {"sums": dict(self._sums), "counts": self._counts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the sums and counts that `state` returned."""
        self._sums, self._counts = dict(state["sums"]), state["counts"]


def _added(known: Tensor | None, new: Tensor) -> Tensor:
    """Add two tensors; the shorter is padded with zeros along its first axis."""
    if known is None:
        return new
    longer, shorter = (known, new) if len(known) >= len(new) else (new, known)
    total = longer.clone()
    total[: len(shorter)] += shorter
    return total


def first_batches(lm: Decoder, corpus: Corpus, n_tokens: int, tokens_per_batch: int = 2048) -> Iterator[Batch]:
    """Yield batches from the start of a corpus, until `n_tokens` tokens are counted.

    Raises:
        Unsupported: the corpus has no text.
    """
    counted = 0
    for batch in corpus.batches(lm, tokens_per_batch, ahead=math.ceil(n_tokens / tokens_per_batch)):
        yield batch
        counted += batch.n_counted
        if counted >= n_tokens:
            return
    if not counted:
        raise Unsupported("a measurement over this corpus", why="the corpus contains no text")


@dataclass(frozen=True, eq=False)
class CorpusMeans:
    """The mean of some activations over a corpus."""

    numbers: dict[Need, Float[Tensor, "..."]]
    """By capture point and layer, in the model's dtype."""
    by_position: bool
    massive: int
    """Number of positions left out because they have massive activations."""

    def in_words(self, corpus: str = "") -> str:
        """Describe the means, such as "the mean over wikitext (25 massive positions left out)"."""
        over = f" over {corpus}" if corpus else ""
        left_out = f" ({self.massive:,} massive positions left out)" if self.massive else ""
        return f"the mean{over}" + (" by position" if self.by_position else left_out)


@torch.no_grad()
def corpus_means(
    lm: Decoder, corpus: Corpus, needs: Sequence[Need], n_tokens: int, by_position: bool = False
) -> CorpusMeans:
    """Return the mean of each activation over the first tokens of a corpus.

    Positions with massive activations are left out of a mean over all positions: in many models the first position of
    a text is one, its FFN outputs are a hundred times as long as elsewhere, and they would be most of the mean.

    Raises:
        Unsupported: the corpus has no text.
    """
    reducer, massive = MeanActivation(needs, by_position), 0
    reducer.start(lm)
    for batch in first_batches(lm, corpus, n_tokens):
        if not by_position:
            reducer.ignored = massive_in_batch(lm, batch)
            massive += int(reducer.ignored.sum())
        with feed_reducers(lm, [reducer]) as feed:
            feed(batch)
    return CorpusMeans({need: mean.to(lm.dtype) for need, mean in reducer.result().items()}, by_position, massive)
