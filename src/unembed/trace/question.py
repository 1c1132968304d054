"""The question that a trace answers: why is one token predicted and not another?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unembed.logit_attribution import pair
from unembed.models.decoder import Decoder


@dataclass(frozen=True)
class Question:
    """Why is `token` predicted and not `against`? If `against` is None, only the logit of `token` is explained."""

    token: int
    against: int | None


def question(
    lm: Decoder,
    logits: Float[Tensor, " d_vocab"],
    token: str | int | None = None,
    against: str | int | None = None,
    *,
    alone: bool = False,
    hidden: Bool[Tensor, " d_vocab"] | None = None,
) -> Question:
    """Return the `Question` about a prediction; by default, why the most likely token and not the runner-up.

    Args:
        logits: the logits of the prediction.
        token: the token to explain; the most likely one when None.
        against: the token it is compared with; when None the runner-up, the most likely token other than `token`.
        alone: compare with no other token.
        hidden: tokens that cannot be the runner-up, such as unlearned ones.

    Raises:
        InvalidInput: both are the same token.
        NotOneToken: a text is not a single token.
    """
    target = int(logits.argmax()) if token is None else lm.single_token(token)
    if alone:
        return Question(target, None)
    if against is None:
        others = logits.clone()
        others[target] = -torch.inf
        if hidden is not None:
            others[hidden.to(others.device)] = -torch.inf
        against = int(others.argmax())
    return Question(*pair(lm, target, against))
