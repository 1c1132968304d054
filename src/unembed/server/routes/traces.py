"""One prompt: its tokens, the grid, one position, one layer, attributions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from unembed.schemas.layer_grid import Emergence, emergence, emerging, spread, trajectories
from unembed.schemas.numbers import numbers
from unembed.schemas.trace import TraceView
from unembed.schemas.trace_builder import TraceSettings, explain_view, trace_view
from unembed.server import requests as r
from unembed.server.responses import json_response, ndjson_response, to_json
from unembed.server.state import MAX_PROMPT, ServerState

if TYPE_CHECKING:
    from unembed.stream.interventions import Edit
    from unembed.trace.memory_effects import MemoryOrder

MAX_IDLE_SCORES = 2**24
"""Scores, over all layers and positions, up to which a text is traced while it is typed."""
MAX_IDLE_MODEL = 2**22
"""Entries of W_U up to which a model traces a text while it is typed."""

routes = APIRouter(tags=["trace"])


@routes.get("/tokenize")
async def tokenize(
    request: Request,
    state: r.State,
    text: Annotated[str, Query(max_length=MAX_PROMPT)],
    client: r.Client = "",
) -> Response:
    """The tokens of a text, as ids and texts. `changed`: the first character that the tokens do not reproduce."""

    def work() -> dict[str, Any]:
        lm = state.lm
        ids: list[int] = numbers(lm.encode(text)[0]) if text else []
        decoded = lm.decode(ids) if ids else ""
        differ = (i for i, (a, b) in enumerate(itertools.zip_longest(text, decoded)) if a != b)
        changed = None if text in decoded else next(differ)
        return {"ids": ids, "tokens": lm.token_strings(ids), "limit": lm.n_ctx, "changed": changed}

    body = await state.body(f"tokenize {text}", work, what="tokenizing", client=client, channel="tokenize")
    if text.strip() and state.lm.d_model * state.lm.d_vocab <= MAX_IDLE_MODEL:
        _trace_when_idle(state, r.TraceRequest(prompt=text))
    return json_response(request, body)


@routes.post("/traces", responses={200: {"model": Emergence}})
async def post_trace(request: Request, state: r.State, query: r.TraceRequest, client: r.Client = "") -> Response:
    """Run a prompt: top tokens at every layer and position, events, and the id for further requests."""
    edits = query.library_edits()
    key = state.register_prompt(query.prompt, edits)

    def work() -> dict[str, Any]:
        view = emergence(state.lm, state.trace(query.prompt, edits), query.prompt, query.top)
        return {"id": key, **vars(view)}

    body = await state.body(_cache_key(query, key), work, what="tracing a prompt", client=client, channel="trace")
    return json_response(request, body)


@routes.post("/traces/stream", response_class=StreamingResponse)
async def stream_trace(state: r.State, query: r.TraceRequest, client: r.Client = "") -> StreamingResponse:
    """The same as lines of JSON: layers as they are read, from the bottom up, then the whole (`kind` trace)."""
    edits = query.library_edits()
    cache_key = _cache_key(query, state.register_prompt(query.prompt, edits))

    async def items() -> AsyncGenerator[bytes | dict[str, Any]]:
        whole = state.cache.get(cache_key)
        if whole is None:
            parts = partial(_parts, state, query, edits)
            async for part in state.queue.stream(parts, what="tracing a prompt", client=client, channel="trace"):
                if isinstance(part, bytes):
                    state.cache.put(cache_key, whole := part)
                else:
                    yield part
        if whole is not None:
            yield b'{"kind":"trace",' + whole[1:]

    return ndjson_response(items())


@routes.get("/traces/{trace_id}/spread")
async def get_spread(request: Request, state: r.State, trace_id: r.TraceId, client: r.Client = "") -> Response:
    """The entropy of every cell's reading and its KL divergence to the final layer, in nats."""
    prompt, edits = state.registered_prompt(trace_id)

    def work() -> dict[str, Any]:
        return spread(state.trace(prompt, edits))

    body = await state.body(f"spread {trace_id}", work, what="measuring entropies", client=client, channel="spread")
    return json_response(request, body)


