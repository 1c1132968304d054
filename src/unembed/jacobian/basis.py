"""The basis "jacobian": use a model's fitted lens to map vectors to the end of the model, before the unembedding.

A whole residual stream is mapped affinely, and then goes through the model's own final norm. A vector that is added to
the stream (a value vector, a head's output, any direction) is mapped linearly. Its scores are the product with W_U,
minus their mean over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.errors import InvalidInput
from unembed.jacobian.lens_cache import identity_of, sample_step
from unembed.models.decoder import Decoder
from unembed.names import Basis, StreamPoint

if TYPE_CHECKING:
    from unembed.jacobian.lens import JacobianLens


def lens_of(lm: Decoder) -> JacobianLens | None:
    """Return the fitted lens that `lm.use_lens` set; None if the model has no lens."""
    return getattr(lm, "lens", None)


def lens_identity(lm: Decoder) -> str | None:
    """Return a hash of 12 hexadecimal digits that identifies the model's fitted lens; None if it has no lens."""
    lens = lens_of(lm)
    if lens is None:
        return None
    numbers = lens.before.flatten()
    return identity_of(numbers[:: sample_step(len(numbers))].float().cpu().numpy())


def basis_or_default(lm: Decoder, basis: Basis | None, without: Basis) -> Basis:
    """Return `basis` if it is not None; else "jacobian" if the model has a fitted lens; else `without`."""
    if basis is not None:
        return basis
    if lens_of(lm) is not None:
        return "jacobian"
    say = getattr(lm, "on_logit_lens", None)
    if say is not None:
        lm.on_logit_lens = None  # pyright: ignore[reportAttributeAccessIssue]
        say()
    return without


@contextmanager
def reading_by(lm: Decoder, lens: JacobianLens | None) -> Iterator[JacobianLens | None]:
    """Context manager inside which the model uses another lens, or the logit lens if `lens` is None.

    It yields the model's previous lens, and sets it again at the end.
    """
    own = lens_of(lm)
    if own is lens:
        yield own
        return
    lm.lens = lens  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield own
    finally:
        lm.lens = own  # pyright: ignore[reportAttributeAccessIssue]


def fitted_lens(lm: Decoder) -> JacobianLens:
    """Return the fitted lens of a model.

    Raises:
        InvalidInput: the model has no fitted lens.
    """
    if (lens := lens_of(lm)) is None:
        raise InvalidInput(
            f"basis 'jacobian' for {lm.name}",
            why="no lens is fitted",
            instead="Fit one (lm.fit_lens, `unembed fit-lens`), or give one (lm.use_lens, --lens FILE)",
        )
    return lens


@torch.no_grad()
def carried_streams(
    lm: Decoder, x: Float[Tensor, "layer pos d_model"], point: StreamPoint, layers: range | None = None
) -> Float[Tensor, "layer pos d_model"]:
    """Map residual streams, before the final norm, to the last residual streams that follow from them on average.

    Args:
        x: residual streams, in the order of `layers`.
        point: the capture point of the streams.
        layers: the layers of the streams; by default the first `len(x)` layers.

    Raises:
        InvalidInput: the model has no fitted lens.
    """
    lens, chosen = fitted_lens(lm), range(len(x)) if layers is None else layers
    return torch.stack([lens.carried(rows, n, point) for n, rows in zip(chosen, x, strict=True)]).to(x.dtype)


@torch.no_grad()
def carried_parts(
    lm: Decoder, vectors: Float[Tensor, "row d_model"], layer: int, point: StreamPoint = "resid_post"
) -> Float[Tensor, "row d_model"]:
    """Map vectors that are added to the residual stream to vectors whose products with W_U are their token scores.

    These scores are not centred: their mean over the vocabulary is not subtracted.

    Raises:
        InvalidInput: the model has no fitted lens.
    """
    return fitted_lens(lm).readable(vectors, layer, point).to(vectors.dtype)


@torch.no_grad()
def mean_scores(lm: Decoder, readable: Float[Tensor, "row d_model"]) -> Float[Tensor, " row"]:
    """Return the mean over the vocabulary of the scores of vectors that `carried_parts` returned."""
    return readable.float() @ mean_unembedding(lm)


def mean_unembedding(lm: Decoder) -> Float[Tensor, " d_model"]:
    """Return the mean over the vocabulary of the columns of W_U."""
    return lm.once((__name__, "mean unembedding"), lambda: lm.weights.W_U.mean(dim=1, dtype=torch.float32))


def in_basis(
    lm: Decoder, vectors: Float[Tensor, "row d_model"], layer: int, basis: Basis, point: StreamPoint = "resid_post"
) -> tuple[Float[Tensor, "row d_model"], Basis]:
    """Prepare vectors that are added to the residual stream for a projection to logits.

    Returns:
        The vectors and the basis in which to project them. For "jacobian", these are the vectors as mapped by the lens,
        and "raw"; for another basis, both are returned unchanged.
    """
    return (carried_parts(lm, vectors, layer, point), "raw") if basis == "jacobian" else (vectors, basis)
