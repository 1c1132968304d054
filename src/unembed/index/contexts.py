"""Return passages of an index's corpus with one memory's (FFN neuron's) coefficient at every token."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from unembed.index.index_files import IndexFiles
from unembed.index.passages import Passages
from unembed.models.decoder import Decoder
from unembed.names import Pole
from unembed.stream.run import run

SCHEMA = "unembed.contexts/1"
_LONGEST = 400
"""Largest number of tokens of a passage that is shown."""
_SHADED = 20_000
"""Largest number of tokens on which the model is run to show one memory's coefficient at each token of its triggers."""
_BATCH = 16


@dataclass(frozen=True)
class Context:
    """A passage of the corpus that ends with the token on which the memory (FFN neuron) fires."""

    document: int
    position: int
    """The position of the last token in its document."""
    coefficient: float
    """The memory's coefficient at the last token."""
    tokens: list[str]
    coefficients: list[float]
    """The memory's coefficient at each token; empty if the passage was too long to run the model on it."""
    next_token: str | None


@dataclass(frozen=True)
class ContextsView:
    """The texts on which a memory (FFN neuron) fires most, with its coefficient at every token."""

    schema: str
    layer: int
    index: int
    pole: str
    stored: int
    """Number of triggers that the index stores for each memory."""
    contexts: list[Context]


def contexts_view(
    lm: Decoder, files: IndexFiles, layer: int, index: int, top: int, pole: Pole = "positive"
) -> ContextsView:
    """Return the texts on which a memory fires most, largest coefficient first, with its coefficient at every token.

    The texts are stored in the index; the coefficients are computed by running the model on them.
    """
    layer, index = lm.memory(layer, index)
    stored, position = files.pole(pole)
    row = files.row(layer, index)
    ends = [int(at) for at in position[row][:top] if at >= 0]
    spent = np.cumsum([len(files.passages.read_to(at)) for at in ends])
    shaded = read(lm, files, layer, index, [at for at, n in zip(ends, spent, strict=True) if n <= _SHADED])
    found = [context(files, at, next(shaded, None), float(m)) for at, m in zip(ends, stored[row], strict=False)]
    return ContextsView(SCHEMA, layer, index, pole, files.top, found)


def context(files: IndexFiles, at: int, coefficients: np.ndarray | None, coefficient: float) -> Context:
    """Return the passage that ends at a position, at most `_LONGEST` tokens long.

    Args:
        coefficients: the memory's coefficients at the tokens up to the position; None if they were not computed.
        coefficient: the memory's coefficient at the position.
    """
    place = files.passages.place(at, 0)
    ids = files.passages.read_to(at)[-_LONGEST:].tolist()
    along = [] if coefficients is None else coefficients[-len(ids) :].tolist()
    tokens = _characters_joined(files.passages, ids)
    return Context(place.document, place.position, coefficient, tokens, along, place.next_token)


def _characters_joined(passages: Passages, ids: list[int]) -> list[str]:
    """Return the text of each token.

    If several byte tokens form one character, the first has this character as its text, and the others an empty text.
    """
    texts = [passages.strings[i] for i in ids]
    for is_bytes, group in itertools.groupby(range(len(ids)), key=lambda i: texts[i].startswith("\\x")):
        places = list(group)
        if is_bytes:
            whole = passages.text(np.array([ids[i] for i in places]))
            texts[places[0] : places[-1] + 1] = [whole] + [""] * (len(places) - 1)
    return texts


def read(lm: Decoder, files: IndexFiles, layer: int, index: int | slice, ends: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the coefficients of one or more memories at every token of the passages that end at the given positions.

    The model's input is the same as when the index was built: special tokens, the window's context, and the tokens.
    """
    point = "gate" if files.manifest.settings["by"] == "gate" else "coefficients"
    stream = files.passages
    for first in range(0, len(ends), _BATCH):
        parts = [torch.from_numpy(stream.prefix(at).astype(np.int64)) for at in ends[first : first + _BATCH]]
        # Padding is on the right, so the positions of the text cannot attend to it; it is cut off afterwards.
        ids = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        m = run(lm, ids, point, layers=[layer], logits=False).at(point, layer)[..., index]
        for row, part in zip(m.float().cpu().numpy(), parts, strict=True):
            yield row[stream.n_special : len(part)]
