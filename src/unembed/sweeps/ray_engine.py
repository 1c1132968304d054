"""The Ray engine: one model in each actor, shards handed out as they are done, a lost worker's share done again.

The driver cuts the corpus, hands shards out and joins what comes back, so what is joined is safe with it. An actor that
dies, with its process or its node, gives its shard back to the queue, and another is asked for; meanwhile the others go
on. The result depends on the corpus and the shard size only (see `shards`).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unembed.corpus.corpus import Corpus
from unembed.errors import ExtraMissing, InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.sweeps.checkpoint import Saved, identity, load, prepare, save
from unembed.sweeps.local import Every, deferred_interrupt
from unembed.sweeps.progress import Report, Reporter
from unembed.sweeps.reducer import Reducer
from unembed.sweeps.shards import Done, Joining, Shard, reduce_shard, shards

PATIENCE = 300.0
"""Seconds without any living worker after which a sweep gives up."""


@dataclass(frozen=True)
class Ray:
    """How a sweep uses a Ray cluster: the one already connected to, else one started on this machine for the sweep.

    Attributes:
        workers: actors; as many as the cluster has room for when None.
        cpus: threads of each.
        gpus: GPUs of each, fractions allowed; the model is moved to the first.
        batches_per_shard: handed out at once, and done again when a worker is lost.
        open_model: opens the model inside a worker, for models that are better read there than sent, such as those
            spread over devices with `device_map`; sent from here when None.
    """

    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    batches_per_shard: int = 16
    open_model: Callable[[], Decoder] | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("workers", self.workers, 1), ("cpus", self.cpus, 1)):
            if value is not None and value < least:
                raise InvalidInput(f"{name}={value}", why=f"it must be at least {least}")
        if self.batches_per_shard < 1 or self.gpus < 0:
            raise InvalidInput(f"{self}", why="a shard holds a batch or more, and GPUs are not negative")


class Worker:
    """A model in a process of its own."""

    def __init__(self, opened: Any, settings: Ray, reducers: Sequence[Reducer]) -> None:
        """Open the model once."""
        torch.set_num_threads(settings.cpus)
        self._lm = Decoder(opened) if settings.open_model is None else settings.open_model()
        if settings.gpus > 0 and settings.open_model is None:
            self._lm.hf.to("cuda")  # type: ignore[arg-type]
        self._reducers = reducers

    def ready(self) -> bool:
        """Answers once the model is open."""
        return True

    def work(self, shard: Shard) -> Done:
        """One shard."""
        return reduce_shard(self._lm, self._reducers, shard)


class Crew:
    """The actors: who is idle, who does what, and who is still coming."""

    def __init__(self, ray: Any, settings: Ray, n: int, arguments: tuple[Any, ...]) -> None:
        """Ask for n actors; they come as the cluster finds room."""
        self._ray, self._arguments = ray, arguments
        # Asking for no GPU hides all of them, so it is always said. Ray restarts nothing: the queue here does.
        self._make = ray.remote(num_cpus=settings.cpus, num_gpus=settings.gpus, max_restarts=0)(Worker)
        self.idle: deque[Any] = deque()
        self._coming: dict[Any, Any] = {}
        self._busy: dict[Any, tuple[Any, Shard]] = {}
        for _ in range(n):
            self._ask()

    def _ask(self) -> None:
        actor = self._make.options(scheduling_strategy="SPREAD").remote(*self._arguments)
        self._coming[actor.ready.remote()] = actor

    @property
    def n_busy(self) -> int:
        """Shards under way."""
        return len(self._busy)

    def give(self, shard: Shard) -> None:
        """Hand a shard to an idle actor."""
        actor = self.idle.popleft()
        self._busy[actor.work.remote(shard)] = (actor, shard)

    def hear(self, seconds: float) -> tuple[list[Done], list[Shard]]:
        """What was done, and what was lost, within some seconds."""
        done: list[Done] = []
        lost: list[Shard] = []
        waiting = [*self._busy, *self._coming]
        for answer in self._ray.wait(waiting, num_returns=1, timeout=seconds)[0]:
            actor, shard = self._busy.pop(answer, (None, None))
            actor = self._coming.pop(answer) if actor is None else actor
            try:
                told = self._ray.get(answer)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from error
            except self._ray.exceptions.RayError:
                if shard is not None:
                    lost.append(shard)
                self._ask()
                continue
            if shard is not None:
                done.append(told)
            self.idle.append(actor)
        return done, lost

    def leave(self) -> None:
        """Let all actors go."""
        for actor in (*self.idle, *self._coming.values(), *(actor for actor, _ in self._busy.values())):
            self._ray.kill(actor)


def imported() -> Any:
    """Ray, without its telemetry.

    Raises:
        ExtraMissing: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray  # pyright: ignore[reportMissingImports]  (an extra)
    except ImportError as error:
        raise ExtraMissing(
            "engine='ray'", why="ray is not installed", instead="pip install 'unembed[ray]', or use engine='local'"
        ) from error
    return ray


