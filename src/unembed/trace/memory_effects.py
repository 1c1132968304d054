"""The memories (FFN neurons) behind a prediction: sub-updates by what they add to the difference of two logits.

Memories that are on for nearly every token are listed separately: they are among the largest on every prompt.
Silent ones (coefficient 0) add nothing and are in no list.

Next to the effect is its deviation: the effect beyond that of the memory's mean coefficient over a corpus, which is
what mean ablation removes. A silent memory whose mean is not 0 has a deviation too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unembed.logit_attribution import memory_contributions_per_unit
from unembed.memories.top_sub_updates import SubUpdate, sub_updates_at
from unembed.models.decoder import Decoder
from unembed.results import Provenance, Table
from unembed.results.display import Displayed
from unembed.stream.run import Run
from unembed.trace.question import Question
from unembed.trace.usual_coefficients import UsualCoefficients
from unembed.validation import positive_int

MemoryOrder = Literal["effect", "deviation", "size", "coefficient"]
"""What memories are ranked by: |effect|, |deviation|, |coefficient| * |value|, or |coefficient|."""


@dataclass(frozen=True, eq=False, repr=False)
class MemoryEffects(Displayed):
    """Sub-updates with the largest effects on a logit, or on a difference of two; `score` is the effect, in logits."""

    question: Question
    rows: list[SubUpdate]
    """The largest effects (or deviations) of either sign, largest first, without those that are always on."""
    always_on: list[SubUpdate]
    """Memories that are on for nearly every token, in the same order."""
    most: tuple[int, int, float] | None
    """Layer, index and effect of the memory that adds most; None where none that is not always on adds anything."""
    memories: int
    """Memories of the layers, silent ones included."""
    others: int
    """Active memories that are in neither list."""
    others_effect: float
    """The sum of their effects."""
    provenance: Provenance

    @property
    def total(self) -> float:
        """What all memories of the layers add."""
        return sum(row.score or 0.0 for row in (*self.rows, *self.always_on)) + self.others_effect

    def to_table(self) -> Table:
        """A row for each memory, those that are always on last."""
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
        }
        return Table("Memories by their effect on the question", columns, self.provenance)


@torch.no_grad()
def memory_effects(
    lm: Decoder,
    run: Run,
    question: Question,
    position: int,
    layers: Sequence[int],
    top: int,
    usual: UsualCoefficients,
    *,
    order: MemoryOrder = "effect",
    k: int = 10,
    show_unlearned: bool = False,
) -> MemoryEffects:
    """The memories of some layers with the largest effects on a question at a position.

    Args:
        lm: the model.
        run: a run of one prompt that captured the coefficients and the last resid_post.
        question: the two tokens.
        position: the column of the run.
        layers: layers that have memories.
        top: how many to list, not counting those that are always on.
        usual: which memories are always on, and how large coefficients usually are.
        order: what the list is ranked by.
        k: how many tokens of each value to list.
        show_unlearned: include tokens that the model never learned.

    Raises:
        Unsupported: a layer has no memories.
    """
    scored = [_scored(lm, run, question, position, n, usual) for n in layers]
    listed = _largest(scored, [one.sizes(order) for one in scored], False, positive_int("top", top))
    apart = _largest(scored, [one.sizes(order) for one in scored], True, None)
    rows = _rows(lm, run, scored, listed + apart, position, usual, k, show_unlearned)
    sizes = sum(float(one.effects.double().sum()) for one in scored)
    shown = sum(row.score or 0.0 for row in rows.values())
    return MemoryEffects(
        question,
        [rows[key] for key in listed],
        [rows[key] for key in apart],
        _most(scored),
        sum(len(one.effects) for one in scored),
        sum(int(one.active.sum()) for one in scored) - sum(row.coefficient != 0 for row in rows.values()),
        sizes - shown,
        lm.provenance(basis="frozen"),
    )


@torch.no_grad()
def memory_effects_by_layer(
    lm: Decoder,
    run: Run,
    question: Question,
    position: int,
    layers: Sequence[int],
    top: int,
    usual: UsualCoefficients,
    *,
    order: MemoryOrder = "effect",
    k: int = 10,
    show_unlearned: bool = False,
) -> list[list[SubUpdate]]:
    """For each layer its memories with the largest effects on a question, then as many that are always on.

    The arguments as for `memory_effects`; `top` counts the memories of one layer.

    Raises:
        Unsupported: a layer has no memories.
    """
    top = positive_int("top", top)
    scored = [_scored(lm, run, question, position, n, usual) for n in layers]
    chosen = [
        [key for apart in (False, True) for key in _largest([one], [one.sizes(order)], apart, top)] for one in scored
    ]
    rows = _rows(lm, run, scored, [key for keys in chosen for key in keys], position, usual, k, show_unlearned)
    return [[rows[key] for key in keys] for keys in chosen]


@torch.no_grad()
def memory_effect(
    lm: Decoder,
    run: Run,
    question: Question,
    position: int,
    memory: tuple[int, int],
    usual: UsualCoefficients,
    *,
    k: int = 10,
    show_unlearned: bool = False,
) -> SubUpdate:
    """One memory's sub-update at a position, silent or not, with its effect on a question.

    Raises:
        Unsupported: the layer has no memories.
    """
    scored = [_scored(lm, run, question, position, memory[0], usual)]
    return _rows(lm, run, scored, [memory], position, usual, k, show_unlearned)[memory]


@dataclass(frozen=True, eq=False)
class _Scored:
    """The memories of one layer at a position, by the numbers that they are ranked by."""

    layer: int
    coefficients: Float[Tensor, " d_mlp"]
    norms: Float[Tensor, " d_mlp"]
    effects: Float[Tensor, " d_mlp"]
    deviations: Float[Tensor, " d_mlp"] | None
    always: Bool[Tensor, " d_mlp"]

    @property
    def active(self) -> Bool[Tensor, " d_mlp"]:
        return self.coefficients != 0

    def sizes(self, order: MemoryOrder) -> Float[Tensor, " d_mlp"]:
        """What the memories are ranked by; silent ones are not candidates unless they deviate."""
        if order == "deviation" and self.deviations is not None:
            sizes = self.deviations.abs()
            return torch.where(self.active | (sizes > 0), sizes, -1.0)
        sizes = {
            "effect": self.effects,
            "deviation": self.effects,
            "size": self.coefficients * self.norms,
            "coefficient": self.coefficients,
        }[order].abs()
        return torch.where(self.active, sizes, -1.0)


def _scored(lm: Decoder, run: Run, question: Question, position: int, layer: int, usual: UsualCoefficients) -> _Scored:
    of_unit = memory_contributions_per_unit(lm, run, [layer], position, question.token, question.against)
    per_unit = of_unit[0].float().cpu()
    coefficients = run.at("coefficients", layer)[0, position].float().cpu()
    mean = usual.mean.get(layer)
    return _Scored(
        layer,
        coefficients,
        lm.weights.W_out[layer].float().norm(dim=-1).cpu(),
        coefficients * per_unit,
        None if mean is None else (coefficients - mean) * per_unit,
        usual.always_on.get(layer, torch.zeros(len(per_unit), dtype=torch.bool)),
    )


def _largest(
    scored: Sequence[_Scored], sizes: Sequence[Float[Tensor, " d_mlp"]], apart: bool, top: int | None
) -> list[tuple[int, int]]:
    """Layer and index of the largest of those that are always on, or of the others; all of them when `top` is None."""
    among = torch.cat([torch.where(one.always == apart, size, -1.0) for one, size in zip(scored, sizes, strict=True)])
    names = [(one.layer, i) for one in scored for i in range(len(one.effects))]
    count = int((among >= 0).sum()) if top is None else min(top, int((among >= 0).sum()))
    return [names[i] for i in among.topk(count).indices.tolist()]


def _rows(
    lm: Decoder,
    run: Run,
    scored: Sequence[_Scored],
    keys: Sequence[tuple[int, int]],
    position: int,
    usual: UsualCoefficients,
    k: int,
    show_unlearned: bool,
) -> dict[tuple[int, int], SubUpdate]:
    """The sub-updates of some memories; all values are read in one pass."""
    by_layer = {one.layer: one for one in scored}
    chosen = [(n, [i for layer, i in keys if layer == n]) for n in by_layer]
    scores = [by_layer[n].effects[index].tolist() for n, index in chosen]
    found = sub_updates_at(lm, run, chosen, position, scores, k=k, show_unlearned=show_unlearned)
    return {(row.layer, row.index): _compared(row, by_layer[row.layer], usual) for part in found for row in part}


def _most(scored: Sequence[_Scored]) -> tuple[int, int, float] | None:
    best = max(
        (float(one.max()), layer.layer, int(one.argmax()))
        for layer in scored
        for one in [torch.where(layer.always, -torch.inf, layer.effects)]
    )
    return (best[1], best[2], best[0]) if best[0] > 0 else None


def _compared(row: SubUpdate, layer: _Scored, usual: UsualCoefficients) -> SubUpdate:
    known = usual.usual.get(row.layer)
    size = 0.0 if known is None else float(known[row.index])
    return replace(
        row,
        times_usual=abs(row.coefficient) / size if size > 0 else None,
        deviation=None if layer.deviations is None else float(layer.deviations[row.index]),
        always_on=bool(layer.always[row.index]),
    )
