"""The open model and index of the server, with the model's queue and the caches."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

import unembed
from unembed.errors import IndexFault, InvalidInput
from unembed.server.clusters import ClusterStore
from unembed.server.model_queue import ModelQueue, superseded
from unembed.server.responses import Cache, to_json
from unembed.server.store import Presets, SavedAddresses

if TYPE_CHECKING:
    from unembed.attention.circuits import Circuits
    from unembed.language_model import LanguageModel
    from unembed.server.packed_atlas import PackedAtlas
    from unembed.stream.interventions import Edit
    from unembed.trace.trace import Trace

Pool = Literal["model", "long", "files"]
"""Where work runs: on the model's thread; on the one thread for long work; on the threads that read files."""

Result = TypeVar("Result")
_END = object()
MAX_PROMPT = 20_000
"""Characters of a prompt; its tokens are limited by the model's context."""
MAX_EDITS = 64
MAX_TRACES = 24
MAX_TRACE_TOKENS = 4096
"""Tokens of all cached traces together: a trace holds the residual stream of each."""
MAX_RUNS = 64
MAX_ADDRESS_BYTES = 8 * 1024 * 1024


class ServerState:
    """The open model and index, and everything that the routes share. Only the queue's thread runs the model."""

    def __init__(
        self,
        lm: LanguageModel,
        index: unembed.Index | None = None,
        *,
        index_name: str | None = None,
        source: str | None = None,
        own_thread: bool = True,
    ) -> None:
        """Open everything that requests need.

        Args:
            index: its index, if there is one.
            index_name: the index's name on the page.
            source: what `unembed.load` takes to open the model again; its name when None.
            own_thread: start a thread for the model; else the caller runs `queue.run_jobs`.
        """
        self.lm, self.index, self.index_name = lm, index, index_name
        self.source = lm.name if source is None else source
        self.queue, self.cache = ModelQueue(), Cache()
        self.clusters = ClusterStore(lm, index)
        self.atlas: tuple[int, PackedAtlas] | None = None
        """The map of the values, with the time of the index's files that it was made of."""
        self.runs: OrderedDict[int, dict[str, Any]] = OrderedDict()
        """Comparisons since the server started, by number."""
        self.addresses = Cache(MAX_ADDRESS_BYTES)
        self.saved_addresses = None if index is None else SavedAddresses(index.path)
        self.presets = Presets(None if index is None else index.path)
        self.label_version = 0
        """Rises with every label that is written, so that cached responses with labels become stale."""
        # Long work gets only one thread, so that it takes at most one processor away from the model.
        self._long = ThreadPoolExecutor(
            1, thread_name_prefix="unembed-long", initializer=torch.set_num_threads, initargs=(1,)
        )
        self._files = ThreadPoolExecutor(4, thread_name_prefix="unembed-files")
        self._traces: OrderedDict[str, Trace] = OrderedDict()
        self._prompts: OrderedDict[str, tuple[str, Sequence[Edit]]] = OrderedDict()
        self._newest: dict[tuple[str, str], object] = {}
        self._lock = threading.Lock()
        if own_thread:
            self.queue.start()

    @cached_property
    def circuits(self) -> Circuits:
        """The circuits of the model; their products are cached between requests."""
        return unembed.circuits(self.lm)

    def trace_id(self, prompt: str, edits: Sequence[Edit]) -> str:
        """Return a hash of the model, the prompt and the edits, which is the same in every server."""
        described = [self.lm.name, self.lm.revision, str(self.lm.dtype), prompt, [e.to_dict() for e in edits]]
        return hashlib.blake2b(json.dumps(described).encode(), digest_size=12).hexdigest()

    def register_prompt(self, prompt: str, edits: Sequence[Edit]) -> str:
        """Store a prompt under its id, which later requests name. Ids outlive their traces."""
        key = self.trace_id(prompt, edits)
        with self._lock:
            self._prompts[key] = (prompt, list(edits))
            self._prompts.move_to_end(key)
            while len(self._prompts) > 64 * MAX_TRACES:
                self._prompts.popitem(last=False)
        return key

    def registered_prompt(self, key: str) -> tuple[str, Sequence[Edit]]:
        """Return the prompt and the edits of an id.

        Raises:
            InvalidInput: the id is unknown.
        """
        with self._lock:
            if key not in self._prompts:
                raise InvalidInput(f"trace {key}", why="this server does not have it", instead="Post the prompt again")
            return self._prompts[key]

    def registered_trace(self, key: str) -> Trace:
        """Return the trace of an id; call it only on the model's thread.

        Raises:
            InvalidInput: the id is unknown.
        """
        return self.trace(*self.registered_prompt(key))

    def trace(self, prompt: str, edits: Sequence[Edit] = ()) -> Trace:
        """Return the trace of a prompt, from the cache or new; call it only on the model's thread."""
        key = self.trace_id(prompt, edits)
        if key in self._traces:
            self._traces.move_to_end(key)
            return self._traces[key]
        trace = self._traces[key] = self.lm.trace(prompt, edits=edits)
        while len(self._traces) > MAX_TRACES or (
            len(self._traces) > 1 and sum(len(one) for one in self._traces.values()) > MAX_TRACE_TOKENS
        ):
            self._traces.popitem(last=False)
        return trace

    def require_index(self) -> unembed.Index:
        """Return the index, or raise an error that says how to build one.

        Raises:
            IndexFault: the server was started without one.
        """
        if self.index is None:
            raise IndexFault(
                "no index is open",
                why="triggers, search by context and neighbours come from a corpus",
                instead="Build one with `unembed index build --out DIR` and start `unembed serve --index DIR`",
            )
        return self.index

    async def body(
        self, key: str, work: Callable[[], object], *, what: str, client: str, channel: str, on: Pool = "model"
    ) -> bytes:
        """Return the JSON of what `work` returns, cached by its key.

        Args:
            key: what the response depends on.
            work: computes the response.
            what: its name in the status.
            client: the page.
            channel: a newer request of the client and channel replaces an older one.
            on: where the work runs.
        """
        found = self.cache.get(key)
        if found is None:
            if on == "model":
                found = await self.queue.run(lambda: to_json(work()), what=what, client=client, channel=channel)
            else:
                found = await self.run_in_pool(self._unless_superseded(lambda: to_json(work()), (client, channel)), on)
            self.cache.put(key, found)
        return found

    def _unless_superseded(self, work: Callable[[], bytes], key: tuple[str, str]) -> Callable[[], bytes]:
        """Return the same work, which fails if a newer request of the page arrived while it waited."""
        mine = object()
        with self._lock:
            self._newest[key] = mine

        def run() -> bytes:
            if self._newest.get(key) is not mine:
                raise superseded()
            try:
                return work()
            finally:
                with self._lock:
                    if self._newest.get(key) is mine:
                        del self._newest[key]

        return run

    async def run_in_pool(self, work: Callable[[], Result], on: Pool) -> Result:
        """Return the result of a function that runs in parallel to the model's thread."""
        pool = self._long if on == "long" else self._files
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def stream_cached(
        self, key: str, work: Callable[[Callable[[object], None]], None], *, client: str, channel: str
    ) -> AsyncGenerator[Any]:
        """Yield what `stream_progress` yields; its encoded result is cached, and alone is yielded the next time."""
        if (known := self.cache.get(key)) is not None:
            yield known
            return
        async for item in self.stream_progress(work, client=client, channel=channel):
            if isinstance(item, bytes):
                self.cache.put(key, item)
            yield item

    async def stream_progress(
        self, work: Callable[[Callable[[object], None]], None], *, client: str, channel: str
    ) -> AsyncGenerator[Any]:
        """Yield the reports of long work while it runs.

        Args:
            work: receives the function that it reports through. That function raises `Superseded` once a newer request
                came or the client disconnected; a report of None is not sent.
            client: the page.
            channel: a newer request of the client and channel replaces an older one.

        Raises:
            Superseded: a newer request of the page replaced this one.
        """
        key, mine = (client, channel), object()
        self._newest[key] = mine
        loop, reports = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def send(item: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: the server is shutting down
                loop.call_soon_threadsafe(reports.put_nowait, item)

        def report(item: object) -> None:
            if self._newest.get(key) is not mine:
                raise superseded()
            if item is not None:
                send(item)

        def run() -> None:
            try:
                report(None)
                work(report)
            except BaseException as error:  # every failure belongs to the request
                send(error)
            else:
                send(_END)

        running = loop.run_in_executor(self._long, run)
        try:
            while (item := await reports.get()) is not _END:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:  # also when the client has disconnected
            running.cancel()
            if self._newest.get(key) is mine:
                del self._newest[key]

    def close(self) -> None:
        """End all threads."""
        self.queue.stop()
        for pool in (self._long, self._files):
            pool.shutdown(wait=False, cancel_futures=True)
