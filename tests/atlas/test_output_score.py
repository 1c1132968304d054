"""The output score against ranks by hand, with a planted effect and with none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unembed.atlas.output_score import NamedTokens, frequency_groups, named_tokens, output_scores, shares_below
from unembed.concepts.token_classes import Classes

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


def test_shares_are_those_of_counting_the_group() -> None:
    effects = torch.randint(0, 6, (3, 40), generator=GENERATOR).float()
    groups = [torch.arange(0, 25), torch.arange(25, 40)]
    found = shares_below(effects, groups)
    for row in range(3):
        for group in groups:
            for token in group.tolist():
                rest = effects[row, group[group != token]]
                below = (rest < effects[row, token]).double() + 0.5 * (rest == effects[row, token]).double()
                assert float(found[row, token]) == pytest.approx(float(below.mean()), abs=1e-6)


def test_planted_tokens_pass_and_tokens_of_others_pass_as_chance_says() -> None:
    n, vocab = 200, 2000
    effects = torch.randn(n, vocab, generator=GENERATOR)
    names = [NamedTokens(tuple(torch.randperm(vocab, generator=GENERATOR)[:5].tolist()), None) for _ in range(n)]
    for row, one in enumerate(names):
        effects[row, list(one.tokens)] += 2
    shares = shares_below(effects, [torch.arange(vocab)])
    others = [[one for one in names if one is not own] for own in names]
    own = output_scores(shares, names, others)
    assert sum(one.passes for one in own) > 0.95 * n
    random = output_scores(shares, names[1:] + names[:1], others)
    assert sum(one.passes for one in random) < 0.1 * n  # 5 %, with three standard deviations of 200 draws


def test_without_other_descriptions_nothing_passes() -> None:
    (found,) = output_scores(torch.rand(1, 9), [NamedTokens((1, 2), None)], [[]])
    assert not found.passes


def test_a_class_is_named_only_where_most_named_tokens_are_in_it() -> None:
    words = [f" {year}" for year in range(1900, 1910)] + [f" {n}" for n in range(300)]
    years = np.arange(10)[None]
    words += [f" x{chr(97 + i)}q" for i in range(300)]
    mixed = np.array([[0, 1, *range(400, 408)]])
    classes = Classes.build(words)
    assert named_tokens(classes, years)[0] == NamedTokens(tuple(range(8)), "years")
    assert named_tokens(classes, mixed)[0] == NamedTokens(tuple(mixed[0, :8].tolist()), None)
