"""The driver of a Ray sweep: it gives jobs to workers, copies their results, and repeats jobs that were lost."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unembed.errors import Unsupported
from unembed.results import format_number
from unembed.sweeps.checkpoint import Checkpoint, CheckpointInterval, save
from unembed.sweeps.interrupt import deferred_interrupt
from unembed.sweeps.progress import ProgressCallback, Reporter
from unembed.sweeps.ray.merge_tree import MergeTree, Part, contiguous_parts
from unembed.sweeps.ray.shards import Coverage, Shard
from unembed.sweeps.ray.workers import JobResult, MergeJob, ReadJob, WorkerPool

WORKER_TIMEOUT_S = 300.0
"""The sweep fails if no worker is alive for this number of seconds."""
MAX_JOB_FAILURES = 5
"""The sweep fails if more workers die at one job than this number plus the size of the pool."""


class SweepDriver:
    """A Ray sweep in progress.

    The corpus is cut into shards (sequences of batches). Workers process shards and merge the results of neighbouring
    ones; the result of neighbouring shards is a `Part`. A part is called stored when this process has a copy of its
    states. Until then, this process keeps the batches of the part's shards in memory, so that they can be processed
    again if a worker dies. When a stored part is merged with another, the result is stored at once.

    Args:
        shards: the shards of the corpus that are not in `parts`.
        parts: the results that an earlier run saved.
        at_risk: a part with at least this number of shards is stored.
        checkpoint: the file to save to, or None.
        identity: what must be equal to resume the sweep (`identity_of`).
    """

    def __init__(
        self,
        pool: WorkerPool,
        shards: Iterator[Shard],
        parts: Sequence[Part],
        at_risk: int,
        checkpoint: Path | None,
        every: CheckpointInterval,
        progress: ProgressCallback | None,
        identity: Mapping[str, str],
    ) -> None:
        self._pool, self._shards, self._at_risk = pool, shards, at_risk
        self._checkpoint, self._every, self._identity = checkpoint, every, identity
        self._reporter, self._tree = Reporter(progress), MergeTree()
        self._queue: deque[Shard] = deque()
        self._not_stored: dict[int, Shard] = {}
        self._failures: Counter[tuple[int, int]] = Counter()
        self._n_shards = 0
        for part in parts:
            part.ref, self._n_shards = pool.store(part.states or ()), part.end
            self._tree.put(part)

    def run(self) -> list[Part]:
        """Process the corpus until one stored part covers all of it.

        Returns that part in a list, which is empty if the corpus has no shards.

        Raises:
            Unsupported: no worker could be started, or workers died again and again.
            Exception: an exception that a reducer raised.
        """
        done = self._coverage()
        self._reporter.resume(done.tokens, done.share)
        saved_at, saved, alive_at = time.monotonic(), done.batches, time.monotonic()
        with deferred_interrupt(self._checkpoint is not None) as interrupted:
            while (root := self._stored_root()) is None and self._tree.n_shards != 0:
                self._assign_jobs()
                for result in self._pool.poll(1.0):
                    self._handle(result)
                if self._pool.running_jobs() or self._pool.idle:
                    alive_at = time.monotonic()
                elif time.monotonic() - alive_at > WORKER_TIMEOUT_S:
                    raise Unsupported(
                        "engine='ray'",
                        why=f"no worker could be started for {format_number(WORKER_TIMEOUT_S, decimals=0)} seconds",
                    )
                done = self._coverage()
                self._reporter.report(done.batches, done.tokens, done.share)
                if interrupted.is_set():
                    self._save()
                    raise KeyboardInterrupt
                if self._every.is_due(done.batches - saved, time.monotonic() - saved_at):
                    self._save()
                    saved_at, saved = time.monotonic(), done.batches
        parts = [] if root is None else [root]
        self._write_checkpoint(parts, finished=True)
        self._reporter.report(done.batches, done.tokens, 1.0, end=True)
        return parts

    def _stored_root(self) -> Part | None:
        part = self._tree.root()
        if part is None or self._store(part):
            return part
        self._tree.drop(part)
        self._requeue(part.first, part.end)
        return None

    def _assign_jobs(self) -> None:
        """Give every idle worker a job; merges come first, because they free memory."""
        while self._pool.idle:
            if (pair := self._tree.pair()) is not None:
                self._pool.submit(MergeJob(*pair))
            elif (shard := self._queue.popleft() if self._queue else self._next_shard()) is not None:
                self._not_stored[shard.number] = shard
                self._pool.submit(ReadJob(shard))
            else:
                break
        # Cut the next shard from the corpus now, while all workers are busy, so that a worker that becomes idle can
        # start on it at once.
        if len(self._queue) < self._pool.n and (shard := self._next_shard()) is not None:
            self._queue.append(shard)

    def _next_shard(self) -> Shard | None:
        """Return the next shard of the corpus; at its end, record the number of shards and return None."""
        if self._tree.n_shards is not None:
            return None
        shard = next(self._shards, None)
        if shard is None:
            self._tree.n_shards = self._n_shards
        else:
            self._n_shards = shard.number + 1
        return shard

    def _handle(self, result: JobResult) -> None:
        """Record the result of a job, or put its shards into the queue again if the result is lost."""
        job = result.job
        inputs = (job.earlier, job.later) if isinstance(job, MergeJob) else ()
        if result.coverage is not None:
            part = Part(*job.span, result.coverage, result.ref)
            may_wait = len(part) < self._at_risk and all(child.states is None for child in inputs)
            if may_wait or self._store(part):
                self._tree.put(part)
                return
        elif not result.input_lost:
            self._failures[job.span] += 1
            # When a machine dies, the same job may be given to each of its dead workers, one after another, and fail
            # each time. So one additional failure is allowed for each worker.
            if self._failures[job.span] > MAX_JOB_FAILURES + self._pool.n:
                raise Unsupported(
                    "engine='ray'",
                    why=f"{self._failures[job.span]} workers died on the same job",
                    instead="Use fewer workers on a machine, or smaller batches: the usual cause is too little memory",
                )
        if isinstance(job, ReadJob):
            self._requeue(*job.span)
        for part in inputs:
            if part.states is not None:
                part.ref = self._pool.store(part.states)
            if part.states is not None or not result.input_lost:
                self._tree.put(part)
            else:
                self._requeue(part.first, part.end)

    def _requeue(self, first: int, end: int) -> None:
        """Put shards at the front of the queue."""
        self._queue.extendleft(self._not_stored[number] for number in reversed(range(first, end)))

    def _store(self, part: Part) -> bool:
        """Copy a part's states to this process if they are not here; return False if they are lost."""
        if part.states is None:
            part.states = self._pool.fetch(part)
        if part.states is None:
            return False
        for number in range(part.first, part.end):
            self._not_stored.pop(number, None)
        return True

    def _parts_from_start(self) -> list[Part]:
        """Return the parts from the start of the corpus up to the first gap, including inputs of running merges."""
        merges = [job for job in self._pool.running_jobs() if isinstance(job, MergeJob)]
        return contiguous_parts((*self._tree.parts(), *(part for job in merges for part in (job.earlier, job.later))))

    def _coverage(self) -> Coverage:
        """Return how much of the corpus is done, from its start up to the first gap."""
        done = Coverage(0, 0, 0.0)
        for part in self._parts_from_start():
            done = done.then(part.coverage)
        return done

    def _save(self) -> None:
        """Save to the checkpoint what is done from the start of the corpus up to the first gap.

        If a part is lost, it and all later parts are left out; the job that needs the part reports the loss.
        """
        parts: list[Part] = []
        for part in self._parts_from_start() if self._checkpoint is not None else ():
            if not self._store(part):
                break
            parts.append(part)
        self._write_checkpoint(parts, finished=False)

    def _write_checkpoint(self, parts: Sequence[Part], *, finished: bool) -> None:
        if self._checkpoint is not None:
            batches = sum(part.coverage.batches for part in parts)
            tokens = sum(part.coverage.tokens for part in parts)
            save(self._checkpoint, Checkpoint(batches, tokens, finished, _states(parts)), self._identity)


def _states(parts: Sequence[Part]) -> tuple[Mapping[str, Any], ...]:
    """Return all parts in the form that a checkpoint stores; `parts_of` converts them back."""
    table = [(p.first, p.end, p.coverage.batches, p.coverage.tokens, p.coverage.share) for p in parts]
    return ({"parts": table}, *(state for part in parts for state in part.states or ()))


def parts_of(checkpoint: Checkpoint) -> list[Part]:
    """Return the parts that a checkpoint contains."""
    table, *states = checkpoint.states
    width = len(states) // max(1, len(table["parts"]))
    return [
        Part(first, end, Coverage(batches, tokens, share), states=tuple(states[n * width : (n + 1) * width]))
        for n, (first, end, batches, tokens, share) in enumerate(table["parts"])
    ]
