"""Semi-non-negative factors of memory coefficients: coefficients = activations of groups, times the groups' weights.

A group has a weight of either sign for each memory (FFN neuron), and an activation of at least 0 at each position. It
stands for memories that are active together, whatever their value vectors are. Sources: the multiplicative updates of
Ding, Li and Jordan 2010 (section 3), by which the error never grows; Shafran et al. 2025, who factor the coefficients
of an FFN and read a group's weights times W_out as the group's value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput

STEPS = 100
"""Number of updates of weights and activations."""
_START = 0.2
"""Initial activation of every group at every position; 1 is added to it for the group nearest to the position."""


@dataclass(frozen=True, eq=False)
class Factors:
    """Two factors whose product approximates the coefficients: groups of memories, and the groups' activations."""

    weights: Float[Tensor, "group memory"]
    """The weight of each memory in each group, of either sign; each group's weights have length 1."""
    activations: Float[Tensor, "position group"]
    """How active each group is at each position; at least 0."""
    errors: tuple[float, ...]
    """After each step: the squared error of activations @ weights, as a share of the sum of squared coefficients."""


def semi_nmf(
    coefficients: Float[Tensor, "position memory"], n_groups: int, *, steps: int = STEPS, seed: int = 0
) -> Factors:
    """Factor coefficients into activations of groups and weights of memories.

    At the start, each position belongs to the nearest, by cosine, of `n_groups` positions drawn at random.

    Raises:
        InvalidInput: there are more groups than positions at which some coefficient is not 0.

    Memory: four tensors of the shape of the activations.
    """
    x = coefficients
    alive = torch.nonzero(x.norm(dim=1) > 0)[:, 0]
    if not 1 <= n_groups <= len(alive):
        raise InvalidInput(
            f"{n_groups} groups of memories", why=f"{len(alive)} positions have coefficients other than 0"
        )
    drawn = torch.randperm(len(alive), generator=torch.Generator().manual_seed(seed))[:n_groups]
    units = x / x.norm(dim=1, keepdim=True).clamp_min(1e-30)
    nearest = (units @ units[alive[drawn.to(alive.device)]].T).argmax(dim=1)
    activations = torch.full((len(x), n_groups), _START, dtype=x.dtype, device=x.device)
    activations[torch.arange(len(x), device=x.device), nearest] += 1
    total, errors = x.square().sum(), list[float]()
    weights = x.new_zeros(n_groups, x.shape[1])
    for _ in range(steps):
        weights = torch.linalg.pinv(activations.T @ activations, hermitian=True) @ (activations.T @ x)
        explained, products = x @ weights.T, weights @ weights.T
        activations = _updated(activations, explained, products)
        errors.append(float(1 + ((activations @ products - 2 * explained) * activations).sum() / total))
    lengths = weights.norm(dim=1).clamp_min(1e-30)
    return Factors(weights / lengths[:, None], activations * lengths, tuple(errors))


def group_activations(
    coefficients: Float[Tensor, "position memory"], weights: Float[Tensor, "group memory"], *, steps: int = STEPS
) -> Float[Tensor, "position group"]:
    """Return activations, at least 0, that explain coefficients by fixed weights; they are updated as in `semi_nmf`."""
    explained, products = coefficients @ weights.T, weights @ weights.T
    activations = explained.clamp_min(0) + _START * explained.abs().mean()
    for _ in range(steps):
        activations = _updated(activations, explained, products)
    return activations


def _updated(
    activations: Float[Tensor, "position group"],
    explained: Float[Tensor, "position group"],
    products: Float[Tensor, "group group"],
) -> Float[Tensor, "position group"]:
    """Return the activations after one step.

    Args:
        explained: coefficients @ weights.T, the dot product of each position's coefficients with each group's weights.
        products: weights @ weights.T, the dot products of the groups' weights with one another.
    """
    more = explained.clamp_min(0) + activations @ (-products).clamp_min(0)
    less = (-explained).clamp_min(0) + activations @ products.clamp_min(0)
    return activations * (more / less.clamp_min(1e-30)).sqrt()
