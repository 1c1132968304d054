"""Work beside the model's thread: one at a time, the newest question of a page first to count."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time

import pytest
import torch

from tests.server.conftest import rest
from unembed.server.model_queue import ModelQueue, Superseded
from unembed.server.state import ServerState


def test_a_replaced_request_is_not_computed(session) -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> str:
        begun.set()
        assert go_on.wait(20)
        return done.append("first") or "first"

    async def ask() -> list[object]:
        def put(key: str, work, client: str = "page") -> asyncio.Task[bytes]:
            body = session.body(key, work, what="", client=client, channel="slow", on="long")
            return asyncio.create_task(body)

        tasks = [put("first of test_session", first)]
        while not begun.is_set():
            await asyncio.sleep(0.01)
        for name, client in (("second", "page"), ("other", "another page"), ("third", "page")):
            tasks.append(put(f"{name} of test_session", lambda name=name: done.append(name) or name, client))
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        go_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(ask())
    assert done == ["first", "other", "third"], "what has begun is finished: its answer is kept"
    assert isinstance(found[1], Superseded) and [found[0], *found[2:]] == [b'"first"', b'"other"', b'"third"']
    assert not session._newest


def test_long_work_takes_one_processor_and_leaves_the_models_alone(session) -> None:
    before = torch.get_num_threads()
    assert asyncio.run(session.run_in_pool(torch.get_num_threads, "long")) == 1
    assert torch.get_num_threads() == before


def test_a_failed_request_leaves_no_state(session) -> None:
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        asyncio.run(session.body("fails", fail, what="", client="page", channel="slow", on="long"))
    assert not session._newest


class _Endless:
    """Work that tells numbers for as long as it may."""

    def __init__(self) -> None:
        self.why: BaseException | None = None
        self.ended = threading.Event()

    def __call__(self, tell) -> None:
        try:
            for n in itertools.count():
                tell(n if n % 2 == 0 else None)
                time.sleep(0.001)
        except BaseException as error:
            self.why = error
            raise
        finally:
            self.ended.set()


def test_streamed_events_come_in_order_and_then_end(session) -> None:
    async def ask() -> list[int]:
        return [
            n
            async for n in session.stream_progress(
                lambda tell: [tell(n) for n in (3, None, 1, 2)], client="", channel=""
            )
        ]

    assert asyncio.run(ask()) == [3, 1, 2]
    assert not session._newest


def test_work_stops_at_its_next_event_once_the_client_has_left(session) -> None:
    work = _Endless()

    async def ask() -> list[int]:
        streamed, events = session.stream_progress(work, client="page", channel="long"), []
        async for n in streamed:
            events.append(n)
            if len(events) == 3:
                await streamed.aclose()
        return events

    assert asyncio.run(ask()) == [0, 2, 4]
    assert work.ended.wait(20) and isinstance(work.why, Superseded)
    assert not session._newest


def test_a_newer_request_ends_the_stream_and_a_queued_one_never_starts(session) -> None:
    work, done = _Endless(), list[str]()

    async def ask() -> list[object]:
        async def events(what) -> list[object]:
            return [n async for n in session.stream_progress(what, client="page", channel="long")]

        first = asyncio.create_task(events(work))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(events(lambda _tell: done.append("second")))
        third = asyncio.create_task(events(lambda tell: tell(done.append("third") or "third")))
        return list(await asyncio.gather(first, second, third, return_exceptions=True))

    first, second, third = asyncio.run(ask())
    assert isinstance(first, Superseded) and isinstance(work.why, Superseded)
    assert isinstance(second, Superseded) and third == ["third"] and done == ["third"]


def test_a_failure_during_a_request_is_reported_by_that_request(session) -> None:
    def fail(tell) -> None:
        tell("one")
        raise ValueError("two")

    async def ask() -> list[str]:
        events = []
        with pytest.raises(ValueError, match="two"):
            async for word in session.stream_progress(fail, client="page", channel="long"):
                events.append(word)
        return events

    assert asyncio.run(ask()) == ["one"]
    assert not session._newest


def test_background_work_is_abandoned_once_a_request_arrives(session) -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def spare(name: str):
        for n in range(3):
            begun.set()
            assert go_on.wait(20)
            done.append(f"{name} {n}")
            yield

    async def ask(name: str) -> None:
        await session.queue.run(lambda: done.append(name), what="", client="", channel="")

    session.queue.run_when_idle(spare("replaced"))
    assert begun.wait(20)
    session.queue.run_when_idle(spare("given up"))
    requester = threading.Thread(target=lambda: asyncio.run(ask("asked")))
    requester.start()
    while not session.queue.status()["waiting"]:
        time.sleep(0.001)
    go_on.set()
    requester.join(20)
    session.queue.run_when_idle(spare("finished"))
    rest(session)
    assert done == ["replaced 0", "asked", *(f"finished {n}" for n in range(3))]


def test_a_failure_of_an_abandoned_request_stops_nothing(session) -> None:
    def fail():
        raise ValueError
        yield

    session.queue.run_when_idle(fail())
    rest(session)
    assert asyncio.run(session.queue.run(lambda: "well", what="", client="", channel="")) == "well"


def test_stored_traces_take_at_most_the_bytes_that_they_may(wren, monkeypatch) -> None:
    state = ServerState(wren, own_thread=False)
    one = wren.trace("one of a few").nbytes
    monkeypatch.setattr("unembed.server.state.MAX_TRACE_BYTES", int(2.5 * one))
    for prompt in ("one of a few", "two of a few", "six of a few"):
        state.trace(prompt)
    assert [trace.lm.decode(trace.tokens) for trace in state._traces.values()] == ["two of a few", "six of a few"]
    monkeypatch.setattr("unembed.server.state.MAX_TRACE_BYTES", 1)
    newest = state.trace("ten of a few")
    assert list(state._traces.values()) == [newest], "the newest is kept, however large"
    state.close()


def test_freed_memory_is_returned_once_when_the_model_rests(monkeypatch) -> None:
    queue, returned = ModelQueue(), threading.Semaphore(0)
    monkeypatch.setattr("unembed.server.model_queue._WAKE_UP_S", 0.01)
    monkeypatch.setattr("unembed.server.model_queue.return_freed_memory", returned.release)
    queue.start()
    assert returned.acquire(timeout=20)
    for _ in range(2):
        assert asyncio.run(queue.run(lambda: 3, what="", client="", channel="")) == 3
        assert returned.acquire(timeout=20)
        assert not returned.acquire(timeout=0.1)
    queue.stop()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RSS is read from /proc")
def test_freed_memory_leaves_the_process() -> None:
    """Blocks below others that are in use: the C library keeps them until it is asked."""
    script = """
import ctypes
from pathlib import Path
from unembed.server.freed_memory import return_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
rss = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096
blocks = [libc.malloc(100_000) for _ in range(500)]
for block in blocks:
    ctypes.memset(block, 1, 100_000)
full = rss()
for block in blocks[:-1]:
    libc.free(block)
kept = rss()
return_freed_memory()
print(full - kept < 5e6, full - rss() > 40e6)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "True"]
