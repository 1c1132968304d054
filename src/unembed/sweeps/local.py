"""The local engine: one process, one model, batches in order."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from unembed.corpus.corpus import Corpus
from unembed.models.decoder import Decoder
from unembed.sweeps.checkpoint import Saved, identity, load, prepare, save
from unembed.sweeps.fast_kernels import Fast
from unembed.sweeps.forward import feeding
from unembed.sweeps.progress import Report, Reporter
from unembed.sweeps.reducers.reducer import Reducer


@dataclass(frozen=True)
class Every:
    """How often a sweep saves itself: after so many batches or minutes, whichever comes first."""

    batches: int | None = None
    minutes: float | None = 5.0

    def is_due(self, batches: int, seconds: float) -> bool:
        """Whether that much has passed since the last time."""
        if self.batches is not None and batches >= self.batches:
            return True
        return self.minutes is not None and seconds >= 60 * self.minutes


def run(
    lm: Decoder,
    corpus: Corpus,
    reducers: Sequence[Reducer],
    checkpoint: Path | None,
    every: Every,
    tokens_per_batch: int,
    progress: Report | None,
    fast: Fast | None = None,
) -> list[Any]:
    """See `unembed.sweep`."""
    who: dict[str, str] = {}
    if checkpoint is not None:
        prepare(checkpoint)
        who = identity(lm, corpus, reducers, tokens_per_batch) | {"fast": str(fast)}
    for reducer in reducers:
        reducer.start(lm)
    saved = None if checkpoint is None else load(checkpoint, who)
    batches = tokens = 0
    if saved is not None:
        for reducer, state in zip(reducers, saved.states, strict=True):
            reducer.load_state(state)
        batches, tokens = saved.batches, saved.tokens

    def keep(finished: bool) -> None:
        if checkpoint is not None:
            save(checkpoint, Saved(batches, tokens, finished, tuple(r.state() for r in reducers)), who)

    if saved is None or not saved.finished:
        reporter, since, at = Reporter(progress), 0, time.monotonic()
        with feeding(lm, reducers, fast) as feed, deferred_interrupt(checkpoint is not None) as interrupted:
            coming = corpus.batches(lm, tokens_per_batch)
            for skipped in islice(coming, batches):
                reporter.begin(tokens, skipped.share)
            for batch in coming:
                feed(batch)
                batches, tokens, since = batches + 1, tokens + batch.n_counted, since + 1
                reporter.tell(batches, tokens, batch.share)
                if interrupted.is_set():
                    keep(finished=False)
                    raise KeyboardInterrupt
                if checkpoint is not None and every.is_due(since, time.monotonic() - at):
                    keep(finished=False)
                    since, at = 0, time.monotonic()
        keep(finished=True)
        reporter.tell(batches, tokens, 1.0, end=True)
    return [reducer.result() for reducer in reducers]


@contextmanager
def deferred_interrupt(wanted: bool) -> Iterator[threading.Event]:
    """While inside, the first Ctrl-C only sets the event; a second one interrupts at once. Main thread only."""
    event = threading.Event()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
