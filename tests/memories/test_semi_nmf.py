"""Semi-non-negative factors: updates by definition, an error that falls, planted groups found, shuffled ones not."""

from __future__ import annotations

import pytest
import torch

from unembed.errors import InvalidInput
from unembed.memories.semi_nmf import Factors, group_activations, semi_nmf

POSITIONS, MEMORIES, GROUPS = 600, 40, 5


@pytest.fixture(scope="module")
def planted() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return coefficients, and the weights and activations from which they are made: few groups at each position."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(GROUPS, MEMORIES, generator=generator, dtype=torch.float64)
    weights /= weights.norm(dim=1, keepdim=True)
    size = torch.rand(POSITIONS, GROUPS, generator=generator, dtype=torch.float64)
    activations = (size + 0.5) * (torch.rand(POSITIONS, GROUPS, generator=generator) < 0.25)
    return activations @ weights, weights, activations


def best_cosines(found: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (found @ weights.T).max(dim=0).values


def test_the_error_falls_at_each_step_and_activations_are_not_negative(planted) -> None:
    noise = torch.randn(POSITIONS, MEMORIES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = semi_nmf(planted[0] + 0.3 * noise, GROUPS, steps=60)
    assert len(found.errors) == 60
    assert all(after <= before + 1e-10 for before, after in zip(found.errors, found.errors[1:], strict=False))
    assert (found.activations >= 0).all() and (found.weights < 0).any()
    torch.testing.assert_close(found.weights.norm(dim=1), torch.ones(GROUPS, dtype=torch.float64))
    x = planted[0] + 0.3 * noise
    error = (x - found.activations @ found.weights).square().sum() / x.square().sum()
    assert found.errors[-1] == pytest.approx(float(error), rel=1e-9)


def test_one_step_is_that_of_the_definition(planted) -> None:
    """Ding et al. 2010, equations 10 and 11, entry by entry: X' = F G', where F are weights, G activations."""
    x = planted[0][:30, :6]
    one, two = semi_nmf(x, 3, steps=1), semi_nmf(x, 3, steps=2)
    G = one.activations  # its columns are scaled: equation 11 is invariant to that, up to the scale of F
    F = torch.linalg.solve(G.T @ G, G.T @ x).T
    expected = torch.zeros_like(G)
    for i in range(len(x)):
        for k in range(3):
            XF, FF = x[i] @ F[:, k], F.T @ F[:, k]
            above = max(XF, 0) + sum(G[i, j] * max(-FF[j], 0) for j in range(3))
            below = max(-XF, 0) + sum(G[i, j] * max(FF[j], 0) for j in range(3))
            expected[i, k] = G[i, k] * (above / below) ** 0.5
    torch.testing.assert_close(two.activations @ two.weights, expected @ F.T, rtol=1e-9, atol=1e-12)


def test_planted_groups_are_found_and_not_in_shuffled_coefficients(planted) -> None:
    x, weights, _activations = planted
    found = min((semi_nmf(x, GROUPS, steps=400, seed=seed) for seed in range(4)), key=lambda one: one.errors[-1])
    assert best_cosines(found.weights, weights).min() > 0.95
    generator = torch.Generator().manual_seed(2)
    shuffled = torch.stack([column[torch.randperm(POSITIONS, generator=generator)] for column in x.T], dim=1)
    other: Factors = semi_nmf(shuffled, GROUPS, steps=400)
    assert best_cosines(other.weights, weights).max() < 0.9
    assert found.errors[-1] < 1e-6 and other.errors[-1] > 0.3


def test_activations_for_given_weights_are_the_least_squares_ones(planted) -> None:
    x, weights, activations = planted
    found = group_activations(x[:50], weights, steps=4000)
    torch.testing.assert_close(found, activations[:50], atol=2e-3, rtol=0)


def test_more_groups_than_positions_are_refused() -> None:
    with pytest.raises(InvalidInput, match="3 groups of memories: 2 positions"):
        semi_nmf(torch.eye(4)[[0, 1]], 3)
