"""Passages of an index's corpus as the model reads them: one memory's coefficient at every token up to a place."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unembed.corpus.segmentation import leading

SCHEMA = "unembed.contexts/1"
_LONGEST = 400
"""Tokens of a context that a view keeps."""
_SHADED = 20_000
"""Tokens that are read again for one memory's triggers; where windows are long, later triggers stay without."""
_BATCH = 16


@dataclass(frozen=True)
class Context:
    """A stretch of the corpus that ends where the key fires."""

    document: int
    position: int
    """Of the last token in its document."""
    coefficient: float
    """At the last token."""
    tokens: list[str]
    coefficients: list[float]
    """One for each token; none where the passage was too long to be read again."""
    next_token: str | None


@dataclass(frozen=True)
class ContextsView:
    """A key's triggers, every token of them with its coefficient."""

    schema: str
    layer: int
    index: int
    pole: str
    kept: int
    """Triggers that the index keeps of a key; what is weaker is in no list."""
    contexts: list[Context]

    def to_dict(self) -> dict[str, Any]:
        """The view as JSON can hold it."""
        return dataclasses.asdict(self)


def contexts_view(lm: Any, held: Any, layer: int, index: int, top: int, pole: str = "positive") -> ContextsView:
    """The triggers that the index keeps, strongest first; coefficients along them from a run of the model.

    Raises:
        OutOfRange: there is no such memory.
        IndexFault: the index's triggers are not built yet.
    """
    layer, index = lm.memory(layer, index)
    stored, position = held.pole(pole)
    row = held.row(layer, index)
    ends = [int(at) for at in position[row][:top] if at >= 0]
    spent = np.cumsum([_length(held, at) for at in ends])
    shaded = read(lm, held, layer, index, [at for at, n in zip(ends, spent, strict=True) if n <= _SHADED])
    found = [context(held, at, next(shaded, None), float(m)) for at, m in zip(ends, stored[row], strict=False)]
    return ContextsView(SCHEMA, layer, index, pole, held.top, found)


def context(held: Any, at: int, coefficients: np.ndarray | None, coefficient: float) -> Context:
    """The passage up to a place; `coefficients` are those of its last tokens."""
    place = held.passages.place(at, 0)
    first = max(at + 1 - _length(held, at), at + 1 - _LONGEST)
    ids = np.asarray(held.passages.token[first : at + 1]).tolist()
    along = [] if coefficients is None else coefficients[-len(ids) :].tolist()
    tokens = _letters_joined(held.passages, ids)
    return Context(place.document, place.position, coefficient, tokens, along, place.next_token)


def _letters_joined(passages: Any, ids: list[int]) -> list[str]:
    """The text of each token; of bytes that are letters only together, the first has the text and the others none."""
    texts = [passages.strings[i] for i in ids]
    for is_bytes, run in itertools.groupby(range(len(ids)), key=lambda i: texts[i].startswith("\\x")):
        places = list(run)
        if is_bytes:
            whole = passages.text(np.array([ids[i] for i in places]))
            texts[places[0] : places[-1] + 1] = [whole] + [""] * (len(places) - 1)
    return texts


def read(lm: Any, held: Any, layer: int, index: int | slice, ends: Sequence[int]) -> Iterator[np.ndarray]:
    """Coefficients of a memory, or of several, over the passage of each place, from its first token to the place.

    The model reads what it read when the index was built: special tokens, the window's context, the tokens.
    """
    point = "gate" if held.manifest.settings["by"] == "gate" else "coefficients"
    front = torch.tensor(leading(lm), dtype=torch.long)
    for first in range(0, len(ends), _BATCH):
        parts = [
            torch.cat(
                [front, torch.tensor(np.asarray(held.passages.token[at + 1 - _length(held, at) : at + 1])).long()]
            )
            for at in ends[first : first + _BATCH]
        ]
        # Padded on the right: a causal model's earlier positions do not see it, and it is cut off again.
        ids = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        m = lm.run(ids, point, layers=[layer], logits=False).at(point, layer)[..., index]
        for row, part in zip(m.float().cpu().numpy(), parts, strict=True):
            yield row[len(front) : len(part)]


def _length(held: Any, at: int) -> int:
    """Tokens from the beginning of what the model had read, special tokens left out, to a place."""
    passages = held.passages
    segment = int(np.searchsorted(passages.start, at, side="right")) - 1
    return max(1, at + 1 - int(passages.first[segment]))
