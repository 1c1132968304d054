"""The workers of a Ray sweep: a model in a process of its own each, and who of them is idle, busy, coming or gone."""

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
from unembed.sweeps.ray.model_transfer import Named, Packed, unpacked
from unembed.sweeps.ray.shards import Seen, Shard, States, joined, reduce_shard
from unembed.sweeps.reducers.reducer import Reducer

STILLBORN = 5
"""So many workers in a row may die before their model is open."""


@dataclass(frozen=True)
class Ray:
    """How a sweep uses a Ray cluster: the one already connected to, else one on this machine, started if need be.

    Attributes:
        workers: actors; as many as the cluster has room for when None.
        cpus: threads of each.
        gpus: GPUs of each, fractions allowed; the model is moved to the first.
        batches_per_shard: handed out at once.
        shards_at_risk: neighbouring shards that the workers join among themselves before this process keeps a copy;
            what a lost machine held of them is done again. A power of two.
        open_model: opens the model inside a worker; sent from here, or opened there by its name where it is spread over
            devices, when None.
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
            raise InvalidInput(f"{self}", why="a shard holds a batch or more, and GPUs are not negative")
        if self.shards_at_risk < 1 or self.shards_at_risk & (self.shards_at_risk - 1):
            raise InvalidInput(f"shards_at_risk={self.shards_at_risk}", why="it must be a power of two")


class Worker:
    """A model in a process of its own."""

    def open(self, sent: Packed | Named | None, settings: Ray, reducers: Sequence[Reducer], fast: Fast | None) -> bool:
        """Open the model once."""
        torch.set_num_threads(settings.cpus)
        disable_progress_bar()  # a bar from every worker is no help
        if settings.open_model is not None:
            self._lm = settings.open_model()
        else:
            assert sent is not None
            self._lm = unpacked(sent)
            if settings.gpus > 0 and isinstance(sent, Packed):
                self._lm.hf.to("cuda")  # type: ignore[arg-type]
        self._reducers = reducers
        self._fast: Fast | None = fast
        return True

    def work(self, shard: Shard) -> tuple[Seen, States]:
        """One shard."""
        return reduce_shard(self._lm, self._reducers, shard, self._fast)

    def join(self, seen: Seen, earlier: States, later: States) -> tuple[Seen, States]:
        """Two neighbouring parts."""
        return seen, joined(self._lm, self._reducers, earlier, later)


@dataclass(frozen=True, eq=False)
class Reading:
    """A shard to be read."""

    shard: Shard

    @property
    def run(self) -> tuple[int, int]:
        """First shard, and the one behind the last."""
        return self.shard.number, self.shard.number + 1


@dataclass(frozen=True, eq=False)
class Joining:
    """Two neighbouring parts to be joined."""

    earlier: Part
    later: Part

    @property
    def run(self) -> tuple[int, int]:
        """First shard, and the one behind the last."""
        return self.earlier.first, self.later.end


Job = Reading | Joining


@dataclass(frozen=True, eq=False)
class Heard:
    """What became of a job: how much was seen and where its states are, or that it was lost.

    Attributes:
        job: which.
        seen: None where the job was lost.
        where: a reference to the states.
        input_lost: the job failed because what it was given is gone.
    """

    job: Job
    seen: Seen | None = None
    where: Any = None
    input_lost: bool = False


class Crew:
    """The actors: who is idle, who does what, and who is still coming."""

    def __init__(self, ray: Any, settings: Ray, n: int, arguments: tuple[Any, ...]) -> None:
        """Ask for n actors; they come as the cluster finds room."""
        self._ray, self._arguments, self.n = ray, arguments, n
        # Asking for no GPU hides all of them, so it is always said. Ray restarts nothing: the engine does.
        self._make = ray.remote(num_cpus=settings.cpus, num_gpus=settings.gpus, max_restarts=0)(Worker)
        self.idle: deque[Any] = deque()
        self._coming: dict[Any, Any] = {}
        self._busy: dict[Any, tuple[Any, Job, Any]] = {}
        self._stillborn = 0
        for _ in range(n):
            self._ask()

    def _ask(self) -> None:
        actor = self._make.options(scheduling_strategy="SPREAD").remote()
        # Opened by a call of its own: what fails in a constructor looks like a dead machine.
        self._coming[actor.open.remote(*self._arguments)] = actor

    def under_way(self) -> list[Job]:
        """Jobs that have not been heard of."""
        return [job for _, job, _ in self._busy.values()]

    def give(self, job: Job) -> None:
        """Hand a job to an idle actor."""
        actor = self.idle.popleft()
        if isinstance(job, Reading):
            seen, states = actor.work.options(num_returns=2).remote(job.shard)
        else:
            both = job.earlier.seen.then(job.later.seen)
            seen, states = actor.join.options(num_returns=2).remote(both, job.earlier.where, job.later.where)
        self._busy[seen] = actor, job, states

    def hear(self, seconds: float) -> list[Heard]:
        """What was done, and what was lost, within some seconds.

        Raises:
            Exception: whatever a reducer, or opening the model, raised in a worker.
            Unsupported: one worker after another dies before its model is open.
        """
        waiting = [*self._busy, *self._coming]
        heard: list[Heard] = []
        for answer in self._ray.wait(waiting, num_returns=1, timeout=seconds)[0] if waiting else ():
            if answer in self._coming:
                self._arrived(answer, self._coming.pop(answer))
                continue
            actor, job, states = self._busy.pop(answer)
            try:
                seen = self._told(answer)
            except self._ray.exceptions.ObjectLostError:
                self.idle.append(actor)
                heard.append(Heard(job, input_lost=True))
            except self._ray.exceptions.RayError:
                self._ask()
                heard.append(Heard(job))
            else:
                self.idle.append(actor)
                heard.append(Heard(job, seen, states))
        return heard

    def _arrived(self, answer: Any, actor: Any) -> None:
        try:
            self._told(answer)
        except self._ray.exceptions.RayError as error:
            self._stillborn += 1
            if self._stillborn > STILLBORN + self.n:
                raise Unsupported(
                    "engine='ray'",
                    why=f"{self._stillborn} workers in a row died before their model was open ({type(error).__name__})",
                    instead="See whether a worker has the memory for it: fewer workers, or more cpus for each",
                ) from error
            self._ask()
        else:
            self._stillborn = 0
            self.idle.append(actor)

    def _told(self, answer: Any) -> Any:
        """What an answer holds; an error inside a worker as it was raised there, a lost input as such."""
        try:
            return self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error

    def fetch(self, part: Part) -> States | None:
        """The states of a part, None where they are lost."""
        try:
            return self._ray.get(part.where)
        except self._ray.exceptions.RayError:
            return None

    def store(self, states: States) -> Any:
        """A new reference to states that are held here."""
        return self._ray.put(states)

    def leave(self) -> None:
        """Let all actors go."""
        for actor in (*self.idle, *self._coming.values(), *(actor for actor, _, _ in self._busy.values())):
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
