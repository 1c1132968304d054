"""The state of the server: the loaded model and index, the queue of jobs for the model, and the caches."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

import unembed
from unembed.errors import IndexFault, InvalidInput
from unembed.gallery import MemoryDescriptions, memory_descriptions
from unembed.index import stored_clusters
from unembed.server.freed_memory import return_freed_memory
from unembed.server.model_queue import ModelQueue, superseded
from unembed.server.responses import Cache, to_json
from unembed.server.store import Presets, SavedAddresses

if TYPE_CHECKING:
    from unembed.attention.circuits import Circuits
    from unembed.language_model import LanguageModel
    from unembed.memories.clustering.value_clusters import ValueClusters
    from unembed.server.packed_atlas import PackedAtlas
    from unembed.stream.interventions import Edit
    from unembed.trace.trace import Trace

Pool = Literal["model", "long", "files"]
"""The thread on which work runs: "model", the model's thread; "long", the thread for long computations; "files", the
threads that read files."""

Result = TypeVar("Result")
_END = object()
MAX_PROMPT = 20_000
"""Maximum number of characters of a prompt; the model's context length limits its tokens."""
MAX_EDITS = 64
MAX_TRACES = 24
MAX_TRACE_BYTES = 128 * 1024 * 1024
"""Maximum number of bytes of all cached traces together, unless the newest one alone is larger."""
MAX_RUNS = 64
MAX_ADDRESS_BYTES = 8 * 1024 * 1024


