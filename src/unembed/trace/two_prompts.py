"""Compare two prompts as plain Python values: aligned tokens, predictions, logits, and patched coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unembed.causality.metrics import logit_difference
from unembed.causality.patching import Patching
from unembed.causality.prompt_pair import align
from unembed.models.named_tokens import Candidate, Token, most_likely
from unembed.results.lists import numbers
from unembed.trace.question import Question
from unembed.trace.words import prompt_tokens, question_tokens

if TYPE_CHECKING:
    from unembed.trace.trace import Trace

SCHEMA_COMPARISON = "unembed.comparison/1"


@dataclass(frozen=True)
class SideView:
    """One of the two prompts, with its likely next tokens."""

    prompt: str
    tokens: list[Token]
    prediction: list[Candidate]
    logits: list[float]
    """The logits of the target and of the token that it is compared with."""


@dataclass(frozen=True)
class ComparisonView:
    """Two prompts, their corresponding tokens, and the logit difference that is compared."""

    schema: str
    provenance: dict[str, Any]
    clean: SideView
    corrupted: SideView
    target: Token
    against: Token
    pairs: list[tuple[int, int]]
    """Corresponding positions, [in clean, in corrupted]."""
    alignment: str


def comparison_view(
    clean: Trace,
    corrupted: Trace,
    prompts: tuple[str, str],
    token: str | int | None = None,
    against: str | int | None = None,
    top: int = 5,
) -> ComparisonView:
    """Return two prompts side by side, with their aligned tokens and the logits of two tokens.

    Args:
        prompts: the texts of both prompts.
        token: the target; the clean prompt's prediction when None.
        against: the token it is compared with; when None, the corrupted prompt's prediction, or where that is the
            target, the clean prompt's runner-up.
        top: number of likely next tokens listed for each prompt.

    Raises:
        InvalidInput: no token of one prompt corresponds to a token of the other, or both tokens are the same.
        NotOneToken: a text is not a single token.
    """
    lm = clean.lm
    target, other = compared_tokens(clean, corrupted, token, against)
    pairs, how = align(lm, clean.tokens, corrupted.tokens, alignment_of(clean, corrupted))
    sides = [
        _side(trace, prompt, [target, other], top) for trace, prompt in zip((clean, corrupted), prompts, strict=True)
    ]
    first, second = question_tokens(lm, Question(target, other), len(clean) - 1)
    assert second is not None
    return ComparisonView(
        SCHEMA_COMPARISON,
        lm.provenance(notes={"alignment": how}).to_dict(),
        sides[0],
        sides[1],
        first,
        second,
        pairs,
        how,
    )


def compared_tokens(
    clean: Trace, corrupted: Trace, token: str | int | None, against: str | int | None
) -> tuple[int, int]:
    """Return the target and the token that it is compared with, as `comparison_view` chooses them."""
    lm = clean.lm
    first, second = numbers(clean.logits().topk(2).indices)
    target = first if token is None else lm.single_token(token)
    if against is not None:
        other = lm.single_token(against)
    else:
        predicted = int(corrupted.prediction[-1])
        other = next(one for one in (predicted, second, first) if one != target)
    logit_difference(target, other).bind(lm, clean.logits())  # raises an error if both tokens are the same
    return target, other


def alignment_of(clean: Trace, corrupted: Trace) -> Literal["auto"] | None:
    """Return how tokens are aligned: None (one by one) for prompts of equal length, "auto" for others."""
    return None if len(clean) == len(corrupted) else "auto"


def _side(trace: Trace, prompt: str, compared: Sequence[int], top: int) -> SideView:
    logits = trace.logits().float()
    return SideView(
        prompt, prompt_tokens(trace), most_likely(trace.lm, logits, top), [float(logits[i]) for i in compared]
    )


def given_coefficients(found: Patching, clean: Trace, corrupted: Trace) -> list[list[list[float]]] | None:
    """Return the coefficients that patching copied from one prompt into the other: [layer][position][memory].

    None if no memories were patched.
    """
    if found.indices is None:
        return None
    pairs, _ = align(clean.lm, clean.tokens, corrupted.tokens, alignment_of(clean, corrupted))
    denoising = found.direction == "denoising"
    source = clean if denoising else corrupted
    other_of = {c: a for a, c in pairs} if denoising else dict(pairs)
    run = source.everywhere("coefficients", found.layers)
    return [
        [
            numbers(run.at("coefficients", layer)[0, other_of[position], memories[i]])
            for i, position in enumerate(found.positions)
        ]
        for layer, memories in zip(found.layers, found.indices, strict=True)
    ]
