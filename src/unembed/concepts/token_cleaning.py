"""Find which tokens of a vocabulary are whole words, numbers, punctuation or pieces of words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["word", "number", "punctuation", "piece", "other"]

_WORD = re.compile(r"[^\W\d_]+(?:['’.-][^\W\d_]+)*")
_NUMBER = re.compile(r"[\d.,:/-]*\d[\d.,:/-]*(?:st|nd|rd|th|s)?")
SHORTEST_UNSPACED = 4
"""A lower-case token without a leading space counts as a whole word only if it has at least this many letters."""


@dataclass(frozen=True)
class CleanToken:
    """A token without surrounding spaces, its kind, and its word if the token is a whole word."""

    text: str
    """The token's text without the spaces around it."""
    kind: Kind
    word: str | None
    """The word in lower case, or None if the token is not a whole word."""
    capitalised: bool


def clean(tokens: Sequence[str]) -> list[CleanToken]:
    """Return the kind of every token of a vocabulary, and the word of each token that is a word.

    A token of letters only is a word if it begins with a space or a capital letter. A lower-case token without a space
    is a piece of a word ("ation"), unless it has at least `SHORTEST_UNSPACED` letters and the vocabulary also has it
    with a space ("should"). If fewer than one in twenty tokens of the vocabulary begin with a space, all tokens of
    letters are words.
    """
    spaced = {token.strip().lower() for token in tokens if token[:1].isspace()}
    word_level = len(spaced) < len(tokens) / 20
    return [_clean(token, spaced, word_level) for token in tokens]


def _clean(token: str, spaced: set[str], word_level: bool) -> CleanToken:
    text = token.strip()
    capitalised = text[:1].isupper()
    if _NUMBER.fullmatch(text):
        return CleanToken(text, "number", None, False)
    if text and not any(c.isalnum() for c in text):
        return CleanToken(text, "punctuation", None, False)
    if not _WORD.fullmatch(text):
        return CleanToken(text, "other", None, capitalised)
    lower = text.lower()
    starts = word_level or token[:1].isspace()
    whole = starts or (lower in spaced and len(lower) >= SHORTEST_UNSPACED) or (capitalised and len(lower) > 2)
    return CleanToken(text, "word" if whole else "piece", lower if whole else None, capitalised)
