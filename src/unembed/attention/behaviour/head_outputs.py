"""Describe what each head of a layer adds to the residual stream at a position, and the tokens that this promotes.

Source: Elhage et al. 2021, "Attention Heads as Information Movement": heads are independent and their outputs add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unembed.jacobian.basis import basis_or_default, in_basis
from unembed.lens import logit_direction, read
from unembed.logit_attribution import pair
from unembed.models.decoder import Decoder
from unembed.names import StreamPoint
from unembed.stream.capture_points import has_point
from unembed.stream.decomposition import attention_branch
from unembed.stream.run import Run


@dataclass(frozen=True)
class HeadUpdate:
    """The vector that one head adds to the residual stream at a position, and the tokens that it promotes."""

    layer: int
    index: int
    norm: float
    """The Euclidean norm of the vector."""
    share: float
    """The norm of the vector, divided by the sum of the norms of all vectors that the layer's heads add."""
    score: float | None
    """What the vector adds to the chosen token's logit, or to the difference of two tokens' logits, with the scale of
    the final norm fixed at its value in the run. None if no token was chosen."""
    top_tokens: list[str]
    """Tokens that the vector promotes most, in the basis "jacobian" if the model has a fitted lens, else in "raw"."""
    bottom_tokens: list[str]


def head_updates(
    lm: Decoder,
    run: Run,
    layer: int,
    token: str | int | None,
    scale: Float[Tensor, "1"],
    against: str | int | None = None,
    *,
    k: int = 10,
    hide_unlearned: bool = False,
    heads: Sequence[int] | None = None,
) -> list[HeadUpdate]:
    """Describe what each head of a layer adds at one position: length, top tokens, contribution; longest first.

    Args:
        run: a run of one prompt at the position alone (see `Run.at_position`), with the capture point z.
        token: each head is scored by what it adds to this token's logit.
        scale: the scale of the final norm at the position, by which scores are divided.
        against: if given, heads are scored by what they add to the logit of `token` minus the logit of this token.
        k: number of tokens listed.
        hide_unlearned: leave out tokens that the model never learned.
        heads: the heads to describe; all heads of the layer when None.

    Raises:
        InvalidInput: both tokens are the same.
        OutOfRange: no such layer.
    """
    layer = lm.layer(layer)
    z = run.at("z", layer)[0, 0]
    raw = torch.einsum("hd,hdm->hm", z, lm.weights.W_O[layer].to(z.dtype))
    written = attention_branch(lm, layer, z).written(raw)
    hidden = lm.unlisted if hide_unlearned else None
    point: StreamPoint = "resid_mid" if has_point(lm, "resid_mid", layer) else "resid_post"
    readable, _ = in_basis(lm, written, layer, basis_or_default(lm, None, "raw"), point)
    chosen = list(range(len(z)) if heads is None else heads)
    ends = [read(lm, end[chosen], k, basis="raw", hidden=hidden).ids for end in (readable, -readable)]
    scores = None
    if token is not None:
        u = logit_direction(lm, *pair(lm, token, against)) / scale
        scores = (written.to(u.dtype) @ u).tolist()
    sizes = written.float().norm(dim=-1)
    shares = sizes / sizes.sum().clamp_min(1e-30)
    return [
        HeadUpdate(
            layer,
            h,
            float(sizes[h]),
            float(shares[h]),
            None if scores is None else scores[h],
            *(lm.token_strings(ids[chosen.index(h)]) for ids in ends),
        )
        for h in sizes.argsort(descending=True).tolist()
        if h in chosen
    ]
