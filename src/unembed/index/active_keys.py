"""The keys that fire most on a new text, compared with their own triggers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from unembed.corpus.segmentation import leading
from unembed.errors import InvalidInput
from unembed.index.index_files import IndexFiles, shortened
from unembed.models.decoder import Decoder
from unembed.results import Table
from unembed.stream.run import run


def firing_on(files: IndexFiles, lm: Decoder, text: str, top: int, by: str) -> Table:
    """See `Index.firing_on`."""
    poles = tuple(files.trigger_lists)
    found = strongest(lm, text, files.trigger_lists, by=by, top=top, settings=files.manifest.settings)
    ids = lm.encode(text)[0].tolist()
    columns: dict[str, Any] = files.memory_columns(found.rows) | {
        "pole": [poles[i] for i in found.poles],
        "coefficient": found.coefficient.tolist(),
        "strength": found.strength.tolist(),
        "place": found.place.tolist(),
        "position": found.position.tolist(),
        "token": [files.strings[ids[p]] for p in found.position],
        "top_tokens": files.top_tokens(found.rows),
    }
    return files.table(f"Keys that fire most on {shortened(text)!r}", columns)


@dataclass(frozen=True, eq=False)
class Firing:
    """Keys and the position at which each fires most, in the chosen order.

    Attributes:
        rows: rows of the keys in the index.
        poles: 0 for positive, 1 for negative coefficients.
        coefficient: the largest (negative pole: the lowest) on the text.
        strength: coefficient over that of the key's best trigger.
        place: the number of stored triggers that are stronger.
        position: in the text.
    """

    rows: Int[np.ndarray, " found"]
    poles: Int[np.ndarray, " found"]
    coefficient: Float[np.ndarray, " found"]
    strength: Float[np.ndarray, " found"]
    place: Int[np.ndarray, " found"]
    position: Int[np.ndarray, " found"]


def strongest(
    lm: Decoder,
    text: str,
    triggers: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    by: str,
    top: int,
    settings: Mapping[str, Any],
) -> Firing:
    """The keys that fire most on a text. Keys without a trigger have no strength and are left out of that order.

    Positions that the sweep did not count (special tokens in front, short prefixes) are not counted here either.

    Raises:
        InvalidInput: the text is empty or too long, or `by` is neither "strength" nor "coefficient".
    """
    if by not in ("strength", "coefficient"):
        raise InvalidInput(f"firing by {by!r}", why="keys are ordered by 'strength' or 'coefficient'")
    point = "gate" if settings["by"] == "gate" else "coefficients"
    chosen = settings.get("layers")
    seen = run(lm, text, (point,), logits=False, layers=chosen)
    n = seen.tokens.shape[1]
    columns = np.arange(n)
    counted = columns + 1 - len(leading(lm)) >= settings["min_prefix"]
    counted &= (columns > 0) | (not settings["skip_first"])
    if not counted.any():
        raise InvalidInput(f"the text has {n} tokens", why="the index counts only longer prefixes")
    counted_columns = torch.from_numpy(columns[counted])
    layers_of = [n for n in lm.memory_layers if chosen is None or n in chosen]
    parts = []
    for number, (coefficient, _) in enumerate(triggers.values()):
        sign = -1.0 if number else 1.0
        layers = [(seen.at(point, layer)[0].cpu()[counted_columns].float() * sign).max(dim=0) for layer in layers_of]
        m = torch.cat([found.values for found in layers]).numpy()
        where = columns[counted][torch.cat([found.indices for found in layers]).numpy()]
        stored = np.asarray(coefficient) * np.float32(sign)
        best = stored[:, 0]
        usable = (best > 0) & (m > 0)
        strength = np.where(usable, m / np.where(usable, best, 1), 0.0)
        order = strength if by == "strength" else np.where(m > 0, m, 0.0)
        rows = np.argsort(-order, kind="stable")[:top]
        rows = rows[order[rows] > 0]
        place = (stored[rows] > m[rows, None]).sum(axis=1)
        parts.append(
            (order[rows], rows, np.full(len(rows), number), m[rows] * sign, strength[rows], place, where[rows])
        )
    order, *rest = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    first = np.argsort(-order, kind="stable")[:top]
    return Firing(*(column[first] for column in rest))
