"""The dominant sub-updates of an FFN update as rows, with the tokens that their values promote.

Source: Geva et al. 2022, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unembed.memories.sub_updates import dominant, token_scores
from unembed.memories.values import Values
from unembed.models.decoder import Decoder
from unembed.stream.run import Run
from unembed.validation import as_tuple, positive_int


@dataclass(frozen=True)
class SubUpdate:
    """One term m_i v_i of an FFN update."""

    layer: int
    index: int
    coefficient: float
    norm: float
    """The length of the value."""
    contribution: float
    """|coefficient| * norm: how far the stream is moved, before a norm that follows the FFN."""
    share: float
    """Contribution over the sum of the layer's contributions."""
    score: float | None
    """What it adds to the chosen token's logit (basis frozen), if one was chosen."""
    top_tokens: list[str]
    """Tokens with the highest scores under the value; a negative coefficient promotes the bottom ones instead."""
    bottom_tokens: list[str]

    @property
    def promoted(self) -> list[str]:
        """The tokens this sub-update pushes up, whatever the sign of its coefficient."""
        return self.top_tokens if self.coefficient >= 0 else self.bottom_tokens


def top_sub_updates(
    lm: Decoder,
    run: Run,
    layers: Sequence[int],
    position: int,
    top: int,
    token: str | int | None = None,
    *,
    k: int = 10,
    show_unlearned: bool = False,
) -> list[list[SubUpdate]]:
    """The dominant sub-updates of several FFN updates at a position, by layer, largest contribution first.

    All values are read in one pass. The run must have captured the coefficients.

    Args:
        lm: the model.
        run: a run of one prompt.
        layers: the layers.
        position: the position, from 0.
        top: how many of each layer.
        token: a token to score each for.
        k: how many tokens of each value to list.
        show_unlearned: include tokens that the model never learned; by default they are left out.

    Raises:
        Unsupported: the model has no memories.
        OutOfRange: no such layer.
    """
    if not (layers := [lm.layer(n) for n in as_tuple("layers", layers)]):
        return []
    for n in layers:
        lm.feed_forward(n)
    top = positive_int("top", top)
    target = None if token is None else lm.single_token(token)
    by_layer = [dominant(run.at("coefficients", n)[0, position], lm.weights.W_out[n], top) for n in layers]
    token_ids = Values(lm).top_and_bottom(
        [(n, one.index.tolist()) for n, one in zip(layers, by_layer, strict=True)], k, show_unlearned=show_unlearned
    )
    rows = []
    for n, one, (promoted, suppressed) in zip(layers, by_layer, token_ids, strict=True):
        scores = None if target is None else token_scores(lm, run, n, position, target, index=one.index).tolist()
        norms = lm.weights.W_out[n][one.index].norm(dim=-1).tolist()
        rows.append(
            [
                SubUpdate(
                    n,
                    i,
                    float(one.coefficient[j]),
                    norms[j],
                    float(one.contribution[j]),
                    float(one.share[j]),
                    None if scores is None else scores[j],
                    lm.token_strings(promoted[j]),
                    lm.token_strings(suppressed[j]),
                )
                for j, i in enumerate(one.index.tolist())
            ]
        )
    return rows
