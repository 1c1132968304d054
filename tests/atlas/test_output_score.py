"""The output score against ranks by hand, with a planted effect and with none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unembed.atlas.named_words import NamedTokens
from unembed.atlas.output_score import OutputTest, TokenShares, frequency_groups

GENERATOR = torch.Generator().manual_seed(0)


def test_every_token_is_in_one_group_of_like_frequency() -> None:
    counts = np.random.default_rng(0).geometric(0.01, 3000)
    counts[:500] = 0
    groups = frequency_groups(counts)
    assert sorted(torch.cat(groups).tolist()) == list(range(3000))
    assert all(len(group) >= 64 for group in groups)
    assert len(groups) > 5
    largest = [counts[group].max() for group in groups]
    assert largest == sorted(largest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shares_are_those_of_counting_what_is_compared(dtype: torch.dtype) -> None:
    counts = np.repeat([1, 20], [700, 90])
    shares = TokenShares(counts)
    assert sorted(map(len, shares.compared)) == [90, 512]
    effects = torch.randint(0, 60, (3, 790), generator=GENERATOR).to(dtype)
    tokens = torch.randperm(790, generator=GENERATOR)[:200].sort().values
    found = shares.below(effects, tokens)
    for row in range(3):
        for place, token in enumerate(tokens.tolist()):
            group = next(group for group in shares.compared if counts[group[0]] == counts[token])
            rest = effects[row, group[group != token]]
            below = (rest < effects[row, token]).double() + 0.5 * (rest == effects[row, token]).double()
            assert float(found[row, place]) == pytest.approx(float(below.mean()), abs=1e-6)


def test_planted_tokens_pass_and_one_in_twenty_random_ones() -> None:
    n, vocab = 400, 2000
    effects = torch.randn(n, vocab, generator=GENERATOR)
    lists = [tuple(torch.randperm(vocab, generator=GENERATOR)[:5].tolist()) for _ in range(n)]
    for row, tokens in enumerate(lists):
        effects[row, list(tokens)] += 2
    named = {i: NamedTokens(tokens, None) for i, tokens in enumerate(lists)}
    test = OutputTest(TokenShares(np.ones(vocab, dtype=np.int64)), named, list(named.items()))
    scores = test.scores(effects, [(i, i) for i in range(n)], [((i + 1) % n, (i + 1) % n) for i in range(n)])
    assert sum(one.passes for one in scores) > 0.95 * n
    # 5 % and three standard deviations of 400 draws.
    assert sum(bool(one.random_passes) for one in scores) / n < 0.083


def test_the_control_is_a_rank_of_the_mean_shares_of_other_memories() -> None:
    effects = torch.randn(1, 300, generator=GENERATOR)
    lists = [tuple(torch.randperm(300, generator=GENERATOR)[: 1 + i % 4].tolist()) for i in range(50)]
    named = {i: NamedTokens(tokens, None) for i, tokens in enumerate(lists)}
    shares = TokenShares(np.ones(300, dtype=np.int64))
    (score,) = OutputTest(shares, named, list(named.items())).scores(effects, [(4, 4)], [None])
    means = [float(shares.below(effects, torch.tensor(one)).mean()) for i, one in enumerate(lists) if i != 4]
    assert score.control == pytest.approx(sorted(means)[47], abs=1e-6)  # rank 0.95 * 50, rounded up
    assert score.random_passes is None


def test_without_other_descriptions_nothing_passes() -> None:
    named = {0: NamedTokens((1, 2), None)}
    shares = TokenShares(np.ones(9, dtype=np.int64))
    (found,) = OutputTest(shares, named, []).scores(torch.rand(1, 9), [(0, 0)], [None])
    assert not found.passes
