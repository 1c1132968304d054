"""Tokens as every view names them: of a prompt, of a question, likely next ones, and scored ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unembed.schemas.numbers import numbers
from unembed.schemas.trace import Candidate, Scored, Token

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from unembed.models.decoder import Decoder
    from unembed.trace.question import Question
    from unembed.trace.trace import Trace


def prompt_tokens(trace: Trace) -> list[Token]:
    """The tokens of a trace's prompt."""
    return [Token(i, int(trace.tokens[i]), text) for i, text in enumerate(trace.token_strings)]


def question_tokens(lm: Decoder, question: Question, position: int) -> tuple[Token, Token | None]:
    """The target of a question at a position, and the token that it is compared with."""
    ids = [question.token] if question.against is None else [question.token, question.against]
    target, *against = (Token(position, i, text) for i, text in zip(ids, lm.token_strings(ids), strict=True))
    return target, against[0] if against else None


def candidates(lm: Decoder, logits: Float[Tensor, " d_vocab"], ids: Sequence[int]) -> list[Candidate]:
    """Next tokens with their probabilities and logits."""
    logits = logits.float()
    probabilities = logits.softmax(-1)
    texts = lm.token_strings(ids)
    return [Candidate(i, text, float(probabilities[i]), float(logits[i])) for i, text in zip(ids, texts, strict=True)]


def most_likely(lm: Decoder, logits: Float[Tensor, " d_vocab"], top: int) -> list[Candidate]:
    """The `top` most likely next tokens."""
    return candidates(lm, logits, numbers(logits.topk(min(top, lm.d_vocab)).indices))


def scored(lm: Decoder, ids: Int[Tensor, " k"], scores: Float[Tensor, " k"]) -> list[Scored]:
    """Tokens with their scores."""
    return [Scored(*row) for row in zip(numbers(ids), lm.token_strings(ids), numbers(scores), strict=True)]
