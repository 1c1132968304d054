"""Score the output side of a description: whether adding the value raises the tokens that it names.

How far tokens rise when a value is added, `effects` says. A token's rise is compared with those of tokens that are as
frequent in the index's text, at most 512 drawn at random: the score is the mean share of them that rise less than a
named token does. Chance gives 0.5.
The control is the same share for the tokens that other descriptions of the layer name (`controls`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.atlas.coherence import NamedTokens
from unembed.atlas.controls import bounds, chances

COMPARED = 512
"""The most tokens of like frequency with which a token is compared."""
_DIGITS = 9
"""Of scores: rounding does not separate equal ones."""
_FEWEST = 64
"""Fewest tokens in a group of equal frequency."""


@dataclass(frozen=True)
class OutputScore:
    """How far adding a value raises the tokens that its description names."""

    score: float
    """Mean share of equally frequent tokens that rise less than a named one, 0 to 1."""
    control: float
    """The 95 % quantile of that share for what other descriptions of the layer name; infinite if these are too few."""
    chance: float
    """The p-value of the score: its rank among those of the other descriptions."""
    random_passes: bool | None
    """Whether the tokens of another description of the layer, drawn at random, pass the same test."""

    @property
    def passes(self) -> bool:
        """Tell whether the score exceeds the control."""
        return self.score > self.control


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


class TokenShares:
    """Compares how much tokens rise with tokens of like frequency."""

    def __init__(self, counts: Int[np.ndarray, " vocab"], seed: int = 0) -> None:
        """Group the vocabulary by how often a text has each token, and draw what each group is compared with."""
        rng = np.random.default_rng(seed)
        groups = frequency_groups(counts)
        self._group = torch.zeros(len(counts), dtype=torch.long)
        for number, group in enumerate(groups):
            self._group[group] = number
        self.compared = [group[torch.from_numpy(rng.permutation(len(group))[:COMPARED])] for group in groups]
        self._is_compared = torch.zeros(len(counts), dtype=torch.bool)
        self._is_compared[torch.cat(self.compared)] = True

    def below(
        self, effects: Float[Tensor, "memory vocab"], tokens: Int[Tensor, " token"]
    ) -> Float[Tensor, "memory token"]:
        """Return for each token the share of the other compared ones that rise less; equal ones count half.

        Memory: twice the result.
        """
        found = torch.full((len(effects), len(tokens)), 0.5)
        groups = self._group[tokens]
        for number in groups.unique().tolist():
            at = torch.nonzero(groups == number)[:, 0]
            ordered = effects[:, self.compared[number]].float().cpu().sort(dim=1).values
            rows = effects[:, tokens[at]].float().cpu().contiguous()
            below = torch.searchsorted(ordered, rows) + torch.searchsorted(ordered, rows, right=True)
            itself = self._is_compared[tokens[at]].long()
            found[:, at] = (below - itself).float() / (2 * (ordered.shape[1] - itself).clamp_min(1))
        return found


class OutputTest:
    """Tests what some descriptions name against what other descriptions of the layer name."""

    def __init__(
        self, shares: TokenShares, named: Mapping[int, NamedTokens], controls: Sequence[tuple[int, NamedTokens]]
    ) -> None:
        """Collect the tokens of all descriptions.

        Args:
            named: by any number, the descriptions to test.
            controls: what other descriptions name, each with the number in the layer of the memory that it is about.
        """
        self._shares, self._named = shares, named
        lists = [*named.values(), *(one for _, one in controls)]
        self._tokens = torch.tensor(sorted({token for one in lists for token in one.tokens}), dtype=torch.long)
        self._index = np.array([index for index, _ in controls], dtype=np.int64)
        width = max([1, *(len(one.tokens) for _, one in controls)])
        self._rows = torch.zeros(len(controls), width, dtype=torch.long)
        self._known = torch.zeros(len(controls), width)
        for i, (_, one) in enumerate(controls):
            self._rows[i, : len(one.tokens)] = self._places(one)
            self._known[i, : len(one.tokens)] = 1

    def _places(self, named: NamedTokens) -> Int[Tensor, " token"]:
        return torch.searchsorted(self._tokens, torch.tensor(named.tokens, dtype=torch.long))

    def scores(
        self,
        effects: Float[Tensor, "memory vocab"],
        tested: Sequence[tuple[int, int]],
        random: Sequence[tuple[int, int] | None] | None = None,
    ) -> list[OutputScore]:
        """Score descriptions by the effects of the values that they are about.

        Args:
            effects: how far each value raises every token.
            tested: for each value, the number of its description and of its memory in the layer.
            random: the same of another description, which is tested on this value; None tests none.
        """
        random = [None] * len(tested) if random is None else random
        shares = self._shares.below(effects, self._tokens).double()
        controls = ((shares[:, self._rows] * self._known).sum(dim=2) / self._known.sum(dim=1)).numpy().round(_DIGITS)
        owners = np.array([index for _, index in tested])
        counted = self._index != owners[:, None]
        limits = bounds(controls, counted)
        others = np.array([-1 if one is None else one[1] for one in random])
        of_random = bounds(controls, counted & (self._index != others[:, None]))
        own = np.array([self._mean(row, number) for row, (number, _) in zip(shares, tested, strict=True)])
        chance = chances(own, controls, counted)
        found = []
        for i, other in enumerate(random):
            passed = None if other is None else bool(self._mean(shares[i], other[0]) > of_random[i])
            found.append(OutputScore(float(own[i]), float(limits[i]), float(chance[i]), passed))
        return found

    def _mean(self, shares: Float[Tensor, " token"], number: int) -> float:
        return round(float(shares[self._places(self._named[number])].mean()), _DIGITS)