class ServerState:
    """The loaded model and index, and everything that routes share. Only the queue's thread runs the model."""

    def __init__(
        self,
        lm: LanguageModel,
        index: unembed.Index | None = None,
        *,
        index_name: str | None = None,
        source: str | None = None,
        atlas_folder: Path | None = None,
        own_thread: bool = True,
    ) -> None:
        """Create the queue, the caches and the thread pools; the arguments are those of `serve`.

        With `own_thread`, a thread for the model is started; otherwise the caller runs `queue.run_jobs`.
        """
        self.lm, self.index, self.index_name = lm, index, index_name
        self.source = lm.name if source is None else source
        self.atlas_folder = atlas_folder
        self.queue, self.cache = ModelQueue(), Cache()
        self.clusters: ValueClusters | None = None
        """The clusters of all value vectors, once they have been read or computed."""
        self.atlas: tuple[int, PackedAtlas] | None = None
        """The encoded atlas (map of value vectors), and the modification time of the index from which it was made."""
        self.runs: OrderedDict[int, dict[str, Any]] = OrderedDict()
        """Comparisons since the server started, by number."""
        self.addresses = Cache(MAX_ADDRESS_BYTES)
        self.saved_addresses = None if index is None else SavedAddresses(index.path)
        self.presets = Presets(None if index is None else index.path)
        self.label_version = 0
        """A counter that increases with every new label, so that cached responses with labels are not used again."""
        # All long computations share one thread, which uses one processor core, so that they hardly slow down the
        # model, which runs on other threads.
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
        """The QK and OV circuits of the model's heads, which cache their matrix products."""
        return unembed.circuits(self.lm)

    @property
    def descriptions(self) -> MemoryDescriptions:
        """The descriptions of memories: those of the atlas, or without one, of the index's or the model's gallery."""
        return memory_descriptions(self.lm, None if self.index is None else self.index.path, self.atlas_folder)

    def trace_id(self, prompt: str, edits: Sequence[Edit]) -> str:
        """Return a hash of the model, the prompt and the edits. It is the same after a restart of the server."""
        described = [self.lm.name, self.lm.revision, str(self.lm.dtype), prompt, [e.to_dict() for e in edits]]
        return hashlib.blake2b(json.dumps(described).encode(), digest_size=12).hexdigest()

    def register_prompt(self, prompt: str, edits: Sequence[Edit]) -> str:
        """Store a prompt with its edits, and return its id for later requests.

        More prompts than traces are stored; if a request needs a trace that is no longer stored, it is computed again.
        """
        key = self.trace_id(prompt, edits)
        with self._lock:
            self._prompts[key] = (prompt, list(edits))
            self._prompts.move_to_end(key)
            while len(self._prompts) > 64 * MAX_TRACES:
                self._prompts.popitem(last=False)
        return key

    def registered_prompt(self, key: str) -> tuple[str, Sequence[Edit]]:
        """Return the prompt and the edits that `register_prompt` stored under an id.

        Raises:
            InvalidInput: the id is unknown.
        """
        with self._lock:
            if key not in self._prompts:
                raise InvalidInput(
                    f"trace {key}", why="this server has no trace with this id", instead="Send the prompt again"
                )
            return self._prompts[key]

    def registered_trace(self, key: str) -> Trace:
        """Return the trace of the prompt with an id; call it only on the model's thread.

        Raises:
            InvalidInput: the id is unknown.
        """
        return self.trace(*self.registered_prompt(key))

    def trace(self, prompt: str, edits: Sequence[Edit] = ()) -> Trace:
        """Return the trace of a prompt, from the cache or computed now; call it only on the model's thread."""
        key = self.trace_id(prompt, edits)
        if key in self._traces:
            self._traces.move_to_end(key)
            return self._traces[key]
        trace = self._traces[key] = self.lm.trace(prompt, edits=edits)
        while len(self._traces) > MAX_TRACES or (
            len(self._traces) > 1 and sum(one.nbytes for one in self._traces.values()) > MAX_TRACE_BYTES
        ):
            self._traces.popitem(last=False)
        return trace

    def known_clusters(self) -> ValueClusters | None:
        """Return the clusters of all value vectors if they are in memory or in the index's folder, else None."""
        if self.clusters is None and self.index is not None:
            self.clusters = stored_clusters(self.lm, self.index)
        return self.clusters

    def require_index(self) -> unembed.Index:
        """Return the index, or raise an error that says how to build one.

        Raises:
            IndexFault: the server was started without one.
        """
        if self.index is None:
            raise IndexFault(
                "no index is open",
                why="labels, top activating texts and coefficients on text are stored in an index of a corpus",
                instead="Build one with `unembed index build --out DIR` and start `unembed serve --index DIR`",
            )
        return self.index

    async def body(
        self, key: str, work: Callable[[], object], *, what: str, client: str, channel: str, on: Pool = "model"
    ) -> bytes:
        """Return the result of `work` as JSON, from the cache if possible.

        Args:
            key: the cache key, a hash of everything that the result depends on.
            what: a short description of the work, which the server's status shows while it runs.
            client: the id of the page that sent the request.
            channel: a name for requests of one kind: a newer one of the same client cancels an older one.
            on: the thread on which the work runs.
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
        """Wrap work so that it raises `Superseded` if a newer request with the same key has arrived when it starts."""
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
        """Run a function in a thread pool, in parallel with the model's thread, and return its result."""
        loop = asyncio.get_running_loop()
        if on != "long":
            return await loop.run_in_executor(self._files, work)
        return await loop.run_in_executor(self._long, _then_returning_memory(work))

    async def stream_cached(
        self, key: str, work: Callable[[Callable[[object], None]], None], *, client: str, channel: str
    ) -> AsyncGenerator[Any]:
        """Yield what `stream_progress` yields, and cache its result (the item that is bytes).

        If the result is in the cache, only the result is yielded.
        """
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
        """Run a long computation, and yield what it reports.

        Args:
            work: the computation. It gets a function `report`, which it calls with each item to yield. `report` raises
                `Superseded` if a newer request has replaced this one or the client has disconnected; `report(None)`
                only checks this.
            client, channel: see `body`.
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
            except BaseException as error:  # the error is raised in the request
                send(error)
            else:
                send(_END)

        running = loop.run_in_executor(self._long, _then_returning_memory(run))
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
        """Stop all threads."""
        self.queue.stop()
        for pool in (self._long, self._files):
            pool.shutdown(wait=False, cancel_futures=True)


def _then_returning_memory(work: Callable[[], Result]) -> Callable[[], Result]:
    def run() -> Result:
        try:
            return work()
        finally:
            return_freed_memory()

    return run
