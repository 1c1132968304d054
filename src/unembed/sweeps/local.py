"""The local engine of a sweep: one process runs the model on one batch after another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from unembed.corpus.corpus import Corpus
from unembed.corpus.token_stream import TokenizedCorpus
from unembed.corpus.whole_windows import WholeWindows
from unembed.models.decoder import Decoder
from unembed.sweeps.checkpoint import Checkpoint, CheckpointInterval, identity_of, load, prepare, save
from unembed.sweeps.fast_kernels import Fast
from unembed.sweeps.forward import feed_reducers
from unembed.sweeps.interrupt import deferred_interrupt
from unembed.sweeps.progress import ProgressCallback, Reporter
from unembed.sweeps.reducers.reducer import Reducer


def run(
    lm: Decoder,
    corpus: Corpus | TokenizedCorpus | WholeWindows,
    reducers: Sequence[Reducer],
    checkpoint: Path | None,
    every: CheckpointInterval,
    tokens_per_batch: int,
    progress: ProgressCallback | None,
    fast: Fast | None = None,
) -> list[Any]:
    """Run a sweep in this process; see `unembed.sweep`."""
    identity: dict[str, str] = {}
    if checkpoint is not None:
        prepare(checkpoint)
        identity = identity_of(lm, corpus, reducers, tokens_per_batch) | {"fast": str(fast)}
    for reducer in reducers:
        reducer.start(lm)
    saved = None if checkpoint is None else load(checkpoint, identity)
    batches = tokens = 0
    if saved is not None:
        for reducer, state in zip(reducers, saved.states, strict=True):
            reducer.load_state(state)
        batches, tokens = saved.batches, saved.tokens

    def save_states(finished: bool) -> None:
        if checkpoint is not None:
            states = tuple(reducer.state() for reducer in reducers)
            save(checkpoint, Checkpoint(batches, tokens, finished, states), identity)

    if saved is None or not saved.finished:
        reporter, since_save, saved_at = Reporter(progress), 0, time.monotonic()
        with feed_reducers(lm, reducers, fast) as feed, deferred_interrupt(checkpoint is not None) as interrupted:
            remaining = corpus.batches(lm, tokens_per_batch)
            for skipped in islice(remaining, batches):
                reporter.resume(tokens, skipped.share)
            for batch in remaining:
                feed(batch)
                batches, tokens, since_save = batches + 1, tokens + batch.n_counted, since_save + 1
                reporter.report(batches, tokens, batch.share)
                if interrupted.is_set():
                    save_states(finished=False)
                    raise KeyboardInterrupt
                if checkpoint is not None and every.is_due(since_save, time.monotonic() - saved_at):
                    save_states(finished=False)
                    since_save, saved_at = 0, time.monotonic()
        save_states(finished=True)
        reporter.report(batches, tokens, 1.0, end=True)
    return [reducer.result() for reducer in reducers]
