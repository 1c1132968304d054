"""The basis "jacobian": vectors as the fitted lens of a model carries them to its end, ready for the unembedding.

Streams are carried affinely, and then read through the model's own final norm. A part of the stream (a value, a head's
output, any direction) is carried linearly: its scores are a product with W_U, centred over the vocabulary.
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
    """The fitted lens that `lm.use_lens` set; None where there is none."""
    return getattr(lm, "lens", None)


def lens_identity(lm: Decoder) -> str | None:
    """Return twelve digits that tell the fitted lens of a model from other lenses; None where there is none."""
    lens = lens_of(lm)
    if lens is None:
        return None
    numbers = lens.before.flatten()
    return identity_of(numbers[:: sample_step(len(numbers))].float().cpu().numpy())


def basis_or_default(lm: Decoder, basis: Basis | None, without: Basis) -> Basis:
    """The basis that is given, else that of the model's fitted lens, else the one for models without a lens."""
    if basis is not None:
        return basis
    return without if lens_of(lm) is None else "jacobian"


@contextmanager
def reading_by(lm: Decoder, lens: JacobianLens | None) -> Iterator[JacobianLens | None]:
    """A context in which a model reads by another lens, or by the logit lens where it is None.

    It yields the lens that the model has outside.
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
    """The fitted lens of a model.

    Raises:
        InvalidInput: no lens is fitted.
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
    """Carry streams at a point to the last streams that they lead to on average, ready for the final norm.

    Args:
        x: streams of the layers, in their order.
        point: where they were captured.
        layers: which layers; from the first one up when None.

    Raises:
        InvalidInput: no lens is fitted.
    """
    lens, chosen = fitted_lens(lm), range(len(x)) if layers is None else layers
    return torch.stack([lens.carried(rows, n, point) for n, rows in zip(chosen, x, strict=True)]).to(x.dtype)


@torch.no_grad()
def carried_parts(
    lm: Decoder, vectors: Float[Tensor, "row d_model"], layer: int, point: StreamPoint = "resid_post"
) -> Float[Tensor, "row d_model"]:
    """Carry parts of a stream to vectors whose products with W_U are their scores (the mean over tokens included).

    Raises:
        InvalidInput: no lens is fitted.
    """
    return fitted_lens(lm).readable(vectors, layer, point).to(vectors.dtype)


@torch.no_grad()
def mean_scores(lm: Decoder, readable: Float[Tensor, "row d_model"]) -> Float[Tensor, " row"]:
    """The mean over the vocabulary of the scores of vectors that `carried_parts` returned."""
    mean = lm.once((__name__, "mean unembedding"), lambda: lm.weights.W_U.mean(dim=1, dtype=torch.float32))
    return readable.float() @ mean


def in_basis(
    lm: Decoder, vectors: Float[Tensor, "row d_model"], layer: int, basis: Basis, point: StreamPoint = "resid_post"
) -> tuple[Float[Tensor, "row d_model"], Basis]:
    """Return parts of a stream, and the basis to read them in: "raw" after the lens has carried them."""
    return (carried_parts(lm, vectors, layer, point), "raw") if basis == "jacobian" else (vectors, basis)