@routes.get("/traces/{trace_id}", responses={200: {"model": TraceView}})
async def get_trace(
    request: Request,
    state: r.State,
    trace_id: r.TraceId,
    position: r.Position = -1,
    token: r.Token = None,
    against: r.Against = None,
    alone: r.Alone = False,
    order: r.Order = "effect",
    basis: r.Basis = "final",
    top: r.Top = 5,
    memories: Annotated[int, Query(ge=0, le=50)] = 2,
    listed: Annotated[int | None, Query(ge=0, le=500, description="memories of all layers; as many as of each")] = None,
    show_unlearned: bool = False,
    client: r.Client = "",
) -> Response:
    """All layers at one position: what `unembed trace --json` prints, without the grid over positions."""
    prompt, edits = state.registered_prompt(trace_id)
    settings = _settings(prompt, edits, position, top, basis, show_unlearned, against, alone, order)
    work = partial(_position_view, state, settings, layer=None, memories=memories, listed=listed, token=token)
    key = f"position {trace_id} {settings} {token} {memories} {listed}"
    body = await state.body(key, work, what="reading a position", client=client, channel="position")
    return json_response(request, body)


@routes.get("/traces/{trace_id}/layers/{layer}", responses={200: {"model": TraceView}})
async def get_layer(
    request: Request,
    state: r.State,
    trace_id: r.TraceId,
    layer: r.LayerNumber,
    position: r.Position = -1,
    token: r.Token = None,
    against: r.Against = None,
    alone: r.Alone = False,
    order: r.Order = "effect",
    basis: r.Basis = "final",
    top: r.Top = 10,
    memories: Annotated[int, Query(ge=0, le=500)] = 10,
    show_unlearned: bool = False,
    heads: bool = False,
    client: r.Client = "",
) -> Response:
    """One layer at one position: what `unembed trace --layer L --json` prints, without the grid.

    `heads` adds what each of the layer's heads writes.
    """
    prompt, edits = state.registered_prompt(trace_id)
    settings = _settings(prompt, edits, position, top, basis, show_unlearned, against, alone, order)
    work = partial(_position_view, state, settings, layer=layer, memories=memories, token=token, heads=heads)
    key = f"layer {trace_id} {layer} {settings} {token} {memories} {heads}"
    body = await state.body(key, work, what="reading a layer", client=client, channel="layer")
    return json_response(request, body)


@routes.get("/traces/{trace_id}/attribution", responses={200: {"model": TraceView}})
async def get_attribution(
    request: Request,
    state: r.State,
    trace_id: r.TraceId,
    token: r.RequiredToken,
    against: r.Against = None,
    alone: r.Alone = False,
    position: r.Position = -1,
    by: Literal["component", "head", "source", "memory"] | None = None,
    top: r.Top = 12,
    client: r.Client = "",
) -> Response:
    """The lead of a token over another, or its logit alone, as the sum of its writers: `unembed explain --json`."""
    prompt, edits = state.registered_prompt(trace_id)

    def work() -> TraceView:
        settings = _settings(prompt, edits, position, 5, "final", False, against, alone, "effect")
        view, _ = explain_view(
            state.lm, settings, token=r.parse_token(token), by=by, writers=top, tracing=state.trace, index=state.index
        )
        return view

    key = f"attribution {trace_id} {token} {against} {alone} {position} {by} {top}"
    body = await state.body(key, work, what="attributing a logit", client=client, channel="attribution")
    return json_response(request, body)


