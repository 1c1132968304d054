"""Score the output side of a description: whether adding the value raises the tokens that it names.

The value, with the sign of the coefficient, is added to the stream after its layer at the end of a few passages, at a
tenth of the stream's length there, and the layers that follow are run (`memories.value_effects`). The change of each
token's logit, averaged over the passages, is compared with those of tokens that are as frequent in the index's text:
the score is the mean share of them that rise less than a named token does. Chance gives 0.5. The
control is the same share for the tokens that descriptions of other memories (FFN neurons) of the layer name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.atlas.input_score import QUANTILE
from unembed.concepts.detection import find_concepts
from unembed.concepts.token_classes import Classes

NAMED = 8
"""The most tokens that a description names."""
READ = 30
"""Top tokens of a value among which a class of tokens is looked for."""
OTHERS = 200
"""Descriptions of other memories that the control has at most."""
_CONCEPT = 6
"""Fewest tokens of a class that a description names."""
_FEWEST = 64
"""Fewest tokens in a group of equal frequency."""


@dataclass(frozen=True)
class NamedTokens:
    """The tokens that a description says a value raises."""

    tokens: tuple[int, ...]
    name: str | None
    """The class that they are in; None if nothing is claimed about them."""


@dataclass(frozen=True)
class OutputScore:
    """How far adding a value raises the tokens that its description names."""

    score: float
    """Mean share of equally frequent tokens that rise less than a named one, 0 to 1."""
    control: float
    """The 95 % quantile of that share for what other descriptions of the layer name."""

    @property
    def passes(self) -> bool:
        """Tell whether the score exceeds the control."""
        return self.score > self.control


def named_tokens(classes: Classes, ids: Int[np.ndarray, "memory k"]) -> list[NamedTokens]:
    """Choose from each list of top tokens what a description names: a class with `_CONCEPT` of them, or the first ones.

    Args:
        ids: the tokens that each value promotes most, the most promoted first.
    """
    concepts = (next((c for c in row if c.counted), None) for row in find_concepts(classes, ids))
    return [
        NamedTokens(tuple(row[:NAMED].tolist()), None)
        if concept is None or len(concept.members) < _CONCEPT
        else NamedTokens(tuple(concept.members[:NAMED]), concept.name)
        for concept, row in zip(concepts, ids, strict=True)
    ]


def frequency_groups(counts: Int[np.ndarray, " vocab"]) -> list[Int[Tensor, "_"]]:
    """Group tokens by how often a text has them, by powers of two; a small group joins the next more frequent one."""
    powers = np.ceil(np.log2(counts + 1)).astype(np.int64)
    groups: list[Int[np.ndarray, "_"]] = []
    waiting: list[Int[np.ndarray, "_"]] = []
    for power in np.unique(powers):
        waiting.append(np.flatnonzero(powers == power))
        if sum(map(len, waiting)) >= _FEWEST:
            groups.append(np.concatenate(waiting))
            waiting = []
    if waiting:
        last = [groups.pop()] if groups else []
        groups.append(np.concatenate([*last, *waiting]))
    return [torch.from_numpy(group) for group in groups]


def shares_below(
    effects: Float[Tensor, "memory vocab"], groups: Sequence[Int[Tensor, "_"]]
) -> Float[Tensor, "memory vocab"]:
    """Return for each token the share of the other tokens of its group that rise less; equal ones count half."""
    found = torch.full(effects.shape, 0.5)
    for group in groups:
        rows = effects[:, group].float().cpu().contiguous()
        ordered = rows.sort(dim=1).values
        below = torch.searchsorted(ordered, rows) + torch.searchsorted(ordered, rows, right=True) - 1
        found[:, group] = below.float() / (2 * max(1, len(group) - 1))
    return found


def output_scores(
    shares: Float[Tensor, "memory vocab"],
    named: Sequence[NamedTokens],
    others: Sequence[Sequence[NamedTokens]],
) -> list[OutputScore]:
    """Score what the descriptions of some memories name.

    Args:
        shares: `shares_below` of the effects of each memory.
        named: what its description names.
        others: what descriptions of other memories of its layer name.
    """
    found = []
    for row, own, controls in zip(shares, named, others, strict=True):
        score = float(row[list(own.tokens)].mean())
        width = max([1, *(len(one.tokens) for one in controls)])
        table = torch.zeros(len(controls), width, dtype=torch.long)
        known = torch.zeros(len(controls), width)
        for i, one in enumerate(controls):
            table[i, : len(one.tokens)] = torch.tensor(one.tokens)
            known[i, : len(one.tokens)] = 1
        if not len(controls):
            found.append(OutputScore(score, 1.0))
            continue
        means = (row[table] * known).sum(dim=1) / known.sum(dim=1)
        found.append(OutputScore(score, float(means.quantile(QUANTILE, interpolation="higher"))))
    return found
