"""Measure how much the final norm changes a value vector's top tokens: the overlap of the lists with and without it.

Source: Geva et al. 2022, appendix A.1 (Fig. 4): intersection over union of the top 30 tokens of E v and of E LN(v).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.lens import read
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder

TOP = 30


def vectors_like(
    values: Float[Tensor, "value d_model"], n: int, generator: torch.Generator
) -> Float[Tensor, "n d_model"]:
    """Draw vectors from a normal distribution with the value vectors' mean and standard deviation in each dimension.

    Source: Geva et al. 2022, section 4, which does not state whether the moments are per dimension.
    """
    wide = values.float()
    noise = torch.randn(n, values.shape[1], generator=generator).to(wide.device)
    return (wide.mean(dim=0) + noise * wide.std(dim=0)).to(values.dtype)


def overlap(a: Int[Tensor, "row k"], b: Int[Tensor, "row k"]) -> Float[Tensor, " row"]:
    """Return the intersection over union of the tokens in each row of a and b; the tokens of a row must be distinct."""
    shared = (a[:, :, None] == b[:, None, :]).flatten(1).sum(dim=1).double()
    return shared / (a.shape[1] + b.shape[1] - shared)


@torch.no_grad()
def norm_overlap(
    lm: Decoder,
    vectors: Float[Tensor, "row d_model"],
    top: int = TOP,
    *,
    hidden: Bool[Tensor, " d_vocab"] | None = None,
    normed: Float[Tensor, "row d_model"] | None = None,
) -> Float[Tensor, " row"]:
    """Return the overlap of each vector's top tokens without and with the final norm (gain and bias included).

    Args:
        vectors: the vectors; the norm is applied to each as if it were the whole stream.
        top: number of top tokens compared.
        hidden: a mask of tokens to leave out of both lists, such as those that the model never learned.
        normed: other vectors to which the norm is applied, row by row; `vectors` when None.

    Returns:
        Intersection over union, 0 to 1; 1 everywhere where the model has no final norm.

    Raises:
        InvalidInput: `top` is less than 1.
    """
    if top < 1:
        raise InvalidInput(f"the top {top} tokens", why="at least one token must be compared")
    other = vectors if normed is None else normed
    raw = read(lm, vectors.to(lm.dtype), top, basis="raw", hidden=hidden).ids
    return overlap(raw, read(lm, other.to(lm.dtype), top, basis="final", hidden=hidden).ids)


@dataclass(frozen=True, eq=False)
class NormOverlaps:
    """Overlaps of two lists of top tokens, one computed without the final norm, the other with it.

    The two lists are of the same vector, or of a value vector and a random vector, as a control.
    """

    values: Float[Tensor, " value"]
    """For each value vector: the overlap of its top tokens without and with the norm."""
    random: Float[Tensor, " value"]
    """For each random vector: the overlap of its top tokens without and with the norm."""
    value_with_random: Float[Tensor, " value"]
    """The overlap of the top tokens of a value vector without the norm with those of a random vector with the norm."""
    random_with_value: Float[Tensor, " value"]
    """The overlap of the top tokens of a random vector without the norm with those of a value vector with the norm."""


@torch.no_grad()
def value_norm_overlaps(
    lm: Decoder,
    layer: int,
    per_layer: int | None = None,
    *,
    seed: int = 0,
    hidden: Bool[Tensor, " d_vocab"] | None = None,
    signs: Float[Tensor, " value"] | None = None,
) -> NormOverlaps:
    """Measure `norm_overlap` of a layer's value vectors, of similar random vectors, and of one kind with the other.

    Args:
        per_layer: number of value vectors to draw at random; all when None.
        signs: one factor (1 or -1) for each value vector; see `unembed.memories.value_signs`. No factors when None.
    """
    values = written_values(lm, lm.layer(layer))
    if signs is not None:
        values = values * signs[:, None].to(values)
    generator = torch.Generator().manual_seed(seed)
    n = len(values) if per_layer is None else min(per_layer, len(values))
    chosen = values[torch.randperm(len(values), generator=generator)[:n].to(values.device)]
    random = vectors_like(values, n, generator)
    return NormOverlaps(
        norm_overlap(lm, chosen, hidden=hidden),
        norm_overlap(lm, random, hidden=hidden),
        norm_overlap(lm, chosen, hidden=hidden, normed=random),
        norm_overlap(lm, random, hidden=hidden, normed=chosen),
    )
