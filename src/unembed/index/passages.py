"""Places in the token stream as people read them: document, position, prefix, trigger token, next token."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

_BYTES = re.compile(r"(?:\\x[0-9a-f]{2})+")


@dataclass(frozen=True)
class Place:
    """One place in the corpus.

    Attributes:
        document: number of the document.
        sentence: number of the sentence or window in the document.
        position: of the token in its document, in tokens from 0.
        prefix: text that the model had read before the token, in its sentence or window.
        token: the token itself, at which the key fired.
        next_token: the token that follows it; None at the end of a sentence or of the document.
    """

    document: int
    sentence: int
    position: int
    prefix: str
    token: str
    next_token: str | None


@dataclass(frozen=True, eq=False)
class Passages:
    """The corpus as the model read it, cut into segments, with the text of every token of the vocabulary."""

    token: Int[np.ndarray, " stream"]
    start: Int[np.ndarray, " starts"]
    first: Int[np.ndarray, " segments"]
    document: Int[np.ndarray, " segments"]
    sentence: Int[np.ndarray, " segments"]
    origin: Int[np.ndarray, " segments"]
    after: Int[np.ndarray, " segments"]
    strings: list[str]

    def segment(self, positions: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
        """The segment of each place in the stream."""
        return np.searchsorted(self.start, positions, side="right") - 1

    def next_tokens(self, positions: Int[np.ndarray, " place"]) -> Int[np.ndarray, " place"]:
        """The token after each place; -1 where there is none."""
        segment = self.segment(positions)
        is_last = positions + 1 >= np.asarray(self.start)[segment + 1]
        following = np.asarray(self.token)[np.where(is_last, positions, positions + 1)]
        return np.where(is_last, np.asarray(self.after)[segment], following)

    def place(self, position: int, context: int | None = None) -> Place:
        """What stands at a place, with at most `context` tokens before it."""
        segment = int(np.searchsorted(self.start, position, side="right")) - 1
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

    def text_to(self, position: int) -> str:
        """The text of the whole prefix that ends with the token at a place."""
        segment = int(np.searchsorted(self.start, position, side="right")) - 1
        return self.text(self.token[min(int(self.first[segment]), position) : position + 1])

    def text(self, ids: Int[np.ndarray, " pos"]) -> str:
        """The text of tokens; bytes that are letters only together become these letters."""
        joined = "".join([self.strings[i] for i in ids.tolist()])
        return _BYTES.sub(_letters, joined) if "\\x" in joined else joined


def _letters(match: re.Match[str]) -> str:
    raw = bytes.fromhex(match[0].replace("\\x", ""))
    return raw.decode("utf-8", errors="backslashreplace")
