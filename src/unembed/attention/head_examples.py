"""Where in a corpus the heads of a layer do most: the place of each text window at which a head carries most."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unembed.attention.value_weighted_attention import POINTS, contribution_norms
from unembed.corpus.corpus import open_corpus
from unembed.corpus.segmentation import leading
from unembed.corpus.sentences import sentences
from unembed.errors import InvalidInput
from unembed.stream.run import run

SCHEMA = "unembed.head_examples/1"
MEASURE = (
    "attention weight times the length of the value as the head writes it, in stream units; the largest of each "
    "window, sources at the first position or special left out"
)
_KEPT, _FURTHER = 10, 12
_CHARACTERS = 8
"""Read for each token of a window: more than any tokenizer puts into one on average."""


@dataclass(frozen=True)
class Progress:
    """Windows read so far."""

    done: int
    of: int


@dataclass(frozen=True)
class Example:
    """A window up to the token at which a head carries most, special tokens left out."""

    document: int
    position: int
    """Of the destination in the window as the model reads it, special tokens counted."""
    source: int
    """Which of `tokens` most is carried from."""
    value: float
    """By the measure."""
    weight: float
    """The attention weight from the destination to the source."""
    tokens: list[str]
    carried: list[float]
    """To the destination from each token, by the same measure."""
    next_token: str | None
    prompt: str | None
    """A text of which the model reads the same tokens up to the destination: a little longer than they are where the
    destination is part of a word; None where no beginning of the window is read so."""


@dataclass(frozen=True)
class HeadExamples:
    """One head's examples, the largest first, one of a window at most."""

    schema: str
    layer: int
    head: int
    measure: str
    corpus: str
    windows: int
    """That were read, evenly spaced in the corpus; none crosses a document's end."""
    tokens: int
    """Of all windows."""
    length: int
    """The longest window allowed, in tokens."""
    examples: list[Example]

    def to_dict(self) -> dict[str, Any]:
        """The view as JSON can hold it."""
        return dataclasses.asdict(self)


@torch.no_grad()
def examples_of_heads(
    lm: Any, held: Any, layer: int, windows: int = 32, length: int = 128
) -> Iterator[Progress | HeadExamples]:
    """The examples of every head of a layer: progress after each window, then one view for each head.

    Args:
        lm: the model.
        held: its index, whose corpus is read; None for the text that ships with the package.
        layer: the layer.
        windows: to read, at most.
        length: tokens of a window, at most.

    Raises:
        OutOfRange: there is no such layer.
        InvalidInput: the corpus has no text of two tokens.
    """
    layer, front = lm.layer(layer), len(leading(lm))
    found = list(_windows(lm, held, windows, length + front, front))
    if not found:
        raise InvalidInput("the corpus", why="no text of it has two tokens, so that no head can look back")
    best: list[list[tuple[Example, Tensor]]] = [[] for _ in range(lm.n_heads)]
    for done, (document, ids) in enumerate(found, 1):
        for head, one in enumerate(_largest(lm, layer, document, ids, front)):
            best[head].append((one, ids))
        yield Progress(done, len(found))
    tokens = sum(len(ids) - front for _, ids in found)
    name = "the text that ships with the package" if held is None else "the index's corpus"
    for head, those in enumerate(best):
        strongest = sorted(those, key=lambda pair: -pair[0].value)[:_KEPT]
        examples = [replace(one, prompt=_prompt(lm, ids, one.position, front)) for one, ids in strongest]
        yield HeadExamples(SCHEMA, layer, head, MEASURE, name, len(found), tokens, length, examples)


def _largest(lm: Any, layer: int, document: int, ids: Tensor, front: int) -> Iterator[Example]:
    """The place of a window at which each head carries most."""
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


def _prompt(lm: Any, ids: Tensor, position: int, front: int) -> str | None:
    """The shortest beginning of a window that is read as its tokens up to a position."""
    wanted = ids[: position + 1].tolist()
    for end in range(position + 1, min(len(ids), position + 1 + _FURTHER) + 1):
        text = lm.decode(ids[front:end])
        if lm.encode(text)[0][: position + 1].tolist() == wanted:
            return text
    return None


def _windows(lm: Any, held: Any, n: int, longest: int, front: int) -> Iterator[tuple[int, Tensor]]:
    """Windows as prompts are read: evenly spaced beginnings, up to `longest` tokens or the document's end."""
    documents, texts, joint = _shipped() if held is None else _indexed(held)
    longest = longest if lm.n_ctx is None else min(longest, lm.n_ctx)
    free = 0
    for begin in np.unique(np.linspace(0, len(documents) - 1, n).round().astype(int)).tolist():
        if begin < free:
            continue  # a window before it holds this piece
        parts: list[str] = []
        free = begin
        while free < len(documents) and documents[free] == documents[begin]:
            parts.append(texts(free))
            free += 1
            if sum(map(len, parts)) >= _CHARACTERS * longest:
                break
        ids = lm.encode(joint.join(parts))[0][:longest]
        if len(ids) > max(1, front) + 1 - (front > 0):
            yield int(documents[begin]), ids


def _shipped() -> tuple[Any, Any, str]:
    pieces = [(d.number, text) for d in open_corpus(None).documents() for text in sentences(d.text)]
    return [number for number, _ in pieces], lambda i: pieces[i][1], " "


def _indexed(held: Any) -> tuple[Any, Any, str]:
    """The index's segments: sentences lie one beside the other, windows go on where the one before ends."""
    passages = held.passages
    cut = held.manifest.settings.get("cut", {}).get("segmentation", "sentences")

    def text(i: int) -> str:
        return passages.text(np.asarray(passages.token[passages.start[i] : passages.start[i + 1]]))

    return passages.document, text, " " if cut == "sentences" else ""
