"""The memories (FFN neurons) behind a prediction: sub-updates by what they add to the difference of two logits.

Memories that are on for nearly every token are listed apart: they are among the largest of every prompt, whatever it
says. Silent ones (coefficient 0) add nothing and are in no list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unembed.logit_attribution import memory_contributions_at
from unembed.memories.top_sub_updates import SubUpdate, sub_updates_at
from unembed.models.decoder import Decoder
from unembed.results import Provenance, Table
from unembed.results.display import Displayed
from unembed.stream.run import Run
from unembed.trace.question import Question
from unembed.trace.usual_coefficients import UsualCoefficients
from unembed.validation import positive_int


@dataclass(frozen=True, eq=False, repr=False)
class MemoryEffects(Displayed):
    """Sub-updates with the largest effects on a logit, or on a difference of two; `score` is the effect, in logits."""

    question: Question
    rows: list[SubUpdate]
    """The largest effects of either sign, largest first, without those that are always on."""
    always_on: list[SubUpdate]
    """Memories that are on for nearly every token, in the same order."""
    most: tuple[int, int, float] | None
    """Layer, index and effect of the memory that adds most; None where none that is not always on adds anything."""
    memories: int
    """Memories of the layers, silent ones included."""
    others: int
    """Active memories that no list holds."""
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
            "memory": [f"L{row.layer}M{row.index}" for row in rows],
            "coefficient": [row.coefficient for row in rows],
            "times_usual": [row.times_usual for row in rows],
            "effect": [row.score for row in rows],
            "share": [row.share for row in rows],
            "always_on": [i >= len(self.rows) for i in range(len(rows))],
            "promotes": [" ".join(token.strip() for token in row.promoted[:5]) for row in rows],
        }
        return Table("Memories by their effect on the question", columns, self.provenance)


@torch.no_grad()
def memory_effects(
    lm: Decoder,
    run: Run,
    asked: Question,
    position: int,
    layers: Sequence[int],
    top: int,
    usual: UsualCoefficients,
    *,
    k: int = 10,
    show_unlearned: bool = False,
) -> MemoryEffects:
    """The memories of some layers with the largest effects on a question at a position.

    Args:
        lm: the model.
        run: a run of one prompt that captured the coefficients and the last resid_post.
        asked: the two tokens.
        position: the column of the run.
        layers: layers that have memories.
        top: how many to list, beside those that are always on.
        usual: which memories are always on, and how large coefficients usually are.
        k: how many tokens of each value to list.
        show_unlearned: include tokens that the model never learned.

    Raises:
        Unsupported: a layer has no memories.
    """
    effects = [
        effect.float().cpu()
        for effect in memory_contributions_at(lm, run, layers, position, asked.token, asked.against)
    ]
    always = [
        usual.always_on.get(n, torch.zeros(len(e), dtype=torch.bool)) for n, e in zip(layers, effects, strict=True)
    ]
    active = [run.at("coefficients", n)[0, position].cpu() != 0 for n in layers]
    listed = _largest(
        layers, effects, [on & ~a for on, a in zip(active, always, strict=True)], positive_int("top", top)
    )
    apart = _largest(layers, effects, [on & a for on, a in zip(active, always, strict=True)], None)
    by_layer = {n: [i for layer, i in listed + apart if layer == n] for n in layers}
    scores = [effects[at][by_layer[n]].tolist() for at, n in enumerate(layers)]
    found = sub_updates_at(lm, run, list(by_layer.items()), position, scores, k=k, show_unlearned=show_unlearned)
    rows = {(row.layer, row.index): _compared(row, usual) for part in found for row in part}
    sizes = sum(float(e.double().sum()) for e in effects)
    shown = sum(row.score or 0.0 for row in rows.values())
    return MemoryEffects(
        asked,
        [rows[key] for key in listed],
        [rows[key] for key in apart],
        _most(layers, effects, always),
        sum(len(effect) for effect in effects),
        sum(int(on.sum()) for on in active) - len(rows),
        sizes - shown,
        lm.provenance(basis="frozen"),
    )


def _largest(
    layers: Sequence[int],
    effects: Sequence[Float[Tensor, " d_mlp"]],
    among: Sequence[Bool[Tensor, " d_mlp"]],
    top: int | None,
) -> list[tuple[int, int]]:
    """Layer and index of the memories with the largest effects, largest first; all of them when `top` is None."""
    sizes = torch.cat([torch.where(one, e.abs(), -1.0) for e, one in zip(effects, among, strict=True)])
    names = [(n, i) for n, e in zip(layers, effects, strict=True) for i in range(len(e))]
    count = int((sizes >= 0).sum()) if top is None else min(top, int((sizes >= 0).sum()))
    return [names[i] for i in sizes.topk(count).indices.tolist()]


def _most(
    layers: Sequence[int], effects: Sequence[Float[Tensor, " d_mlp"]], always: Sequence[Bool[Tensor, " d_mlp"]]
) -> tuple[int, int, float] | None:
    best = max(
        ((float(one.max()), n, int(one.argmax())) for n, e, a in zip(layers, effects, always, strict=True)
         for one in [torch.where(a, -torch.inf, e)]),
    )  # fmt: skip
    return (best[1], best[2], best[0]) if best[0] > 0 else None


def _compared(row: SubUpdate, usual: UsualCoefficients) -> SubUpdate:
    known = usual.usual.get(row.layer)
    size = 0.0 if known is None else float(known[row.index])
    return replace(row, times_usual=abs(row.coefficient) / size) if size > 0 else row
