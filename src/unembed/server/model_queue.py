"""One thread that runs the model, while others answer.

Work is a generator: the worker takes one step of one job and puts it at the end of the queue, so that a question of one
client is answered between two tokens of another's generation. A newer job of the same client and channel replaces
an older one, waiting or running. What nobody asked for yet is worked on while nothing else is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from unembed.errors import UnembedError

_END = object()
_LOOK = 1.0
"""Seconds of waiting without a look up: on Windows a thread that waits without end is deaf to Ctrl-C."""


class Superseded(UnembedError):
    """A newer request of the same page took this one's place, or the page has gone."""


def replaced() -> Superseded:
    """What the older of two requests gets."""
    return Superseded("this request was replaced", why="a newer one of the same page took its place")


class Busy(UnembedError):
    """More work is waiting than the server takes."""


@dataclass(eq=False)
class Job:
    """One piece of work and where its items go."""

    steps: Callable[[], Iterator[Any]]
    key: tuple[str, str]
    what: str
    loop: asyncio.AbstractEventLoop
    out: asyncio.Queue[Any]
    since: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    running: Iterator[Any] | None = None

    def put(self, item: Any) -> None:
        """Hand an item to the request that waits for it, wherever its loop runs."""
        try:
            self.loop.call_soon_threadsafe(self.out.put_nowait, item)
        except RuntimeError:
            self.cancelled = True  # the loop is closed: the server is going down


class Worker:
    """The queue before the model, and the thread that empties it."""

    def __init__(self, waiting: int = 64) -> None:
        """Nothing runs before `start` or `work`. `waiting` is how many jobs may wait at once."""
        self._waiting = waiting
        self._jobs: deque[Job] = deque()
        self._current: Job | None = None
        self._spare: Iterator[Any] | None = None
        self._change = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Work on a thread of its own."""
        self._thread = threading.Thread(target=self.work, name="unembed-model", daemon=True)
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """What is running, for how long, and how much waits; never waits itself."""
        current = self._current
        return {
            "running": None if current is None else current.what,
            "seconds": None if current is None else round(time.monotonic() - current.since, 3),
            "waiting": len(self._jobs),
        }

    async def stream(
        self, steps: Callable[[], Iterator[Any]], *, what: str, client: str, channel: str
    ) -> AsyncIterator[Any]:
        """The items of a generator that runs on the model's thread.

        Raises:
            Superseded: a newer job of the same client and channel came.
            Busy: too many jobs wait.
        """
        job = Job(steps, (client, channel), what, asyncio.get_running_loop(), asyncio.Queue())
        self._add(job)
        try:
            while (item := await job.out.get()) is not _END:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            job.cancelled = True  # also when the client has gone away

    async def run(self, work: Callable[[], Any], *, what: str, client: str, channel: str) -> Any:
        """The result of a function that runs on the model's thread; raises as `stream` does."""

        def once() -> Iterator[Any]:
            yield work()

        result = None
        async for item in self.stream(once, what=what, client=client, channel=channel):
            result = item
        return result

    def meanwhile(self, steps: Iterator[Any]) -> None:
        """Work that nobody waits for, in place of what was given before: a step at a time until something is asked."""
        with self._change:
            self._spare = steps
            self._change.notify()

    def stop(self) -> None:
        """Cancel everything; `work` returns after the step under way."""
        with self._change:
            self._stopped = True
            for job in [*self._jobs, *([self._current] if self._current else [])]:
                job.cancelled = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _add(self, job: Job) -> None:
        with self._change:
            if self._stopped or len(self._jobs) >= self._waiting:
                raise Busy("the server is busy", why=f"{len(self._jobs)} requests wait", instead="Try again")
            for other in [*self._jobs, *([self._current] if self._current else [])]:
                if other.key == job.key:
                    other.cancelled = True
            self._spare = None
            self._jobs.append(job)
            self._change.notify()

    def work(self) -> None:
        """Work on the calling thread until the worker is stopped."""
        while True:
            with self._change:
                while not self._jobs and not self._stopped and self._spare is None:
                    self._change.wait(_LOOK)
                if self._stopped:
                    while self._jobs:
                        self._end(self._jobs.popleft())
                    return
                self._current = job = self._jobs.popleft() if self._jobs else None
                spare = self._spare
            if job is not None:
                again = self._step(job)
                with self._change:
                    self._current = None
                    if again:
                        self._jobs.append(job)
            elif spare is not None and not self._step_of_spare(spare):
                with self._change:
                    if self._spare is spare:
                        self._spare = None

    def _step(self, job: Job) -> bool:
        """One step of a job; whether it has more."""
        if job.cancelled:
            self._end(job)
            return False
        try:
            if job.running is None:
                job.running = job.steps()
            job.put(next(job.running))
            return True
        except StopIteration:
            job.put(_END)
        except BaseException as error:  # whatever it is, it belongs to the request, and the thread lives on
            job.put(error)
        return False

    @staticmethod
    def _step_of_spare(spare: Iterator[Any]) -> bool:
        """One step of what nobody waits for; whether there may be more."""
        with suppress(Exception):  # whoever asks for the same is told of the same failure
            next(spare)
            return True
        return False

    @staticmethod
    def _end(job: Job) -> None:
        close = getattr(job.running, "close", None)
        if close is not None:
            close()
        job.put(replaced())
