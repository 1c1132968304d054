"""Tokens with their texts, as all results contain them: tokens of a prompt, predicted tokens, and scored tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unembed.results.lists import numbers

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from unembed.models.decoder import Decoder


LIKELY = 20
"""How many of the most likely tokens are candidates for the tokens that a component changes most.

The candidates are this many tokens from the run with the component, and this many from the run without it."""
MOVED = 3
"""Default number of raised tokens, and of lowered tokens, that are listed for a component."""
COUNTS = 1.5
"""A token that the question names is listed first if a component changes its odds by at least this factor.

A question names one token, or two to compare."""


@dataclass(frozen=True)
class Token:
    """One token of the prompt."""

    position: int
    id: int
    token: str


@dataclass(frozen=True)
class Candidate:
    """A possible next token with its probability and logit, as it appears in a list of predictions, best first."""

    id: int
    token: str
    probability: float
    logit: float


@dataclass(frozen=True)
class Scored:
    """A token and its score for one vector alone: the vector times the token's column of W_U, without the final norm.

    The vector is a memory's value vector, or comes from a head's OV circuit.
    """

    id: int
    token: str
    score: float


def candidates(lm: Decoder, logits: Float[Tensor, " d_vocab"], ids: Sequence[int]) -> list[Candidate]:
    """Return the tokens with these ids as possible next tokens, each with its probability and logit."""
    logits = logits.float()
    probabilities = logits.softmax(-1)
    texts = lm.token_strings(ids)
    return [Candidate(i, text, float(probabilities[i]), float(logits[i])) for i, text in zip(ids, texts, strict=True)]


def most_likely(lm: Decoder, logits: Float[Tensor, " d_vocab"], top: int) -> list[Candidate]:
    """Return the `top` most likely next tokens."""
    return candidates(lm, logits, numbers(logits.topk(min(top, lm.d_vocab)).indices))


def scored(lm: Decoder, ids: Int[Tensor, " k"], scores: Float[Tensor, " k"]) -> list[Scored]:
    """Return tokens with their scores."""
    return [Scored(*row) for row in zip(numbers(ids), lm.token_strings(ids), numbers(scores), strict=True)]


@dataclass(frozen=True)
class MovedTokens:
    """The tokens whose probabilities differ by the largest factors between the runs with and without a component.

    Before them come the tokens that the question names (one token, or two to compare), if their odds change enough:
    in `raised` if the component makes them likelier, else in `lowered`.

    Attributes:
        raised: the printable texts of tokens that are likelier with the component, the largest factor first.
        lowered: the same for tokens that are less likely with the component.
    """

    raised: tuple[str, ...] = ()
    lowered: tuple[str, ...] = ()


def moved_tokens(
    lm: Decoder, own: Float[Tensor, " d_vocab"], without: Float[Tensor, " d_vocab"], answers: Sequence[int] = ()
) -> MovedTokens:
    """Return the tokens that a component raises and lowers most.

    Only the `LIKELY` most likely tokens of each of the two runs (with and without the component) are compared.

    Args:
        own: log probabilities of the unchanged run.
        without: log probabilities of the run without the component.
        answers: the tokens that the question names (one token, or two to compare). Those whose odds the component
            changes by the factor `COUNTS` or more come first.
    """
    size = min(LIKELY, lm.d_vocab)
    likely = list(dict.fromkeys(numbers(own.topk(size).indices) + numbers(without.topk(size).indices)))
    # Unlearned tokens and tokens that are only some bytes of a character are left out, except for the prediction, its
    # runner-up, and the prediction without the component.
    first = {*numbers(own.topk(min(2, size)).indices), *numbers(without.topk(1).indices)}
    listed = [token for token in likely if token in first or not lm.unlisted[token]]
    factors = dict(zip(listed, (own - without)[listed].tolist(), strict=True))
    of_answers = {token: _log_odds(own[token]) - _log_odds(without[token]) for token in answers}

    def ranked(sign: int) -> tuple[str, ...]:
        first = [token for token, moved in of_answers.items() if sign * moved >= math.log(COUNTS)]
        order = sorted((i for i, factor in factors.items() if sign * factor > 0), key=lambda i: -sign * factors[i])
        return tuple(lm.token_strings([*first, *(i for i in order if i not in first)][:MOVED]))

    return MovedTokens(ranked(1), ranked(-1))


def _log_odds(log_probability: Float[Tensor, ""]) -> float:
    """Return the log-odds of one token, finite also where rounding makes its probability 0 or 1."""
    return float(log_probability.double().exp().logit(eps=1e-15))
