"""Find, for every memory (FFN neuron), the t prefixes of a corpus with the largest coefficients, exactly.

Source: Geva et al. 2021, section 3 (trigger examples).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from unembed.corpus.segments import Batch
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.models.structure.experts import RoutedCoefficients
from unembed.names import Poles, TriggersBy
from unembed.sweeps.reducers.batch_columns import BatchColumns
from unembed.sweeps.reducers.reducer import Need, Reducer
from unembed.sweeps.reducers.top_lists import TopLists, require_finite
from unembed.sweeps.reducers.triggers import Triggers
from unembed.validation import one_of, positive_int


class TopTriggers(Reducer):
    """Finds the t prefixes with the largest coefficients for every memory (FFN neuron), as sorting all of them would.

    Such a prefix is called a trigger. The positive pole of a memory has its coefficients above 0, the negative pole
    those below 0. A coefficient of exactly 0 adds nothing to the residual stream and is no trigger, as in the papers'
    code.

    Args:
        top: number of triggers for each memory and pole.
        layers: the layers to search; by default, all with memories.
        poles: "positive", "both", or "auto": both in gated layers, where coefficients can have either sign.
        by: the quantity to compare: "product", the coefficient of the value vector; or, in gated layers, "gate", the
            output of the gate projection before the activation function.
        min_prefix: smallest number of tokens in a prefix, without special tokens at its start.
        skip_first: whether to leave out the first token, where many models have very large activations.
        per_document: largest number of triggers of a memory from one document; by default, no limit.
        distinct: whether to list only one of equal prefixes (all tokens from the start of the segment): within a batch
            the earliest, between batches the one with the larger coefficient, which differs by rounding only.

    Memory: 12 bytes for each memory, pole and trigger (16 to 20 with `per_document` or `distinct`). During a sweep,
        each layer and pole needs a buffer of a tenth of this or, if a tenth is less than 2 MB, of up to 2 MB.

    Raises:
        InvalidInput: a setting has no valid value, or `per_document` and `distinct` are combined, which lists of
            bounded length cannot do exactly.
    """

    def __init__(
        self,
        top: int = 25,
        layers: Sequence[int] | None = None,
        *,
        poles: Poles = "auto",
        by: TriggersBy = "product",
        min_prefix: int = 0,
        skip_first: bool = False,
        per_document: int | None = None,
        distinct: bool = False,
    ) -> None:
        """Check and store the settings; `start` reads the sizes of a model."""
        one_of("poles", poles, ("auto", "positive", "both"))
        one_of("by", by, ("product", "gate"))
        top, min_prefix = positive_int("top", top, most=100_000), positive_int("min_prefix", min_prefix, 0)
        per_document = None if per_document is None else positive_int("per_document", per_document)
        if per_document and distinct:
            raise InvalidInput(
                "per_document with distinct",
                why="no list of bounded length can apply both limits exactly",
                instead="Choose one of the two",
            )
        self.top, self.layers, self.poles, self.by = top, None if layers is None else tuple(layers), poles, by
        self.min_prefix, self.skip_first = min_prefix, skip_first
        self.per_document, self.distinct = per_document, distinct

    def start(self, lm: Decoder) -> None:
        """Start with empty lists for every memory."""
        every = lm.memory_layers or range(lm.n_layers)
        self._layers = tuple(every) if self.layers is None else tuple(lm.layer(n) for n in self.layers)
        self._lists: dict[tuple[int, int], TopLists] = {}
        self._seen = 0
        limit = self.per_document or (1 if self.distinct else None)
        for layer in self._layers:
            ffn = lm.feed_forward(layer)
            if self.by == "gate" and ffn.experts is not None:
                why = f"the memories of layer {layer} of {lm.name} belong to experts"
                raise InvalidInput("by='gate'", why=why, instead="Use 'product'")
            if self.by == "gate" and not ffn.is_gated:
                raise InvalidInput("by='gate'", why=f"layer {layer} of {lm.name} has no gate", instead="Use 'product'")
            both = self.poles == "both" or (self.poles == "auto" and ffn.is_gated)
            one = lm.weights.values(layer, torch.zeros(1, dtype=torch.long))
            dtype = torch.float64 if one.dtype == torch.float64 else torch.float32
            for sign in (1, -1) if both else (1,):
                self._lists[layer, sign] = TopLists(lm.n_memories_of(layer), self.top, dtype, one.device, limit)
        self._columns: BatchColumns | None = None

    @property
    def needs(self) -> Collection[Need]:
        """The coefficients (or gates) of every chosen layer."""
        return [("coefficients" if self.by == "product" else "gate", layer) for layer in self._layers]

    def _columns_of(self, batch: Batch, device: torch.device) -> BatchColumns:
        columns = self._columns
        if columns is None or columns.batch is not batch or columns.device != device:
            columns = self._columns = BatchColumns(
                batch,
                self.counted(batch),
                device,
                per_document=self.per_document is not None,
                distinct=self.distinct,
                # Values at the first position may be so large that nearly every block of activations would seem to
                # contain a candidate. Copying only the counted positions excludes these values before blocks are made.
                copies=self.skip_first or self.min_prefix > 1,
            )
        return columns

    def see_routed(self, layer: int, routed: RoutedCoefficients, batch: Batch) -> None:
        """Update the lists of a layer with experts."""
        columns = self._columns_of(batch, routed.position.device)
        if not columns.n:
            return
        for first, position, m in routed.parts():
            column, rows = columns.at(position)
            first, m = (first, m) if rows is None else (first[rows], m[rows])
            require_finite(m)
            for sign, lists in self._lists_of(layer):
                lists.offer_rows(m, first, sign, column, columns)
        for _, lists in self._lists_of(layer):
            lists.offered(columns.n)

    def see(self, point: str, layer: int, tensor: Tensor, batch: Batch) -> None:
        """Update the highest activations of each memory of a layer with those of a batch."""
        columns = self._columns_of(batch, tensor.device)
        if columns.n:
            x = columns.of(tensor)
            for sign, lists in self._lists_of(layer):
                lists.offer(x, sign, columns)

    def _lists_of(self, layer: int) -> list[tuple[int, TopLists]]:
        """Return the lists of a layer, each with the sign of its pole."""
        return [(sign, self._lists[layer, sign]) for sign in (1, -1) if (layer, sign) in self._lists]

    def update(self, batch: Batch) -> None:
        """Add the batch's positions that may become triggers to the number of positions seen."""
        self._seen += int(self.counted(batch).sum())
        self._columns = None

    def counted(self, batch: Batch) -> Bool[Tensor, "batch pos"]:
        """Mark the positions that may become triggers."""
        counted = batch.counted
        if self.min_prefix > 0:
            counted = counted & (batch.prefix_lengths >= self.min_prefix)
        return counted & (batch.columns > 0) if self.skip_first else counted

    def merge(self, other: TopTriggers) -> None:
        """Add the lists of another reducer, which must not have positions in common with this one."""
        for at, theirs in other._lists.items():
            self._lists[at].merge(theirs)
        self._seen += other._seen

    def result(self) -> Triggers:
        """Return the lists of all memories."""

        def lists(sign: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            tops = [(self._lists.get((n, sign)) or self._lists[n, 1].empty_copy()).result() for n in self._layers]
            return tuple(values.mul_(sign) for values, _ in tops), tuple(positions for _, positions in tops)

        negative = lists(-1) if any(sign == -1 for _, sign in self._lists) else (None, None)
        return Triggers(self._layers, *lists(1), *negative, self._seen)

    def state(self) -> dict[str, Any]:
        """Return the lists by layer and sign, as tensors."""
        state: dict[str, Any] = {"seen": self._seen}
        for (layer, sign), lists in self._lists.items():
            state |= {f"{layer}.{sign}.{name}": tensor for name, tensor in lists.state().items()}
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the lists that `state` returned."""
        self._seen = int(state["seen"])
        for (layer, sign), lists in self._lists.items():
            start = f"{layer}.{sign}."
            lists.load_state({k.removeprefix(start): v for k, v in state.items() if k.startswith(start)})
