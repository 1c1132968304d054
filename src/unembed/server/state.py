"""What the server has open: one model, its index if there is one, the worker, the traces and answers it remembers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Literal

import torch

from unembed.errors import IndexFault, InvalidInput
from unembed.server.memory import give_back
from unembed.server.model_queue import Worker, replaced
from unembed.server.responses import Cache, encoded

On = Literal["model", "reading", "long", "files"]

_END = object()
MAX_PROMPT = 20_000
"""Characters of a prompt; its tokens are limited by the model's context."""
MAX_TRACES = 24
MAX_EDITS = 64
SMALL = 2**22
"""Entries of W_U up to which a model leaves a processor to the page while that draws on the same machine: with all of
them it would be done hardly sooner, and the two would wait for each other."""
TRIMMED = 16
"""Traces after which freed memory is given back."""


class Session:
    """Everything the routes use. Model work happens on the worker's thread only."""

    def __init__(self, lm: Any, index: Any = None, *, index_name: str | None = None, own_thread: bool = True) -> None:
        """Open all; `own_thread`: start a thread for the model, rather than have the caller run `worker.work`."""
        self.lm, self.index, self.index_name = lm, index, index_name
        self.worker, self.cache = Worker(), Cache()
        self.small = lm.d_model * lm.d_vocab <= SMALL
        """Whether the model works so fast that what it shows should not wait for the machine's other work."""
        # Long work that seldom needs the model, and reading files: neither makes a trace wait. One processor each.
        self._long = ThreadPoolExecutor(
            1, thread_name_prefix="unembed-long", initializer=torch.set_num_threads, initargs=(1,)
        )
        self._files = ThreadPoolExecutor(4, thread_name_prefix="unembed-files")
        self._traces: OrderedDict[str, tuple[Any, str]] = OrderedDict()
        self._prompts: OrderedDict[str, tuple[str, list[dict[str, Any]]]] = OrderedDict()
        self._newest: dict[tuple[str, str], object] = {}
        self._lock = threading.Lock()
        self._made = 0
        if own_thread:
            self.worker.start()
        self.labelled = 0
        """Rises with every label that is written: answers that show labels are kept apart by it."""

    def trace_id(self, prompt: str, edits: Sequence[Any]) -> str:
        """A name that the model, the prompt and the edits decide, the same in every session."""
        described = [self.lm.name, self.lm.revision, str(self.lm.dtype), prompt, [e.to_dict() for e in edits]]
        return hashlib.blake2b(json.dumps(described).encode(), digest_size=12).hexdigest()

    def remember(self, prompt: str, edits: Sequence[Any]) -> str:
        """Give a prompt its id, so that later requests may name it; ids outlive their traces."""
        key = self.trace_id(prompt, edits)
        with self._lock:
            self._prompts[key] = (prompt, list(edits))
            self._prompts.move_to_end(key)
            while len(self._prompts) > 64 * MAX_TRACES:
                self._prompts.popitem(last=False)
        return key

    def asked(self, key: str) -> tuple[str, Sequence[Any]]:
        """The prompt and the edits of an id.

        Raises:
            InvalidInput: this server has not seen it.
        """
        with self._lock:
            if key not in self._prompts:
                raise InvalidInput(f"trace {key}", why="this server does not know it", instead="Post the prompt again")
            return self._prompts[key]

    def tracing(self, prompt: str, edits: Sequence[Any] = ()) -> Any:
        """The trace of a prompt, made once; call on the worker's thread only."""
        key = self.trace_id(prompt, edits)
        if key in self._traces:
            self._traces.move_to_end(key)
            return self._traces[key][0]
        trace = self.lm.trace(prompt, edits=edits)
        self._traces[key] = (trace, prompt)
        self._made += 1
        if self._made % TRIMMED == 0:
            give_back()
        # A long prompt's stream is large: what counts is the number of tokens kept.
        while len(self._traces) > MAX_TRACES or (
            len(self._traces) > 1 and sum(len(t) for t, _ in self._traces.values()) > 4096
        ):
            self._traces.popitem(last=False)
        return trace

    def need_index(self) -> Any:
        """The index.

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
        self, key: str, work: Callable[[], Any], *, what: str, client: str, channel: str, on: On = "model"
    ) -> bytes:
        """The JSON of what `work` returns, from the cache when it was asked before.

        Args:
            key: what the answer depends on.
            work: makes the answer.
            what: how the status calls it.
            client: which page asks.
            channel: newest wins within the client and the channel.
            on: "model": the model's thread; "reading": there too, a few vectors in the vocabulary; "long": beside it,
                one at a time; "files": only files are read.
        """
        found = self.cache.get(key)
        if found is None:
            if on in ("model", "reading"):

                def made() -> bytes:
                    with self.sparing() if on == "reading" else nullcontext():
                        return encoded(work())

                found = await self.worker.run(made, what=what, client=client, channel=channel)
            else:
                found = await self.beside(self._unless_replaced(lambda: encoded(work()), (client, channel)), on)
            self.cache.put(key, found)
        return found

    def sparing(self) -> AbstractContextManager[None]:
        """While inside, a small model leaves a processor to the page that draws on the same machine."""
        return _all_processors_but_one() if self.small else nullcontext()

    def sparingly(self, items: Iterator[Any]) -> Iterator[Any]:
        """The same items, each of them made so; between two of them others have all."""
        while True:
            with self.sparing():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def _unless_replaced(self, work: Callable[[], Any], key: tuple[str, str]) -> Callable[[], Any]:
        """The same work, unless a newer question of the page came while it waited its turn.

        Who goes from memory to memory would otherwise wait for what was asked about all of them.
        """
        mine = self._newest[key] = object()

        def unless() -> Any:
            if self._newest.get(key) is not mine:
                raise replaced()
            try:
                return work()
            finally:
                if self._newest.get(key) is mine:
                    del self._newest[key]

        return unless

    async def beside(self, work: Callable[[], Any], on: On) -> Any:
        """The result of a function that runs beside the model's thread."""
        pool = self._long if on == "long" else self._files
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def telling(
        self, work: Callable[[Callable[[Any], None]], None], *, client: str, channel: str
    ) -> AsyncIterator[Any]:
        """What long work tells of, as it comes.

        Args:
            work: is given what to tell with; there it ends once a newer question came or nobody waits any more. None
                is told to nobody and only asks whether to go on.
            client: which page asks.
            channel: newest wins within the client and the channel.

        Raises:
            Superseded: a newer question of the page took its place.
        """
        key, mine = (client, channel), object()
        self._newest[key] = mine
        loop, told = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def hand(item: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed: the server is going down
                loop.call_soon_threadsafe(told.put_nowait, item)

        def tell(item: Any) -> None:
            if self._newest.get(key) is not mine:
                raise replaced()
            if item is not None:
                hand(item)

        def all_of_it() -> None:
            try:
                tell(None)
                work(tell)
            except BaseException as error:  # whatever it is, it belongs to the request
                hand(error)
            else:
                hand(_END)

        running = loop.run_in_executor(self._long, all_of_it)
        try:
            while (item := await told.get()) is not _END:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:  # also when the client has gone away
            running.cancel()
            if self._newest.get(key) is mine:
                del self._newest[key]

    def close(self) -> None:
        """End all threads."""
        self.worker.stop()
        for pool in (self._long, self._files):
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _all_processors_but_one() -> Iterator[None]:
    """While inside, torch has one thread less; of two, the calling one is left."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before - 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)
