"""Find the top-t prefixes of every key of every layer at once, exactly, storing (keys, t) values and positions.

Geva et al. 2021, section 3: for each key the prefixes of a corpus with the highest memory coefficient.
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
    """The top-t prefixes of all keys of all layers, exactly as sorting all coefficients would give them.

    The positive pole holds coefficients above 0, the negative pole those below. A coefficient of exactly 0 adds nothing
    to the stream and is no trigger, as in the papers' code.

    Args:
        top: triggers for each key.
        layers: which layers; all when None.
        poles: "positive", "both", or "auto": both in gated layers, where coefficients are signed.
        by: "product", the coefficient that multiplies the value; or, in gated layers, "gate", the gate before its
            activation.
        min_prefix: the least number of text tokens in a prefix, special tokens in front not counted.
        skip_first: leave out column 0, where many models have very large activations.
        per_document: at most this many triggers of a key from one document.
        distinct: keep one of equal prefixes (all tokens from the start of the segment): within a batch the earliest,
            between batches the one with the larger coefficient, which differs by rounding only.

    Memory: 12 bytes per slot (16 to 20 with `per_document` or `distinct`), and while running a tenth more, or, if that
        is less than 2 MB for a layer and pole, up to 2 MB.

    Raises:
        InvalidInput: a setting makes no sense, or `per_document` and `distinct` are combined: no bounded state can do
            both exactly.
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
        """Store the settings; `start` reads the sizes."""
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
        """Start with empty lists for every key."""
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
        """Return the coefficients (or gates) of every chosen layer."""
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
                # Values at the first position may be so large that every block would seem to contain a candidate, so
                # they are excluded here.
                copies=self.skip_first or self.min_prefix > 1,
            )
        return columns

    def see_routed(self, layer: int, routed: RoutedCoefficients, batch: Batch) -> None:
        """Update the lists of a layer of experts."""
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
        """Update the lists of a layer."""
        columns = self._columns_of(batch, tensor.device)
        if columns.n:
            x = columns.of(tensor)
            for sign, lists in self._lists_of(layer):
                lists.offer(x, sign, columns)

    def _lists_of(self, layer: int) -> list[tuple[int, TopLists]]:
        """Return the lists of a layer, with the sign of each pole."""
        return [(sign, self._lists[layer, sign]) for sign in (1, -1) if (layer, sign) in self._lists]

    def update(self, batch: Batch) -> None:
        """Count the positions."""
        self._seen += int(self.counted(batch).sum())
        self._columns = None

    def counted(self, batch: Batch) -> Bool[Tensor, "batch pos"]:
        """Mark the positions that may become triggers."""
        counted = batch.counted
        if self.min_prefix > 0:
            counted = counted & (batch.prefix_lengths >= self.min_prefix)
        return counted & (batch.columns > 0) if self.skip_first else counted

    def merge(self, other: TopTriggers) -> None:
        """Merge two parts, which must not share a position."""
        for at, theirs in other._lists.items():
            self._lists[at].merge(theirs)
        self._seen += other._seen

    def result(self) -> Triggers:
        """Return all lists."""

        def lists(sign: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            tops = [(self._lists.get((n, sign)) or self._lists[n, 1].empty_copy()).result() for n in self._layers]
            return tuple(values.mul_(sign) for values, _ in tops), tuple(positions for _, positions in tops)

        negative = lists(-1) if any(sign == -1 for _, sign in self._lists) else (None, None)
        return Triggers(self._layers, *lists(1), *negative, self._seen)

    def state(self) -> dict[str, Any]:
        """Return the lists for each layer and sign."""
        state: dict[str, Any] = {"seen": self._seen}
        for (layer, sign), lists in self._lists.items():
            state |= {f"{layer}.{sign}.{name}": tensor for name, tensor in lists.state().items()}
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore saved lists."""
        self._seen = int(state["seen"])
        for (layer, sign), lists in self._lists.items():
            start = f"{layer}.{sign}."
            lists.load_state({k.removeprefix(start): v for k, v in state.items() if k.startswith(start)})
