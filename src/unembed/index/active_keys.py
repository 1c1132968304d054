"""Find the memories (FFN neurons) that fire most on a new text, relative to their largest coefficient in the corpus."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unembed.corpus.segmentation import leading
from unembed.errors import InvalidInput
from unembed.index.index_files import IndexFiles, shortened
from unembed.models.decoder import Decoder
from unembed.results import Table
from unembed.stream.run import run


def firing_on(files: IndexFiles, lm: Decoder, text: str, top: int, by: str) -> Table:
    """Return the memories that fire most on a text; see `Index.firing_on`.

    If `by` is "strength", memories for which the index stores no text are left out.

    Positions that the build of the index ignored (special tokens at the start, short prefixes) are ignored here too.

    Raises:
        InvalidInput: the text is empty or too long, or `by` is neither "strength" nor "coefficient".
    """
    if by not in ("strength", "coefficient"):
        raise InvalidInput(f"by={by!r}", why="memories are sorted by 'strength' or by 'coefficient'")
    settings = files.manifest.settings
    point = "gate" if settings["by"] == "gate" else "coefficients"
    chosen = settings.get("layers")
    seen = run(lm, text, (point,), logits=False, layers=chosen)
    n = seen.tokens.shape[1]
    columns = np.arange(n)
    counted = columns + 1 - len(leading(lm)) >= settings["min_prefix"]
    counted &= (columns > 0) | (not settings["skip_first"])
    if not counted.any():
        raise InvalidInput(
            f"the text has {n} tokens", why="the index ignores the start of a text", instead="Give a longer text"
        )
    counted_columns = torch.from_numpy(columns[counted])
    layers_of = [n for n in lm.memory_layers if chosen is None or n in chosen]
    parts = []
    for pole, (coefficient, _) in files.trigger_lists.items():
        sign = -1.0 if pole == "negative" else 1.0
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
        poles = np.full(len(rows), pole)
        parts.append((order[rows], rows, poles, m[rows] * sign, strength[rows], place, where[rows]))
    order, *rest = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    first = np.argsort(-order, kind="stable")[:top]
    rows, *shown = (column[first] for column in rest)
    names = ("pole", "coefficient", "strength", "place", "position")
    table: dict[str, list[Any]] = {name: column.tolist() for name, column in zip(names, shown, strict=True)}
    ids = seen.tokens[0].tolist()
    negative = np.array([pole == "negative" for pole in table["pole"]], dtype=bool)
    table |= {"token": [files.strings[ids[p]] for p in table["position"]]}
    table |= {"top_tokens": files.top_tokens(rows, negative)}
    named = files.memory_columns(rows, table["pole"] if "negative" in files.trigger_lists else None)
    return files.table(f"Keys that fire most on {shortened(text)!r}", named | table)
