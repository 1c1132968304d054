"""Find, for each head of a layer, the windows of a corpus in which it moves the longest vectors between two tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from unembed.attention.behaviour.value_weighted_attention import POINTS, contribution_norms
from unembed.corpus import TextPieces
from unembed.corpus.segmentation import leading
from unembed.corpus.text_pieces import shipped_pieces
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.stream.run import run

SCHEMA = "unembed.head_examples/1"
MEASURE = (
    "attention weight times the length of the value as the head writes it, in stream units; the largest of each "
    "window, sources at the first position or special left out"
)
_SHOWN, _FURTHER = 10, 12
_CHARACTERS = 8
"""Number of characters read for each token of a window; no tokenizer has a longer average token."""


@dataclass(frozen=True)
class Progress:
    """The number of windows read so far."""

    done: int
    of: int


@dataclass(frozen=True)
class Example:
    """The start of a window, up to the destination of the longest vector that a head moves between two of its tokens.

    Special tokens are left out.
    """

    document: int
    position: int
    """Position of the destination in the window, special tokens included."""
    source: int
    """Index in `tokens` of the source from which the head moves most."""
    value: float
    """How much the head moves from source to destination (see `MEASURE`)."""
    weight: float
    """The attention weight from the destination to the source."""
    tokens: list[str]
    carried: list[float]
    """How much the head moves from each token to the destination, by the same measure."""
    next_token: str | None
    prompt: str | None
    """A prompt: the shortest start of the window whose tokenization begins with `tokens` (a few tokens may follow);
    None if there is no such start."""


@dataclass(frozen=True)
class HeadExamples:
    """The examples of one head, largest first, with at most one from each window of text."""

    schema: str
    layer: int
    head: int
    measure: str
    corpus: str
    windows: int
    """Number of windows read. They are evenly spaced in the corpus, and none crosses a document's end."""
    tokens: int
    """Number of tokens in all windows."""
    length: int
    """The longest window allowed, in tokens."""
    examples: list[Example]


@torch.no_grad()
def examples_of_heads(
    lm: Decoder, pieces: TextPieces | None, layer: int, windows: int = 32, length: int = 128
) -> Iterator[Progress | HeadExamples]:
    """Yield progress after each window, then the examples of each head of a layer.

    Args:
        pieces: the corpus to read; None for the text that ships with the package.
        windows: largest number of windows to read.
        length: largest number of tokens in a window.

    Raises:
        OutOfRange: there is no such layer.
        InvalidInput: the corpus has no text of at least two tokens.
    """
    layer, front = lm.layer(layer), len(leading(lm))
    corpus = shipped_pieces() if pieces is None else pieces
    found = list(_windows(lm, corpus, windows, length + front, front))
    if not found:
        raise InvalidInput("the corpus", why="no text of it has two tokens, so no head can attend to an earlier one")
    best: list[list[tuple[Example, Tensor]]] = [[] for _ in range(lm.n_heads)]
    for done, (document, ids) in enumerate(found, 1):
        for head, one in enumerate(_largest(lm, layer, document, ids, front)):
            best[head].append((one, ids))
        yield Progress(done, len(found))
    tokens = sum(len(ids) - front for _, ids in found)
    for head, examples_of_head in enumerate(best):
        strongest = sorted(examples_of_head, key=lambda pair: -pair[0].value)[:_SHOWN]
        examples = [replace(one, prompt=_prompt(lm, ids, one.position, front)) for one, ids in strongest]
        yield HeadExamples(SCHEMA, layer, head, MEASURE, corpus.corpus, len(found), tokens, length, examples)


def _largest(lm: Decoder, layer: int, document: int, ids: Tensor, front: int) -> Iterator[Example]:
    """Yield, for each head, the source and destination in a window between which it moves the longest vector."""
    seen = run(lm, ids[None], POINTS, layers=[layer], logits=False)
    norms, weights = contribution_norms(lm, seen, layer), seen.at("pattern", layer)[0]
    texts = lm.token_strings(ids)
    for carried, weight in zip(norms.float().cpu(), weights.float().cpu(), strict=True):
        first = max(1, front)
        at = int(carried[:, first:].argmax())
        dst, src = at // (len(ids) - first), at % (len(ids) - first) + first
        yield Example(
            document,
            dst,
            src - front,
            float(carried[dst, src]),
            float(weight[dst, src]),
            texts[front : dst + 1],
            carried[dst, front : dst + 1].tolist(),
            texts[dst + 1] if dst + 1 < len(texts) else None,
            None,
        )


def _prompt(lm: Decoder, ids: Tensor, position: int, front: int) -> str | None:
    """Return the shortest start of a window whose tokenization begins with the window's tokens up to a position."""
    wanted = ids[: position + 1].tolist()
    for end in range(position + 1, min(len(ids), position + 1 + _FURTHER) + 1):
        text = lm.decode(ids[front:end])
        if lm.encode(text)[0][: position + 1].tolist() == wanted:
            return text
    return None


def _windows(lm: Decoder, corpus: TextPieces, n: int, longest: int, front: int) -> Iterator[tuple[int, Tensor]]:
    """Yield (document, token ids) of evenly spaced windows, tokenised like prompts, of at most `longest` tokens."""
    documents = corpus.documents
    longest = longest if lm.n_ctx is None else min(longest, lm.n_ctx)
    free = 0
    for begin in np.unique(np.linspace(0, len(documents) - 1, n).round().astype(int)).tolist():
        if begin < free:
            continue  # an earlier window contains this piece
        parts: list[str] = []
        free = begin
        while free < len(documents) and documents[free] == documents[begin]:
            parts.append(corpus.text(free))
            free += 1
            if sum(map(len, parts)) >= _CHARACTERS * longest:
                break
        ids = lm.encode(corpus.joint.join(parts))[0][:longest]
        if len(ids) > max(1, front) + 1 - (front > 0):
            yield int(documents[begin]), ids
