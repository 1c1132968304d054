"""How far the final norm changes a value's top tokens: overlap of the top tokens read raw and through the norm.

Source: Geva et al. 2022, appendix A.1 (Fig. 4): intersection over union of the top 30 tokens of E v and of E LN(v).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.lens import read
from unembed.memories.values import written_values
from unembed.models.decoder import Decoder

TOP = 30


def vectors_like(
    values: Float[Tensor, "value d_model"], n: int, generator: torch.Generator
) -> Float[Tensor, "n d_model"]:
    """Vectors from a normal distribution with the values' mean and standard deviation in each dimension.

    Source: Geva et al. 2022, section 4 (whether per dimension or not is not stated there).
    """
    wide = values.float()
    noise = torch.randn(n, values.shape[1], generator=generator).to(wide.device)
    return (wide.mean(dim=0) + noise * wide.std(dim=0)).to(values.dtype)


def overlap(a: Int[Tensor, "row k"], b: Int[Tensor, "row k"]) -> Float[Tensor, " row"]:
    """Intersection over union of two sets of tokens in each row; tokens of a row differ."""
    shared = (a[:, :, None] == b[:, None, :]).flatten(1).sum(dim=1).double()
    return shared / (a.shape[1] + b.shape[1] - shared)


@torch.no_grad()
def norm_overlap(lm: Decoder, vectors: Float[Tensor, "row d_model"], top: int = TOP) -> Float[Tensor, " row"]:
    """For each vector, the overlap of its top tokens read raw and through the final norm (gain and bias included).

    Args:
        lm: the model.
        vectors: of the stream; the norm takes each as if it were the whole stream.
        top: tokens compared.

    Returns:
        Intersection over union, 0 to 1; 1 everywhere where the model has no final norm.

    Raises:
        InvalidInput: `top` is less than 1.
    """
    if top < 1:
        raise InvalidInput(f"the top {top} tokens", why="at least one token must be compared")
    raw, normed = (read(lm, vectors.to(lm.dtype), top, basis=basis).ids for basis in ("raw", "final"))
    return overlap(raw, normed)


@torch.no_grad()
def value_norm_overlap(
    lm: Decoder, layer: int, per_layer: int | None = None, *, seed: int = 0, top: int = TOP
) -> tuple[Float[Tensor, " value"], Float[Tensor, " random"]]:
    """`norm_overlap` of a layer's values (or of so many drawn from them) and of as many random vectors like them."""
    values = written_values(lm, lm.layer(layer))
    generator = torch.Generator().manual_seed(seed)
    n = len(values) if per_layer is None else min(per_layer, len(values))
    chosen = values[torch.randperm(len(values), generator=generator)[:n].to(values.device)]
    return norm_overlap(lm, chosen, top), norm_overlap(lm, vectors_like(values, n, generator), top)
