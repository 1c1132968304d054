"""Convert positions in an index's corpus to text: document, the text before, the token, the next token."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Int

from unembed.corpus.token_stream import TokenStream

_BYTES = re.compile(r"(?:\\x[0-9a-f]{2})+")


@dataclass(frozen=True)
class Place:
    """The text at one position of the corpus.

    Attributes:
        sentence: number of the sentence or window in the document.
        position: the token's position in its document, counted from 0.
        prefix: the text before the token, from the start of its sentence or window.
        token: the token at the position.
        next_token: the token that follows it; None at the end of a sentence or of the document.
    """

    document: int
    sentence: int
    position: int
    prefix: str
    token: str
    next_token: str | None


@dataclass(frozen=True, eq=False)
class Passages(TokenStream):
    """The corpus of an index as token ids, with the text of every token of the vocabulary."""

    strings: list[str]

    def place(self, position: int, context: int | None = None) -> Place:
        """Return the text around a position, with at most `context` tokens before it."""
        segment = int(self.segment(np.array(position)))
        end, first = int(self.start[segment + 1]), int(self.first[segment])
        if context is not None:
            first = max(first, position - context)
        following = int(self.token[position + 1] if position + 1 < end else self.after[segment])
        return Place(
            document=int(self.document[segment]),
            sentence=int(self.sentence[segment]),
            position=position - int(self.origin[segment]),
            prefix=self.text(self.token[first:position]),
            token=self.strings[int(self.token[position])],
            next_token=None if following < 0 else self.strings[following],
        )

    def place_columns(self, positions: Int[np.ndarray, " at"], context: int | None) -> dict[str, list[Any]]:
        """Return the texts at several positions as a dict of columns, one for each field of `Place`."""
        places = [self.place(int(at), context) for at in positions]
        return {f.name: [getattr(place, f.name) for place in places] for f in fields(Place)}

    def read_to(self, position: int) -> Int[np.ndarray, " pos"]:
        """Return the tokens from the start of the segment up to a position, inclusive.

        If the position is that of a special token before the text, return only this token.
        """
        segment = int(self.segment(np.array(position)))
        return np.asarray(self.token[min(int(self.first[segment]), position) : position + 1])

    def text(self, ids: Int[np.ndarray, " pos"]) -> str:
        """Return the text of tokens; byte tokens that form a character together become that character."""
        joined = "".join([self.strings[i] for i in ids.tolist()])
        return _BYTES.sub(_decode_bytes, joined) if "\\x" in joined else joined


@dataclass(frozen=True)
class Sample:
    """The coefficients of one layer's memories on evenly spaced passages of the corpus."""

    coefficients: np.ndarray
    """The coefficient of each memory of the layer at each token, (tokens, memories)."""
    at: np.ndarray
    begins: np.ndarray
    """The index in the arrays at which each passage begins."""
    is_own: np.ndarray
    """Whether each token belongs to the passage itself, not to the context repeated from the previous window."""


def _decode_bytes(match: re.Match[str]) -> str:
    raw = bytes.fromhex(match[0].replace("\\x", ""))
    return raw.decode("utf-8", errors="backslashreplace")
