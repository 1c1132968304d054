"""Measure how much the final norm changes a value's top tokens: the overlap of both lists.

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
    """Draw vectors from a normal distribution with the values' mean and standard deviation in each dimension.

    Source: Geva et al. 2022, section 4 (whether per dimension or not is not stated there).
    """
    wide = values.float()
    noise = torch.randn(n, values.shape[1], generator=generator).to(wide.device)
    return (wide.mean(dim=0) + noise * wide.std(dim=0)).to(values.dtype)


def overlap(a: Int[Tensor, "row k"], b: Int[Tensor, "row k"]) -> Float[Tensor, " row"]:
    """Return intersection over union of two sets of tokens in each row; the tokens of a row must be distinct."""
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
    """Return the overlap of each vector's top tokens read raw and through the final norm (gain and bias included).

    Args:
        vectors: the vectors of the stream; the norm takes each as if it were the whole stream.
        top: tokens compared.
        hidden: tokens left out of both readings (never learned ones).
        normed: other vectors to read through the norm, row by row; the same ones when None.

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
    """Overlaps of top tokens read raw and through the final norm, of each vector with itself and with another."""

    values: Float[Tensor, " value"]
    """Each value with itself."""
    random: Float[Tensor, " value"]
    """Each random vector with itself."""
    value_with_random: Float[Tensor, " value"]
    """A value read raw, a random vector read through the norm."""
    random_with_value: Float[Tensor, " value"]
    """A random vector read raw, a value read through the norm."""


@torch.no_grad()
def value_norm_overlaps(
    lm: Decoder,
    layer: int,
    per_layer: int | None = None,
    *,
    seed: int = 0,
    top: int = TOP,
    hidden: Bool[Tensor, " d_vocab"] | None = None,
    signs: Float[Tensor, " value"] | None = None,
) -> NormOverlaps:
    """Measure `norm_overlap` of a layer's values, of similar random vectors, and of each with the other.

    Args:
        layer: the layer whose values are meant.
        per_layer: how many of them to draw; all when None.
        seed: the seed of both draws.
        top: tokens compared.
        hidden: tokens left out of all readings.
        signs: multiply the layer's values; see `unembed.memories.value_signs`. Values as they are when None.
    """
    values = written_values(lm, lm.layer(layer))
    if signs is not None:
        values = values * signs[:, None].to(values)
    generator = torch.Generator().manual_seed(seed)
    n = len(values) if per_layer is None else min(per_layer, len(values))
    chosen = values[torch.randperm(len(values), generator=generator)[:n].to(values.device)]
    random = vectors_like(values, n, generator)
    return NormOverlaps(
        norm_overlap(lm, chosen, top, hidden=hidden),
        norm_overlap(lm, random, top, hidden=hidden),
        norm_overlap(lm, chosen, top, hidden=hidden, normed=random),
        norm_overlap(lm, random, top, hidden=hidden, normed=chosen),
    )
