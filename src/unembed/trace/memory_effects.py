"""Rank the memories (FFN neurons) behind a prediction by what each adds to the difference of two logits.

Memories that are on for nearly every token would be among the largest on every prompt, so they are listed separately.
Silent memories (coefficient 0) add nothing and are not listed.

Each memory also has a deviation: its effect minus the effect that its mean coefficient over a corpus would have. This
is what mean ablation removes. A silent memory whose mean coefficient is not 0 has a deviation too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unembed.logit_attribution import memory_contributions_per_unit
from unembed.memories.top_sub_updates import Ends, SubUpdate, sub_updates_at
from unembed.memories.usual_coefficients import UsualCoefficients
from unembed.models.decoder import Decoder
from unembed.results import Displayed, Provenance, Table
from unembed.stream.run import Run
from unembed.trace.question import Question
from unembed.validation import positive_int

MemoryOrder = Literal["effect", "deviation", "size", "coefficient"]
"""The quantity by which memories are ranked: "effect", |effect|; "deviation", |deviation|; "size", the norm of
coefficient times value vector; "coefficient", |coefficient|."""


@dataclass(frozen=True, eq=False, repr=False)
class MemoryEffects(Displayed):
    """The memories with the largest effects on a logit, or on the difference of two logits.

    The `score` of a row is the memory's effect in logits.
    """

    question: Question
    rows: list[SubUpdate]
    """The memories that rank highest by the chosen `MemoryOrder`, highest first, without those that are always on."""
    always_on: list[SubUpdate]
    """Memories that are on for nearly every token, ranked in the same way."""
    most: tuple[int, int, float] | None
    """Layer, index and effect of the memory that adds most and is not always on; None if no effect is positive."""
    memories: int
    """Number of memories in the layers, silent ones included."""
    others: int
    """Number of active memories that are in neither list."""
    others_effect: float
    """The sum of the effects of the memories that are in neither list."""
    provenance: Provenance

    @property
    def total(self) -> float:
        """The sum of what all memories of the layers add."""
        return sum(row.score or 0.0 for row in (*self.rows, *self.always_on)) + self.others_effect

    def to_table(self) -> Table:
        """One row for each memory; those that are always on come last."""
        rows = [*self.rows, *self.always_on]
        columns = {
            "memory": [row.name for row in rows],
            "coefficient": [row.coefficient for row in rows],
            "times_usual": [row.times_usual for row in rows],
            "effect": [row.score for row in rows],
            "deviation": [row.deviation for row in rows],
            "share": [row.share for row in rows],
            "always_on": [row.always_on for row in rows],
            "promotes": [" ".join(token.strip() for token in row.promoted[:5]) for row in rows],
            "suppresses": [" ".join(token.strip() for token in row.suppressed[:5]) for row in rows],
        }
        return Table("Memories by their effect on the question", columns, self.provenance)


@dataclass(frozen=True, eq=False)
class _Scored:
    """The memories of one layer at a position, with the values by which they are ranked."""

    layer: int
    coefficients: Float[Tensor, " d_mlp"]
    values: Float[Tensor, "d_mlp d_model"]
    effects: Float[Tensor, " d_mlp"]
    deviations: Float[Tensor, " d_mlp"] | None
    always_on: Bool[Tensor, " d_mlp"]

    @property
    def active(self) -> Bool[Tensor, " d_mlp"]:
        return self.coefficients != 0

    def sizes(self, order: MemoryOrder) -> Float[Tensor, " d_mlp"]:
        """Return the value that each memory is sorted by; inactive memories get -1, so that they come last.

        In the order by deviation, an inactive memory is sorted by its deviation if that is not 0.
        """
        if order == "deviation" and self.deviations is not None:
            sizes = self.deviations.abs()
            return torch.where(self.active | (sizes > 0), sizes, -1.0)
        sizes = (self.coefficients if order in ("size", "coefficient") else self.effects).abs()
        if order == "size":
            sizes = sizes * self.values.float().norm(dim=-1).cpu()
        return torch.where(self.active, sizes, -1.0)


class ScoredMemories:
    """The memories of some layers at one position, each with its effect on a logit, or on a logit difference."""

    @torch.no_grad()
    def __init__(
        self,
        lm: Decoder,
        run: Run,
        question: Question,
        layers: Sequence[int],
        usual: UsualCoefficients,
        *,
        top_tokens: int = 10,
        show_unlearned: bool = False,
        read: dict[tuple[int, int], Ends] | None = None,
    ) -> None:
        """Score every memory of the layers.

        Args:
            run: a run of one prompt, restricted to the position (see `Run.at_position`).
            layers: layers that have memories.
            usual: which memories are always on, and the usual size of each memory's coefficient.
            top_tokens: number of tokens listed for each value vector.
            show_unlearned: include tokens that the model never learned.
            read: cache of the tokens of value vectors, `top_tokens` of each; this object adds to it.

        Raises:
            Unsupported: a layer has no memories.
        """
        self._ends = {} if read is None else read
        self._lm, self._run, self._question, self._usual = lm, run, question, usual
        self._top_tokens, self._show_unlearned = top_tokens, show_unlearned
        self._read: dict[tuple[int, int], SubUpdate] = {}
        per_unit = memory_contributions_per_unit(lm, run, layers, 0, question.token, question.against)
        self._layers = {n: self._scored(n, one.float().cpu()) for n, one in zip(layers, per_unit, strict=True)}

    def _scored(self, layer: int, per_unit: Float[Tensor, " d_mlp"]) -> _Scored:
        coefficients = self._run.at("coefficients", layer)[0, 0].float().cpu()
        mean = self._usual.mean.get(layer)
        return _Scored(
            layer,
            coefficients,
            self._lm.weights.W_out[layer],
            coefficients * per_unit,
            None if mean is None else (coefficients - mean) * per_unit,
            self._usual.always_on.get(layer, torch.zeros(len(per_unit), dtype=torch.bool)),
        )

    def largest(self, top: int, order: MemoryOrder = "effect") -> MemoryEffects:
        """Return the first `top` memories of all layers in the given order, and every memory that is always on."""
        scored = list(self._layers.values())
        listed = _largest(scored, order, False, positive_int("top", top))
        always_on = _largest(scored, order, True, None)
        rows = self._rows(listed + always_on)
        total = sum(float(one.effects.double().sum()) for one in scored)
        return MemoryEffects(
            self._question,
            [rows[key] for key in listed],
            [rows[key] for key in always_on],
            _most(scored),
            sum(len(one.effects) for one in scored),
            sum(int(one.active.sum()) for one in scored) - sum(row.coefficient != 0 for row in rows.values()),
            total - sum(row.score or 0.0 for row in rows.values()),
            self._lm.provenance(basis="frozen"),
        )

    def largest_by_layer(self, top: int, order: MemoryOrder = "effect") -> list[list[SubUpdate]]:
        """Return, for each layer, its first `top` memories in the given order, then up to `top` that are always on."""
        top = positive_int("top", top)
        chosen = [
            [key for always_on in (False, True) for key in _largest([one], order, always_on, top)]
            for one in self._layers.values()
        ]
        rows = self._rows([key for keys in chosen for key in keys])
        return [[rows[key] for key in keys] for keys in chosen]

    def one(self, layer: int, index: int) -> SubUpdate:
        """Return one memory's sub-update, even if its coefficient is 0."""
        return self._rows([(layer, index)])[layer, index]

    def _rows(self, keys: Sequence[tuple[int, int]]) -> dict[tuple[int, int], SubUpdate]:
        """Return the sub-updates of some memories; all value vectors that are not cached are read in one pass."""
        missing = [key for key in keys if key not in self._read]
        chosen = [(n, [i for layer, i in missing if layer == n]) for n in dict.fromkeys(n for n, _ in missing)]
        scores = [self._layers[n].effects[index].tolist() for n, index in chosen]
        found = sub_updates_at(
            self._lm,
            self._run,
            chosen,
            0,
            scores,
            k=self._top_tokens,
            show_unlearned=self._show_unlearned,
            read=self._ends,
        )
        self._read |= {(row.layer, row.index): self._compared(row) for rows in found for row in rows}
        return {key: self._read[key] for key in keys}

    def _compared(self, row: SubUpdate) -> SubUpdate:
        layer, usual = self._layers[row.layer], self._usual.usual.get(row.layer)
        size = 0.0 if usual is None else float(usual[row.index])
        return replace(
            row,
            times_usual=abs(row.coefficient) / size if size > 0 else None,
            deviation=None if layer.deviations is None else float(layer.deviations[row.index]),
            always_on=bool(layer.always_on[row.index]),
        )


def _largest(scored: Sequence[_Scored], order: MemoryOrder, always_on: bool, top: int | None) -> list[tuple[int, int]]:
    """Return (layer, index) of the first `top` memories in the given order, or of all when `top` is None.

    With `always_on`, these are chosen among the memories that are always on, otherwise among the others.
    """
    sizes = torch.cat([torch.where(one.always_on == always_on, one.sizes(order), -1.0) for one in scored])
    candidates = int((sizes >= 0).sum())
    found = sizes.topk(candidates if top is None else min(top, candidates)).indices
    # The offset of each layer in `sizes`; layers can have different numbers of memories.
    starts = torch.tensor([0, *(len(one.effects) for one in scored)]).cumsum(0)
    of = torch.searchsorted(starts, found, right=True) - 1
    return [(scored[n].layer, i) for n, i in zip(of.tolist(), (found - starts[of]).tolist(), strict=True)]


def _most(scored: Sequence[_Scored]) -> tuple[int, int, float] | None:
    largest = [(one.layer, torch.where(one.always_on, -torch.inf, one.effects).max(dim=0)) for one in scored]
    effect, layer, index = max((float(most.values), layer, int(most.indices)) for layer, most in largest)
    return (layer, index, effect) if effect > 0 else None
