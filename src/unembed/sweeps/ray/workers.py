"""The workers of a Ray sweep (actors that each have a copy of the model), and the pool that gives them jobs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from unembed.errors import ExtraMissing, InvalidInput, Unsupported
from unembed.models.decoder import Decoder
from unembed.sweeps.fast_kernels import Fast
from unembed.sweeps.ray.merge_tree import Part
from unembed.sweeps.ray.model_transfer import ModelReference, SerializedModel, deserialize_model
from unembed.sweeps.ray.shards import Coverage, Shard, States, merge_states, reduce_shard
from unembed.sweeps.reducers.reducer import Reducer

MAX_STARTUP_FAILURES = 5
"""The sweep fails if more workers in a row die before their model is open than this number plus the size of the
pool."""


@dataclass(frozen=True)
class Ray:
    """Settings of a sweep on a Ray cluster: the connected one, or else one that is started on this machine.

    Attributes:
        workers: the number of workers; by default, as many as the cluster has CPUs and GPUs for.
        cpus: number of CPUs, and of threads, for each worker.
        gpus: number of GPUs for each worker, which may be a fraction; the model is moved to the first.
        batches_per_shard: number of batches in one job.
        shards_at_risk: number of neighbouring shards whose results workers merge before this process copies the result;
            if a machine is lost, results that were only there are computed again. A power of two.
        open_model: a function that opens the model inside a worker. By default, the weights are sent from this process;
            a model that is spread over devices is opened in the worker by its name.
    """

    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    batches_per_shard: int = 16
    shards_at_risk: int = 8
    open_model: Callable[[], Decoder] | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("workers", self.workers, 1), ("cpus", self.cpus, 1)):
            if value is not None and value < least:
                raise InvalidInput(f"{name}={value}", why=f"it must be at least {least}")
        if self.batches_per_shard < 1 or self.gpus < 0:
            raise InvalidInput(f"{self}", why="a shard needs at least one batch, and gpus must not be negative")
        if self.shards_at_risk < 1 or self.shards_at_risk & (self.shards_at_risk - 1):
            raise InvalidInput(f"shards_at_risk={self.shards_at_risk}", why="it must be a power of two")


class Worker:
    """A Ray actor: a model in a separate process."""

    def open(
        self,
        source: SerializedModel | ModelReference | None,
        settings: Ray,
        reducers: Sequence[Reducer],
        fast: Fast | None,
    ) -> bool:
        """Open the model; called once, before any job."""
        torch.set_num_threads(settings.cpus)
        disable_progress_bar()  # a progress bar for each worker would only clutter the terminal
        if settings.open_model is not None:
            self._lm = settings.open_model()
        else:
            assert source is not None
            self._lm = deserialize_model(source)
            if settings.gpus > 0 and isinstance(source, SerializedModel):
                self._lm.hf.to("cuda")  # type: ignore[arg-type]
        self._reducers = reducers
        self._fast: Fast | None = fast
        return True

    def read(self, shard: Shard) -> tuple[Coverage, States]:
        """Run the model over one shard; return what was covered and the states of the reducers."""
        return reduce_shard(self._lm, self._reducers, shard, self._fast)

    def merge(self, coverage: Coverage, earlier: States, later: States) -> tuple[Coverage, States]:
        """Merge the states of two neighbouring parts; return them with the coverage of both."""
        return coverage, merge_states(self._lm, self._reducers, earlier, later)


@dataclass(frozen=True, eq=False)
class ReadJob:
    """The job of running the model over a shard."""

    shard: Shard

    @property
    def span(self) -> tuple[int, int]:
        """The number of the first shard, and the number of the last shard plus 1."""
        return self.shard.number, self.shard.number + 1


@dataclass(frozen=True, eq=False)
class MergeJob:
    """The job of merging two neighbouring parts."""

    earlier: Part
    later: Part

    @property
    def span(self) -> tuple[int, int]:
        """The number of the first shard, and the number of the last shard plus 1."""
        return self.earlier.first, self.later.end


Job = ReadJob | MergeJob


@dataclass(frozen=True, eq=False)
class JobResult:
    """The outcome of one job: what it covers and the reference to its states, or that it failed.

    Attributes:
        coverage: the batches and tokens that the result covers; None if the job failed.
        ref: the Ray reference to the states.
        input_lost: whether the job failed because one of its inputs no longer exists.
    """

    job: Job
    coverage: Coverage | None = None
    ref: Any = None
    input_lost: bool = False


class WorkerPool:
    """The worker actors, each of which is idle, busy or still starting."""

    def __init__(self, ray: Any, settings: Ray, n: int, arguments: tuple[Any, ...]) -> None:
        """Request `n` workers; each starts as soon as the cluster has room for it."""
        self._ray, self._arguments, self.n = ray, arguments, n
        # num_gpus is passed even if it is 0, because a worker requested without it could use every GPU. Ray must not
        # restart workers (max_restarts=0), because the driver starts new ones.
        self._actor_class = ray.remote(num_cpus=settings.cpus, num_gpus=settings.gpus, max_restarts=0)(Worker)
        self.idle: deque[Any] = deque()
        self._starting: dict[Any, Any] = {}
        self._busy: dict[Any, tuple[Any, Job, Any]] = {}
        self._startup_failures = 0
        for _ in range(n):
            self._start_worker()

    def _start_worker(self) -> None:
        actor = self._actor_class.options(scheduling_strategy="SPREAD").remote()
        # The worker opens its model in a separate call and not in its constructor, because Ray reports an error in a
        # constructor in the same way as a dead machine.
        self._starting[actor.open.remote(*self._arguments)] = actor

    def running_jobs(self) -> list[Job]:
        """Return the jobs that have no result yet."""
        return [job for _, job, _ in self._busy.values()]

    def submit(self, job: Job) -> None:
        """Give a job to an idle worker."""
        actor = self.idle.popleft()
        if isinstance(job, ReadJob):
            done, states = actor.read.options(num_returns=2).remote(job.shard)
        else:
            both = job.earlier.coverage.then(job.later.coverage)
            done, states = actor.merge.options(num_returns=2).remote(both, job.earlier.ref, job.later.ref)
        self._busy[done] = actor, job, states

    def poll(self, seconds: float) -> list[JobResult]:
        """Return the results of jobs that end within `seconds`.

        Raises:
            Exception: an exception that a reducer, or opening the model, raised in a worker.
            Unsupported: workers died again and again before their model was open.
        """
        waiting = [*self._busy, *self._starting]
        results: list[JobResult] = []
        for done in self._ray.wait(waiting, num_returns=1, timeout=seconds)[0] if waiting else ():
            if done in self._starting:
                self._finish_startup(done, self._starting.pop(done))
                continue
            actor, job, states = self._busy.pop(done)
            try:
                coverage = self._get(done)
            except self._ray.exceptions.ObjectLostError:
                self.idle.append(actor)
                results.append(JobResult(job, input_lost=True))
            except self._ray.exceptions.RayError:
                self._start_worker()
                results.append(JobResult(job))
            else:
                self.idle.append(actor)
                results.append(JobResult(job, coverage, states))
        return results

    def _finish_startup(self, done: Any, actor: Any) -> None:
        try:
            self._get(done)
        except self._ray.exceptions.RayError as error:
            self._startup_failures += 1
            if self._startup_failures > MAX_STARTUP_FAILURES + self.n:
                raise Unsupported(
                    "engine='ray'",
                    why=f"{self._startup_failures} workers in a row died before their model was open "
                    f"({type(error).__name__})",
                    instead="Check that a worker has enough memory: use fewer workers, or more cpus for each",
                ) from error
            self._start_worker()
        else:
            self._startup_failures = 0
            self.idle.append(actor)

    def _get(self, ref: Any) -> Any:
        """Return the object behind a Ray reference; an exception of a worker is raised here unchanged."""
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error

    def fetch(self, part: Part) -> States | None:
        """Copy the states of a part to this process; None if they are lost."""
        try:
            return self._ray.get(part.ref)
        except self._ray.exceptions.RayError:
            return None

    def store(self, states: States) -> Any:
        """Put states of this process into Ray's object store, and return the reference."""
        return self._ray.put(states)

    def shutdown(self) -> None:
        """End all workers."""
        for actor in (*self.idle, *self._starting.values(), *(actor for actor, _, _ in self._busy.values())):
            self._ray.kill(actor)


def import_ray() -> Any:
    """Import and return the `ray` module with its telemetry turned off.

    Raises:
        ExtraMissing: ray is not installed.
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