def run(
    lm: Decoder,
    corpus: Corpus,
    reducers: Sequence[Reducer],
    settings: Ray,
    checkpoint: Path | None,
    every: Every,
    tokens_per_batch: int,
    progress: Report | None,
) -> list[Any]:
    """See `unembed.sweep`."""
    ray = imported()
    who: dict[str, str] = {}
    if checkpoint is not None:
        prepare(checkpoint)
        who = identity(lm, corpus, reducers, tokens_per_batch) | {
            "engine": f"ray, {settings.batches_per_shard} a shard"
        }

    def begin() -> list[Reducer]:
        fresh = deepcopy(list(reducers))
        for reducer in fresh:
            reducer.start(lm)
        return fresh

    joined = Joining(begin)
    saved = None if checkpoint is None else load(checkpoint, who)
    if saved is not None:
        joined.load_state(saved.states, saved.batches, saved.tokens)
    if saved is None or not saved.finished:
        started_here = not ray.is_initialized()
        if started_here:
            ray.init(include_dashboard=False, log_to_driver=False, num_cpus=os.cpu_count())
        crew: Crew | None = None
        try:
            n = settings.workers or _room(ray, settings)
            sent = None if settings.open_model else ray.put(lm._opened)
            crew = Crew(ray, settings, n, (sent, settings, list(reducers)))
            _drive(crew, lm, corpus, joined, settings, checkpoint, every, tokens_per_batch, progress, who)
        finally:
            if crew is not None:
                crew.leave()
            if started_here:
                ray.shutdown()
    return joined.results()


def _room(ray: Any, settings: Ray) -> int:
    """How many workers the cluster has room for.

    Raises:
        Unsupported: none.
    """
    has = ray.cluster_resources()
    n = int(has.get("CPU", 0) // settings.cpus)
    if settings.gpus:
        n = min(n, int(has.get("GPU", 0) / settings.gpus))
    if n < 1:
        raise Unsupported(
            "engine='ray'",
            why=f"the cluster has {has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs, and a worker wants "
            f"{settings.cpus} and {settings.gpus:g}",
            instead="Ask for less",
        )
    return n


def _drive(
    crew: Crew,
    lm: Decoder,
    corpus: Corpus,
    joined: Joining,
    settings: Ray,
    checkpoint: Path | None,
    every: Every,
    tokens_per_batch: int,
    progress: Report | None,
    who: dict[str, str],
) -> None:
    """Hand out all shards, take them back, save as they come."""

    def keep(finished: bool) -> None:
        if checkpoint is not None:
            save(checkpoint, Saved(joined.batches, joined.tokens, finished, joined.state()), who)

    coming = shards(corpus.batches(lm, tokens_per_batch), settings.batches_per_shard, joined.shards)
    again: deque[Shard] = deque()
    reporter, at, since = Reporter(progress), time.monotonic(), joined.batches
    reporter.begin(joined.tokens, joined.share)
    heard, exhausted = time.monotonic(), False
    with deferred_interrupt(checkpoint is not None) as interrupted:
        while not exhausted or again or crew.n_busy:
            while crew.idle and (again or not exhausted):
                shard = again.popleft() if again else next(coming, None)
                if shard is None:
                    exhausted = True
                else:
                    crew.give(shard)
            if not crew.n_busy and exhausted and not again:
                break
            done, lost = crew.hear(1.0)
            again.extend(lost)
            for part in done:
                joined.take(part)
            if done or crew.n_busy or crew.idle:
                heard = time.monotonic()
            elif time.monotonic() - heard > PATIENCE:
                raise Unsupported("engine='ray'", why=f"no worker could be started for {PATIENCE:.0f} seconds")
            reporter.tell(joined.batches, joined.tokens, joined.share)
            if interrupted.is_set():
                keep(finished=False)
                raise KeyboardInterrupt
            if checkpoint is not None and every.is_due(joined.batches - since, time.monotonic() - at):
                keep(finished=False)
                at, since = time.monotonic(), joined.batches
    keep(finished=True)
    reporter.tell(joined.batches, joined.tokens, 1.0, end=True)
