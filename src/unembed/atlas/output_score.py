"""Score the output side of a description: whether adding the value vector raises the tokens that it names.

`effects` measures how far each token rises. The rise of a named token is compared with the rises of about equally
frequent tokens of the index's text, at most 512 drawn at random. The score is the share of these that rise less,
averaged over the named tokens. Chance gives 0.5. The control is the same score for the tokens that other descriptions
of the layer name (`controls`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.atlas.controls import bounds, chances
from unembed.atlas.named_words import NamedTokens

COMPARED = 512
"""Largest number of about equally frequent tokens with which a token is compared."""
_DIGITS = 9
"""Digits to which scores are rounded, so that rounding errors do not separate equal scores."""
_FEWEST = 64
"""Smallest number of tokens in a frequency group."""


@dataclass(frozen=True)
class OutputScore:
    """How far adding a value vector raises the tokens that its description names."""

    score: float
    """Share of equally frequent tokens that rise less than a named token, averaged over the named tokens; 0 to 1."""
    control: float
    """95 % quantile of the scores of the tokens that other descriptions of the layer name; infinity if there are fewer
    than 19 such descriptions."""
    chance: float
    """The p-value of the score, by its rank among the scores of the other descriptions."""
    random_passes: bool | None
    """Whether the tokens of another description of the layer pass the same test; None if that was not tested."""

    @property
    def passes(self) -> bool:
        """Whether the score exceeds the control."""
        return self.score > self.control


def frequency_groups(counts: Int[np.ndarray, " vocab"]) -> list[Int[Tensor, "_"]]:
    """Group tokens by their number of occurrences, in powers of two; a small group is merged with the next one."""
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
    """Compares how far a token rises with how far equally frequent tokens rise."""

    def __init__(self, counts: Int[np.ndarray, " vocab"], seed: int = 0) -> None:
        """Group the vocabulary by the number of occurrences of each token, and draw each group's comparison tokens."""
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
        """Return the share of the comparison tokens that rise less than each token; equal rises count half.

        Memory: twice the size of the result.
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
    """Tests the tokens that descriptions name, with the tokens of other descriptions of the layer as controls."""

    def __init__(
        self, shares: TokenShares, named: Mapping[int, NamedTokens], controls: Sequence[tuple[int, NamedTokens]]
    ) -> None:
        """Collect the tokens of all descriptions.

        Args:
            named: the tokens of each description to test; `scores` refers to the description by its key.
            controls: the tokens of other descriptions, each after its memory's index in the layer.
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
        """Score descriptions by the effects of the value vectors that they describe.

        Args:
            effects: for each value vector, how far adding it raises every token.
            tested: for each value vector, the key of its description in `named`, and its memory's index in the layer.
            random: for each value vector, the same pair for another memory, whose description is tested on this value
                vector as a control; None where there is no such test.
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
