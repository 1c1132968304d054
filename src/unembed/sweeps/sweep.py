"""`unembed.sweep`: a model over a corpus, once, for any number of reducers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unembed.corpus.corpus import Corpus, open_corpus
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder
from unembed.sweeps.passing import feeding
from unembed.sweeps.reducer import Reducer


def sweep(
    lm: Decoder,
    corpus: Corpus | str | Path | Sequence[str] | None,
    reducers: Sequence[Reducer] | Reducer,
    *,
    engine: str = "local",
    checkpoint: str | Path | None = None,
    tokens_per_batch: int = 2048,
) -> list[Any]:
    """One forward pass per batch, stopped after the last tensor that a reducer needs.

    Args:
        lm: the model.
        corpus: what `open_corpus` opens, or takes.
        reducers: running statistics; their results come back in this order.
        engine: "local".
        checkpoint: a file that the sweep saves itself to and resumes from.
        tokens_per_batch: columns times rows of a batch.

    Returns:
        Each reducer's result.
    """
    if engine != "local":
        raise InvalidInput(f"engine={engine!r}", why="it is none of local")
    todo = [reducers] if isinstance(reducers, Reducer) else list(reducers)
    opened = open_corpus(corpus)
    for reducer in todo:
        reducer.start(lm)
    with feeding(lm, todo) as feed:
        for batch in opened.batches(lm, tokens_per_batch):
            feed(batch)
    return [reducer.result() for reducer in todo]
