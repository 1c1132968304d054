"""The result of an attribution: a logit as a sum of contributions, and how far it falls when a component is ablated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.errors import Unsupported
from unembed.names import memory_name
from unembed.results import Displayed, Provenance, Table, format_error, format_signed, quoted, visible
from unembed.validation import positive_int


@dataclass(frozen=True)
class Row:
    """The contribution of one component, such as a head, a memory (FFN neuron) or a bias.

    `index` is the index of the head or memory in its layer, `source` the source position. `layer`, `index` and `source`
    are None for components without one.
    """

    label: str
    layer: int | None
    index: int | None
    source: int | None
    contribution: float


@dataclass(frozen=True)
class EffectRow:
    """One component's direct and total effect on the logit.

    `total` is None for components that are not ablated (embeddings, biases).
    """

    label: str
    layer: int | None
    index: int | None
    direct: float
    total: float | None
    is_last: bool = False
    """Whether the component is in the last layer: only the rest of that layer and the final norm read its output."""

    @property
    def note(self) -> str:
        """A phrase that says how direct and total effect disagree; empty if they agree within a factor of two."""
        if self.total is None:
            return "not ablated"
        later = "what follows in this layer and the final norm" if self.is_last else "later layers"
        if abs(self.total) < 1e-6:
            return f"{later} compensate" if abs(self.direct) > 1e-6 else ""
        if abs(self.direct) < 1e-6:
            return f"acts through {later}"
        ratio = self.total / self.direct
        if ratio < 0:
            return f"opposite sign: {later} reverse it"
        return f"{later} compensate" if ratio < 0.5 else f"acts through {later}" if ratio > 2 else ""


@dataclass(frozen=True, eq=False, repr=False)
class Effects(Displayed):
    """The components with the largest contributions, each with the total effect of ablating it alone."""

    rows: tuple[EffectRow, ...]
    title: str
    provenance: Provenance

    def to_table(self) -> Table:
        """Return a row for each component: direct effect (its contribution), total effect, and how they disagree."""
        columns = {
            "writer": [row.label for row in self.rows],
            "direct_effect": [row.direct for row in self.rows],
            "total_effect": [row.total for row in self.rows],
            "note": [row.note for row in self.rows],
        }
        return Table(self.title, columns, self.provenance)


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(Displayed):
    """The logit of a token, or the difference of two logits, as a sum; tensors have one entry for each contribution."""

    token: int
    against: int | None
    position: int
    by: str
    kinds: tuple[str, ...]
    """The kinds of component by name; `kind` has indices into this tuple."""
    kind: Int[Tensor, " row"]
    layer: Int[Tensor, " row"]
    index: Int[Tensor, " row"]
    source: Int[Tensor, " row"]
    """The source position. `layer`, `index` and `source` are -1 for components without one; `rows` and tables have None
    there."""
    contribution: Float[Tensor, " row"]
    logit: float
    """The model's own logit, or difference of logits."""
    total: float
    """The sum of the contributions."""
    error: float
    """|total - logit|, divided by the larger of |logit| and the largest absolute contribution."""
    provenance: Provenance
    measure_effects: Callable[["Attribution", Sequence[Row]], list[float | None]] | None = field(
        default=None, metadata={"saved": False}
    )
    """Function that measures total effects by running the prompt again; from `trace.attribution`. Not saved."""
    experts: tuple[tuple[int, int] | None, ...] = ()
    """For each layer, the number of experts and of memories per expert; None for a layer without experts."""
    answers: tuple[str, ...] = ()
    """The texts of `token` and, if there is one, of `against`."""
    sources: tuple[str, ...] = ()
    """The texts of the prompt's tokens if `by` is "source"."""

    @property
    def question(self) -> str:
        """What is split, with its size: the logit of a token, or the difference of two tokens' logits."""
        names = [quoted(text) for text in self.answers]
        of = f"the logit of {names[0]}" if len(names) == 1 else f"the difference of logits {' − '.join(names)}"
        return f"{of} ({format_signed(self.logit)})" if names else f"a logit of {format_signed(self.logit)}"

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields to pickle: all except `measure_effects`, which refers to the run."""
        return {**vars(self), "measure_effects": None}

    def with_effects(self, top: int = 20) -> Effects:
        """Return the `top` components, each with its total effect: how far the logit falls if it alone is set to zero.

        Raises:
            Unsupported: the attribution does not come from a trace, or splits heads by source token.
        """
        if self.measure_effects is None:
            raise Unsupported(
                "total effects of this attribution",
                why="the trace that could run the prompt again is not stored with it",
                instead="Use trace.attribution",
            )
        rows = self.top(top)
        totals = self.measure_effects(self, rows)
        last = int(self.layer.max())
        pairs = zip(rows, totals, strict=True)
        return Effects(
            tuple(EffectRow(r.label, r.layer, r.index, r.contribution, total, r.layer == last) for r, total in pairs),
            f"Direct and total effects on {self.question}, by {self.by}, ablated to zero",
            self.provenance,
        )

    def __len__(self) -> int:
        return self.contribution.shape[0]

    def _row(self, i: int) -> Row:
        kind = self.kinds[int(self.kind[i])]
        layer, index, source = (int(column[i]) for column in (self.layer, self.index, self.source))
        if layer < 0 or index < 0:
            label = kind if layer < 0 else f"{kind} {layer}"
        else:
            letter = "F" if kind == "feature" else "H"
            name = f"L{layer}{letter}{index}"
            if kind == "memory":
                name = memory_name(layer, index, self.experts[layer] if self.experts else None)
            label = f"{kind} {name}"
        if source >= 0:
            label = (
                f"{label} from {visible(self.sources[source])} ({source})" if self.sources else f"{label} from {source}"
            )
        layer, index, source = (None if number < 0 else number for number in (layer, index, source))
        return Row(label, layer, index, source, float(self.contribution[i]))

    @property
    def rows(self) -> list[Row]:
        """Return a row for every component, in the order of the forward pass."""
        return [self._row(i) for i in range(len(self))]

    def to_table(self) -> Table:
        """Return a row for every component, those with the largest absolute contribution first.

        `layer`, `index` and `source` are empty where a component has none.
        """
        rows = self.top(len(self))
        columns = {
            "writer": [row.label for row in rows],
            **{name: [getattr(row, name) for row in rows] for name in ("layer", "index", "source")},
            "contribution": [row.contribution for row in rows],
        }
        title = (
            f"Attribution of {self.question} by {self.by}: sum {format_signed(self.total)}, error "
            f"{format_error(self.error)}"
        )
        return Table(title, columns, self.provenance)

    def top(self, top: int = 10, among: Bool[Tensor, " row"] | None = None) -> list[Row]:
        """Return the rows with the largest absolute contributions; with `among`, only rows where it is True."""
        sizes = self.contribution.abs() if among is None else torch.where(among, self.contribution.abs(), -1.0)
        count = min(positive_int("top", top), len(self) if among is None else int(among.sum()))
        return [self._row(int(i)) for i in sizes.topk(count).indices]
