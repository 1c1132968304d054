"""One prompt seen whole: tokens, the grid, one layer, attributions."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from unembed.schemas.layer_grid import Emergence, emergence, emerging, spread, trajectories
from unembed.schemas.trace import TraceView
from unembed.schemas.trace_builder import Asked, explain_view, trace_view
from unembed.server import requests as a
from unembed.server.responses import encoded, lines, tagged
from unembed.server.state import MAX_PROMPT, On, Session

AHEAD = 2**24
"""Scores, over all layers and positions, up to which a text is traced while it is typed."""
FRAME = 0.017
"""Seconds that a small model rests when the grid's layers are sent: the page on the same machine draws them sooner."""


def router(session: Session) -> APIRouter:
    """The routes, over what is open."""
    routes = APIRouter(tags=["trace"])

    async def answer(
        request: Request, client: str, channel: str, key: str, what: str, work: Any, on: On = "model"
    ) -> Response:
        return tagged(request, await session.body(key, work, what=what, client=client, channel=channel, on=on))

    def kept_as(asked: a.TraceAsked, key: str) -> str:
        return f"trace {key} {asked.top}"

    def parts(asked: a.TraceAsked, edits: list[Any]) -> Iterator[bytes | dict[str, Any]]:
        """The layers of a trace as they are read, from the bottom up, then the whole of it, encoded."""
        key = session.trace_id(asked.prompt, edits)
        for part in emerging(session.lm, session.tracing(asked.prompt, edits), asked.prompt, asked.top):
            if isinstance(part, Emergence):
                yield encoded({"id": key, **vars(part)})
            else:
                yield {"kind": "layers", "id": key, **vars(part)}

    @routes.get("/tokenize")
    async def tokenize(
        request: Request, text: Annotated[str, Query(max_length=MAX_PROMPT)], client: a.Client = ""
    ) -> Response:
        """The tokens of a text, as ids and texts; `changed`: from which character on the tokens hold another text."""

        def work() -> dict[str, Any]:
            lm = session.lm
            ids = lm.encode(text)[0].tolist() if text else []
            back = lm.decode(ids) if ids else ""
            differ = (i for i, (a, b) in enumerate(itertools.zip_longest(text, back)) if a != b)
            changed = None if text in back else next(differ)
            return {"ids": ids, "tokens": lm.token_strings(ids), "limit": lm.n_ctx, "changed": changed}

        found = await answer(request, client, "tokenize", f"tokenize {text}", "splitting text", work)
        if text and session.small:
            ahead(a.TraceAsked(prompt=text))
        return found

    def ahead(asked: a.TraceAsked) -> None:
        """Trace what is being typed while nothing else is asked: it is likely to be asked next."""
        kept, loop = kept_as(asked, session.trace_id(asked.prompt, [])), asyncio.get_running_loop()

        def steps() -> Iterator[None]:
            if session.lm.encode(asked.prompt).numel() * session.lm.n_layers * session.lm.d_vocab > AHEAD:
                return
            with session.sparing():
                session.tracing(asked.prompt)
            yield
            for part in session.sparingly(parts(asked, [])):
                if isinstance(part, bytes):
                    loop.call_soon_threadsafe(session.cache.put, kept, part)
                yield

        if session.cache.get(kept) is None:
            session.worker.meanwhile(steps())

    @routes.post("/traces", responses={200: {"model": Emergence}})
    async def post_trace(request: Request, asked: a.TraceAsked, client: a.Client = "") -> Response:
        """Run a prompt: top tokens at every layer and position, events, and the id for further questions."""
        edits = [e.edit() for e in asked.edits]
        key = session.remember(asked.prompt, edits)

        def work() -> dict[str, Any]:
            view = emergence(session.lm, session.tracing(asked.prompt, edits), asked.prompt, asked.top)
            return {"id": key, **vars(view)}

        return await answer(request, client, "trace", kept_as(asked, key), "tracing a prompt", work)

    @routes.post("/traces/stream", response_class=StreamingResponse)
    async def stream_trace(asked: a.TraceAsked, client: a.Client = "") -> StreamingResponse:
        """The same as lines of JSON: layers as they are read, from the bottom up, then the whole (`kind` trace)."""
        edits = [e.edit() for e in asked.edits]
        kept = kept_as(asked, session.remember(asked.prompt, edits))

        def steps() -> Iterator[bytes | dict[str, Any]]:
            layers = parts(asked, edits)
            yield next(layers)  # with all processors: until then the page has nothing to draw
            if session.small:
                time.sleep(FRAME)
            yield from session.sparingly(layers)

        async def items() -> AsyncIterator[bytes | dict[str, Any]]:
            whole = session.cache.get(kept)
            if whole is None:
                async for part in session.worker.stream(steps, what="tracing a prompt", client=client, channel="trace"):
                    if isinstance(part, bytes):
                        session.cache.put(kept, whole := part)
                    else:
                        yield part
            if whole is not None:
                yield b'{"kind":"trace",' + whole[1:]

        return lines(items())

    @routes.get("/traces/{trace_id}/spread")
    async def get_spread(request: Request, trace_id: a.TraceId, client: a.Client = "") -> Response:
        """Entropy of the reading at every cell, and its divergence from the final prediction, in nats."""
        prompt, edits = session.asked(trace_id)

        def work() -> dict[str, Any]:
            return spread(session.tracing(prompt, edits))

        return await answer(request, client, "spread", f"spread {trace_id}", "measuring entropies", work)

    @routes.get("/traces/{trace_id}", responses={200: {"model": TraceView}})
    async def get_trace(
        request: Request,
        trace_id: a.TraceId,
        position: a.Position = -1,
        token: a.Token = None,
        basis: a.Basis = "final",
        top: a.Top = 5,
        memories: Annotated[int, Query(ge=0, le=50)] = 2,
        hide_unlearned: bool = False,
        client: a.Client = "",
    ) -> Response:
        """All layers at one position: what `unembed trace --json` prints, without the grid over positions."""
        prompt, edits = session.asked(trace_id)
        key = f"position {trace_id} {position} {token} {basis} {top} {memories} {hide_unlearned}"

        def work() -> TraceView:
            asked = Asked(prompt, position, top, basis, hide_unlearned, edits, None)
            return _position(session, asked, None, memories, token)

        return await answer(request, client, "position", key, "reading a position", work, "reading")

    @routes.get("/traces/{trace_id}/layers/{layer}", responses={200: {"model": TraceView}})
    async def get_layer(
        request: Request,
        trace_id: a.TraceId,
        layer: a.LayerNumber,
        position: a.Position = -1,
        token: a.Token = None,
        basis: a.Basis = "final",
        top: a.Top = 10,
        memories: Annotated[int, Query(ge=1, le=500)] = 10,
        hide_unlearned: bool = False,
        heads: bool = False,
        client: a.Client = "",
    ) -> Response:
        """One layer at one position: what `unembed trace --layer L --json` prints, without the grid.

        With `heads`, what the layer's heads add too.
        """
        prompt, edits = session.asked(trace_id)
        key = f"layer {trace_id} {layer} {position} {token} {basis} {top} {memories} {hide_unlearned} {heads}"

        def work() -> TraceView:
            asked = Asked(prompt, position, top, basis, hide_unlearned, edits, None)
            return _position(session, asked, layer, memories, token, heads)

        return await answer(request, client, "layer", key, "reading a layer", work, "reading")

    @routes.get("/traces/{trace_id}/attribution", responses={200: {"model": TraceView}})
    async def get_attribution(
        request: Request,
        trace_id: a.TraceId,
        token: Annotated[str, Query(min_length=1, max_length=200)],
        against: a.Token = None,
        position: a.Position = -1,
        by: Literal["component", "head", "source", "memory"] | None = None,
        top: a.Top = 12,
        client: a.Client = "",
    ) -> Response:
        """A token's logit as the sum of its writers: what `unembed explain --json` prints."""
        prompt, edits = session.asked(trace_id)
        key = f"attribution {trace_id} {token} {against} {position} {by} {top}"

        def work() -> TraceView:
            asked = Asked(prompt, position, 5, "final", False, edits, None)
            target, other = a.token_of(token), a.token_of(against)
            assert target is not None
            view, _ = explain_view(
                session.lm, asked, token=target, against=other, by=by, writers=top, tracing=session.tracing
            )
            return view

        return await answer(request, client, "attribution", key, "accounting for a logit", work, "reading")

    @routes.get("/traces/{trace_id}/trajectories")
    async def get_trajectories(
        request: Request,
        trace_id: a.TraceId,
        token: Annotated[list[str], Query(max_length=8)],
        position: a.Position | None = None,
        client: a.Client = "",
    ) -> Response:
        """Rank, from 0, and probability of chosen tokens at both stages of every layer, [layer][position].

        At all positions, or at the one that is asked.
        """
        prompt, edits = session.asked(trace_id)

        def work() -> dict[str, Any]:
            ids = [t for text in token if (t := a.token_of(text)) is not None]
            return trajectories(session.tracing(prompt, edits), ids, position)

        key = f"trajectories {trace_id} {token} {position}"
        return await answer(request, client, "trajectories", key, "following tokens", work, "reading")

    return routes


def _position(
    session: Session, asked: Asked, layer: int | None, memories: int, token: str | None, heads: bool = False
) -> TraceView:
    """A trace view as the page reads it: the grid over positions came with the trace itself."""
    view, _ = trace_view(
        session.lm,
        asked,
        layer=layer,
        memories=memories,
        token=a.token_of(token),
        point=None,
        tracing=session.tracing,
        heads=heads,
    )
    return view
