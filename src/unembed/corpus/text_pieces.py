"""The text of a corpus as pieces that can be joined again and split into other windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from unembed.corpus.corpus import open_corpus
from unembed.corpus.sentences import sentences


@dataclass(frozen=True)
class TextPieces:
    """The text of a corpus in pieces, in order.

    Attributes:
        corpus: the name of the corpus, for display.
        documents: the document number of each piece.
        text: returns the text of the piece with a given number.
        joint: the text to insert between two pieces of one document.
    """

    corpus: str
    documents: Sequence[int] | np.ndarray
    text: Callable[[int], str]
    joint: str


def shipped_pieces() -> TextPieces:
    """Return the sentences of the text that ships with the package."""
    pieces = [(d.number, text) for d in open_corpus(None).documents() for text in sentences(d.text)]
    numbers = [number for number, _ in pieces]
    return TextPieces("the text that ships with the package", numbers, lambda i: pieces[i][1], " ")
