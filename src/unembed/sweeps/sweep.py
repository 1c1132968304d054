"""Run a model once over a corpus, and compute any number of statistics (`unembed.sweep`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unembed.corpus.corpus import CorpusSource, open_corpus
from unembed.corpus.token_stream import TokenizedCorpus
from unembed.corpus.whole_windows import WholeWindows
from unembed.errors import InvalidInput
from unembed.models.decoder import Decoder, require_decoder
from unembed.sweeps import local
from unembed.sweeps.checkpoint import CheckpointInterval
from unembed.sweeps.fast_kernels import Fast, check_fast
from unembed.sweeps.progress import ProgressCallback
from unembed.sweeps.ray import engine as ray_engine
from unembed.sweeps.ray.workers import Ray
from unembed.sweeps.reducers.reducer import Reducer
from unembed.validation import as_path, as_tuple, one_of, positive_int

ENGINES = ("local", "ray")


def sweep(
    lm: Decoder,
    corpus: CorpusSource | TokenizedCorpus | WholeWindows,
    reducers: Sequence[Reducer] | Reducer,
    *,
    engine: str | Ray = "local",
    checkpoint: str | Path | None = None,
    every: CheckpointInterval | None = None,
    tokens_per_batch: int = 2048,
    fast: Fast | None = None,
    progress: ProgressCallback | None = None,
) -> list[Any]:
    """Run the model once over a corpus, and return the statistics that the reducers compute.

    Each batch takes one forward pass, which stops after the last tensor that a reducer needs. With a checkpoint, an
    interrupted sweep resumes from its last save. Its result is bit for bit that of an uninterrupted sweep on the same
    machine and number of threads. A checkpoint of another model, corpus or setting is refused. After Ctrl-C the current
    batch ends and the sweep saves before it stops. If the checkpoint is of a finished sweep, the result is returned at
    once.

    Args:
        corpus: anything that `open_corpus` accepts, or a corpus that is already tokenised or cut into windows.
        reducers: the statistics to compute; the results are in the same order.
        engine: "local" for this process; "ray", or a `Ray` object with settings, for workers on a Ray cluster.
        checkpoint: the file to save the sweep to, and to resume it from.
        every: how often to save; by default, every five minutes.
        tokens_per_batch: number of tokens in a batch, padding included.
        fast: "float32" (other kernels, which round differently) or "bfloat16" (matrix products in bfloat16) for a
            faster forward pass, whose results differ from the model's own; `fast_difference` measures by how much.
        progress: a function to call with a `Progress` about twice a second, and at the end.

    Returns:
        The result of each reducer.

    Raises:
        ExtraMissing: the engine is Ray, and ray is not installed.
        CheckpointFault: the checkpoint is damaged, is from another sweep, or cannot be written.
        Unsupported: `fast` is "bfloat16", and the processor has no instructions for it.
        CorpusUnreadable: the corpus is empty, or cannot be read or decoded.
    """
    if not isinstance(engine, Ray):
        one_of("engine", engine, ENGINES)
    tokens_per_batch = positive_int("tokens_per_batch", tokens_per_batch)
    todo = [reducers] if isinstance(reducers, Reducer) else list(as_tuple("reducers", reducers))
    if not todo:
        raise InvalidInput("reducers", why="the list is empty", instead="Give at least one, such as TopTriggers()")
    for reducer in todo:
        if not isinstance(reducer, Reducer):
            raise InvalidInput(
                f"reducer {reducer!r:.60}", why="it is not a Reducer", instead="Give one such as TopTriggers()"
            )
    check_fast(require_decoder(lm), fast)
    path = None if checkpoint is None else as_path(checkpoint).expanduser()
    source = corpus if isinstance(corpus, TokenizedCorpus | WholeWindows) else open_corpus(corpus)
    every = every or CheckpointInterval()
    if engine == "local":
        return local.run(lm, source, todo, path, every, tokens_per_batch, progress, fast)
    settings = engine if isinstance(engine, Ray) else Ray()
    return ray_engine.run(lm, source, todo, settings, path, every, tokens_per_batch, progress, fast)
