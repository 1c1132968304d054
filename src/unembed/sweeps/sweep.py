"""`unembed.sweep`: a model over a corpus, once, for any number of reducers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unembed.corpus.corpus import Corpus, open_corpus
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder, require_decoder
from unembed.sweeps import local
from unembed.sweeps.fast_kernels import Fast, checked
from unembed.sweeps.local import Every
from unembed.sweeps.progress import Report
from unembed.sweeps.ray import engine as ray_engine
from unembed.sweeps.ray.workers import Ray
from unembed.sweeps.reducers.reducer import Reducer
from unembed.validation import as_path, as_tuple, positive_int

ENGINES = ("local", "ray")


def sweep(
    lm: Decoder,
    corpus: Corpus | str | Path | Sequence[str] | None,
    reducers: Sequence[Reducer] | Reducer,
    *,
    engine: str | Ray = "local",
    checkpoint: str | Path | None = None,
    every: Every | None = None,
    tokens_per_batch: int = 2048,
    fast: Fast | None = None,
    progress: Report | None = None,
) -> list[Any]:
    """One forward pass per batch, stopped after the last tensor that a reducer needs.

    With a checkpoint, a sweep that was ended in any way goes on where it last saved itself, and its result is bit for
    bit that of a sweep never interrupted (same model, corpus, settings, machine and threads; anything else is refused).
    Ctrl-C lets the batch under way end and saves before it stops. A finished checkpoint gives its result at once.

    Args:
        lm: the model.
        corpus: what `open_corpus` opens, or takes.
        reducers: running statistics; their results come back in this order.
        engine: "local", this process; "ray", or a `Ray` with settings: workers on a Ray cluster.
        checkpoint: a file that the sweep saves itself to and resumes from.
        every: how often it saves itself; every five minutes unless told.
        tokens_per_batch: columns times rows of a batch.
        fast: "float32" (other kernels, rounding differs) or "bfloat16" (products in bfloat16) for a faster forward
            pass that is not bit for bit the model's; `fast_difference` measures by how much.
        progress: called with a `Progress` about twice a second, and at the end.

    Returns:
        Each reducer's result.

    Raises:
        ExtraMissing: Ray was asked for and is not installed.
        CheckpointFault: the checkpoint is damaged, of another sweep, or cannot be written.
        Unsupported: fast="bfloat16" where the processor has no instructions for it.
        CorpusUnreadable: the corpus is empty, or cannot be read or decoded.
    """
    if not isinstance(engine, Ray) and engine not in ENGINES:
        raise InvalidInput(f"engine={engine!r}", why=f"it is none of {', '.join(ENGINES)}")
    tokens_per_batch = positive_int("tokens_per_batch", tokens_per_batch)
    todo = [reducers] if isinstance(reducers, Reducer) else list(as_tuple("reducers", reducers))
    if not todo:
        raise InvalidInput("reducers", why="there is none", instead="Give at least one, such as TopTriggers()")
    for reducer in todo:
        if not isinstance(reducer, Reducer):
            raise InvalidInput(f"reducer {reducer!r:.60}", why="it is none", instead="Give one such as TopTriggers()")
    checked(require_decoder(lm), fast)
    file = None if checkpoint is None else as_path(checkpoint).expanduser()
    read, every = open_corpus(corpus), every or Every()
    if engine == "local":
        return local.run(lm, read, todo, file, every, tokens_per_batch, progress, fast)
    settings = engine if isinstance(engine, Ray) else Ray()
    return ray_engine.run(lm, read, todo, settings, file, every, tokens_per_batch, progress, fast)
