"""A queue of jobs for the model, and the single thread that runs them.

A job is a generator. The thread runs one step of a job and puts the job at the end of the queue, so that other requests
are answered between two tokens of a long generation. A newer job of the same client and channel cancels an older one,
even if that is running. An idle task runs, a step at a time, only while the queue is empty.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from unembed.errors import UnembedError
from unembed.server.freed_memory import return_freed_memory

_END = object()
_WAKE_UP_S = 1.0
"""Maximum time in seconds that the thread waits for a job. It is finite, because on Windows a wait without a
timeout ignores Ctrl-C. If no job has arrived by then, freed memory is returned to the operating system."""


class Superseded(UnembedError):
    """Raised to end a request if a newer request of the same page has replaced it, or if the page has disconnected."""


def superseded() -> Superseded:
    """Return the error for a request that a newer one has replaced."""
    return Superseded("this request was cancelled", why="a newer request from the same page replaced it")


class Busy(UnembedError):
    """Raised if the queue of jobs is full."""


@dataclass(eq=False)
class Job:
    """A generator to run on the model's thread, and the asyncio queue that receives its items."""

    steps: Callable[[], Iterator[Any]]
    key: tuple[str, str]
    what: str
    loop: asyncio.AbstractEventLoop
    out: asyncio.Queue[Any]
    since: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    running: Iterator[Any] | None = None

    def put(self, item: object) -> None:
        """Send an item to the request handler, which waits in the event loop of another thread."""
        try:
            self.loop.call_soon_threadsafe(self.out.put_nowait, item)
        except RuntimeError:
            self.cancelled = True  # the loop is closed: the server is shutting down


class ModelQueue:
    """The queue of jobs, and the thread that runs them."""

    def __init__(self, max_waiting: int = 64) -> None:
        """Create an idle queue, in which at most `max_waiting` jobs may wait."""
        self._max_waiting = max_waiting
        self._jobs: deque[Job] = deque()
        self._current: Job | None = None
        self._idle_task: Iterator[Any] | None = None
        self._change = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start a thread that runs the jobs."""
        self._thread = threading.Thread(target=self.run_jobs, name="unembed-model", daemon=True)
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """Return the name of the running job, for how many seconds it has run, and how many jobs wait; never blocks."""
        current = self._current
        return {
            "running": None if current is None else current.what,
            "seconds": None if current is None else round(time.monotonic() - current.since, 3),
            "waiting": len(self._jobs),
        }

    async def stream(
        self, steps: Callable[[], Iterator[Any]], *, what: str, client: str, channel: str
    ) -> AsyncGenerator[Any]:
        """Yield the items of a generator that runs on the model's thread.

        Raises:
            Superseded: a newer job of the same client and channel has replaced this one.
            Busy: the queue is full.
        """
        job = Job(steps, (client, channel), what, asyncio.get_running_loop(), asyncio.Queue())
        self._add(job)
        try:
            while (item := await job.out.get()) is not _END:
                if isinstance(item, BaseException):
                    raise item
                yield item
                await asyncio.sleep(0)  # lets the event loop send this item before it takes the next
        finally:
            job.cancelled = True  # this also stops the job if the client has disconnected

    async def run(self, work: Callable[[], Any], *, what: str, client: str, channel: str) -> Any:
        """Return the result of a function that runs on the model's thread; raises as `stream` does."""

        def once() -> Iterator[Any]:
            yield work()

        result = None
        async for item in self.stream(once, what=what, client=client, channel=channel):
            result = item
        return result

    def run_when_idle(self, steps: Iterator[Any]) -> None:
        """Run a task step by step while there are no jobs. A new job or another idle task ends the task."""
        with self._change:
            self._idle_task = steps
            self._change.notify()

    def stop(self) -> None:
        """Cancel all jobs; `run_jobs` returns after the current step."""
        with self._change:
            self._stopped = True
            for job in [*self._jobs, *([self._current] if self._current else [])]:
                job.cancelled = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _add(self, job: Job) -> None:
        with self._change:
            if self._stopped or len(self._jobs) >= self._max_waiting:
                raise Busy("the server is busy", why=f"{len(self._jobs)} requests are waiting", instead="Try again")
            for other in [*self._jobs, *([self._current] if self._current else [])]:
                if other.key == job.key:
                    other.cancelled = True
            self._idle_task = None
            self._jobs.append(job)
            self._change.notify()

    def run_jobs(self) -> None:
        """Run jobs on the calling thread until the queue is stopped."""
        has_run = True  # loading the model also freed memory, which is returned in the first pause
        while True:
            with self._change:
                while not self._jobs and not self._stopped and self._idle_task is None:
                    if not self._change.wait(_WAKE_UP_S) and has_run:
                        has_run = False
                        return_freed_memory()
                if self._stopped:
                    while self._jobs:
                        self._cancel(self._jobs.popleft())
                    return
                self._current = job = self._jobs.popleft() if self._jobs else None
                idle_task = self._idle_task
            has_run = True
            if job is not None:
                unfinished = self._step(job)
                with self._change:
                    self._current = None
                    if unfinished:
                        self._jobs.append(job)
            elif idle_task is not None and not self._idle_step(idle_task):
                with self._change:
                    if self._idle_task is idle_task:
                        self._idle_task = None

    def _step(self, job: Job) -> bool:
        """Run one step of a job; return True if the job is not finished."""
        if job.cancelled:
            self._cancel(job)
            return False
        try:
            if job.running is None:
                job.running = job.steps()
            job.put(next(job.running))
            return True
        except StopIteration:
            job.put(_END)
        except BaseException as error:  # the error is sent to the request; the thread must not end
            job.put(error)
        return False

    @staticmethod
    def _idle_step(task: Iterator[Any]) -> bool:
        """Run one step of the idle task; return False if it is finished or has failed."""
        with suppress(Exception):  # not reported: a request for the same work will raise it again
            next(task)
            return True
        return False

    @staticmethod
    def _cancel(job: Job) -> None:
        close = getattr(job.running, "close", None)
        if close is not None:
            close()
        job.put(superseded())