@routes.get("/traces/{trace_id}/effects")
async def get_effects(
    request: Request,
    state: r.State,
    trace_id: r.TraceId,
    token: r.RequiredToken,
    against: r.Against = None,
    alone: r.Alone = False,
    position: r.Position = -1,
    by: Literal["component", "head", "memory"] = "component",
    top: r.Top = 12,
    client: r.Client = "",
) -> Response:
    """The largest writers' direct and total effects, as a table: `unembed explain --effects --json`."""
    prompt, edits = state.registered_prompt(trace_id)

    def work() -> dict[str, Any]:
        trace = state.trace(prompt, edits)
        question = trace.question(r.parse_token(token), r.parse_optional_token(against), position, alone=alone)
        return trace.attribution(question.token, position, question.against, by).with_effects(top).to_table().to_dict()

    key = f"effects {trace_id} {token} {against} {alone} {position} {by} {top}"
    body = await state.body(key, work, what="ablating writers", client=client, channel="attribution")
    return json_response(request, body)


@routes.get("/traces/{trace_id}/trajectories")
async def get_trajectories(
    request: Request,
    state: r.State,
    trace_id: r.TraceId,
    token: Annotated[list[str], Query(max_length=8)],
    position: r.Position | None = None,
    client: r.Client = "",
) -> Response:
    """Rank, from 0, and probability of tokens at both stages of every layer, [layer][position].

    The positions are all of the prompt's, or only the one requested.
    """
    prompt, edits = state.registered_prompt(trace_id)

    def work() -> dict[str, Any]:
        return trajectories(state.trace(prompt, edits), [r.parse_token(text) for text in token], position)

    key = f"trajectories {trace_id} {token} {position}"
    body = await state.body(key, work, what="following tokens", client=client, channel="trajectories")
    return json_response(request, body)


def _cache_key(query: r.TraceRequest, trace_id: str) -> str:
    return f"trace {trace_id} {query.top}"


def _parts(state: ServerState, query: r.TraceRequest, edits: Sequence[Edit]) -> Iterator[bytes | dict[str, Any]]:
    """The layers of a trace as they are read, from the bottom up, then the whole of it, encoded."""
    key = state.trace_id(query.prompt, edits)
    for part in emerging(state.lm, state.trace(query.prompt, edits), query.prompt, query.top):
        if isinstance(part, Emergence):
            yield to_json({"id": key, **vars(part)})
        else:
            yield {"kind": "layers", "id": key, **vars(part)}


def _trace_when_idle(state: ServerState, query: r.TraceRequest) -> None:
    """Trace the text being typed while the queue is idle: it is likely to be requested next."""
    cache_key, loop = _cache_key(query, state.trace_id(query.prompt, [])), asyncio.get_running_loop()

    def steps() -> Iterator[None]:
        if state.lm.encode(query.prompt).numel() * state.lm.n_layers * state.lm.d_vocab > MAX_IDLE_SCORES:
            return
        state.trace(query.prompt)
        yield
        for part in _parts(state, query, []):
            if isinstance(part, bytes):
                loop.call_soon_threadsafe(state.cache.put, cache_key, part)
            yield

    if state.cache.get(cache_key) is None:
        state.queue.run_when_idle(steps())


def _settings(
    prompt: str,
    edits: Sequence[Edit],
    position: int,
    top: int,
    basis: r.Basis,
    show_unlearned: bool,
    against: str | None,
    alone: bool,
    order: MemoryOrder,
) -> TraceSettings:
    other = None if alone else r.parse_optional_token(against)
    return TraceSettings(prompt, position, top, basis, show_unlearned, edits, None, other, alone, order)


def _position_view(
    state: ServerState,
    settings: TraceSettings,
    *,
    layer: int | None,
    memories: int,
    token: str | None,
    listed: int | None = None,
    heads: bool = False,
) -> TraceView:
    """One position as the page shows it. The grid over positions is part of the trace itself."""
    view, _ = trace_view(
        state.lm,
        settings,
        layer=layer,
        memories=memories if listed is None else listed,
        token=r.parse_optional_token(token),
        point=None,
        tracing=state.trace,
        index=state.index,
        heads=heads,
        dominant=memories,
    )
    return view
