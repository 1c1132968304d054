"""One prompt: its tokens, the grid, one position, one layer, attributions."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from unembed.results import numbers
from unembed.server import requests as r
from unembed.server.handlers import Routes, cache_key
from unembed.server.responses import json_response, ndjson_response, to_json
from unembed.server.state import MAX_PROMPT, ServerState
from unembed.trace import (
    Emergence,
    Part,
    TraceSettings,
    TraceView,
    emergence,
    emerging,
    explain_view,
    spread,
    trace_view,
    trajectories,
)

MAX_IDLE_SCORES = 2**24
"""Scores, over all layers and positions, up to which a text is traced while it is typed."""
MAX_IDLE_MODEL = 2**22
"""Entries of W_U up to which a model traces a text while it is typed."""

routes = Routes("trace")


@routes.get("/tokenize")
async def tokenize(
    request: Request,
    state: r.State,
    text: Annotated[str, Query(max_length=MAX_PROMPT)],
    chat: Annotated[bool, Query(description="the text is a user's message, which the chat template encloses")] = False,
    client: r.Client = "",
) -> Response:
    """The tokens of a text, as ids and texts, and the prompt that they are from: the text, or a conversation.

    `changed`: the first character of the prompt that the tokens do not reproduce.
    """

    def work() -> dict[str, Any]:
        lm = state.lm
        prompt = lm.vocabulary.chat(text).text if chat else text
        ids: list[int] = numbers(lm.encode(prompt)[0]) if prompt else []
        decoded = lm.decode(ids) if ids else ""
        differ = (i for i, (a, b) in enumerate(itertools.zip_longest(prompt, decoded)) if a != b)
        changed = None if prompt in decoded else next(differ)
        tokens = lm.token_strings(ids)
        return {"prompt": prompt, "ids": ids, "tokens": tokens, "limit": lm.n_ctx, "changed": changed}

    body = await state.body(f"tokenize {chat} {text}", work, what="tokenizing", client=client, channel="tokenize")
    if text.strip() and not chat and state.lm.d_model * state.lm.d_vocab <= MAX_IDLE_MODEL:
        _trace_when_idle(state, r.TraceRequest(prompt=text))
    return json_response(request, body)


@routes.answer("POST /traces", "tracing a prompt", channel="trace", shape=Emergence)
def post_trace(state: r.State, query: r.TraceRequest) -> dict[str, Any]:
    """Run a prompt: top tokens at every layer and position, events, and the id for further requests."""
    return _with_id(state, query, emergence(state.lm, query.trace(state), query.prompt, query.top))


@routes.post("/traces/stream", response_class=StreamingResponse)
async def stream_trace(state: r.State, query: r.TraceRequest, client: r.Client = "") -> StreamingResponse:
    """The same as lines of JSON: layers as they are read, from the top down, then the whole (`kind` trace)."""
    query.register(state)

    async def items() -> AsyncGenerator[bytes | dict[str, Any]]:
        whole = state.cache.get(_whole_key(query))
        if whole is None:
            parts = partial(_parts, state, query)
            async for part in state.queue.stream(parts, what="tracing a prompt", client=client, channel="trace"):
                if isinstance(part, bytes):
                    state.cache.put(_whole_key(query), whole := part)
                else:
                    yield part
        if whole is not None:
            yield b'{"kind":"trace",' + whole[1:]

    return ndjson_response(items())


@routes.answer("GET /traces/{trace_id}/spread", "measuring entropies")
def get_spread(state: r.State, trace_id: r.TraceId) -> dict[str, Any]:
    """The entropy of every cell's reading and its KL divergence to the final layer, in nats."""
    return spread(state.registered_trace(trace_id))


@dataclass(frozen=True)
class Place:
    """A position of a trace, the question there, and how the stream is read."""

    trace_id: r.TraceId
    position: r.Position = -1
    token: r.Token = None
    against: r.Against = None
    alone: r.Alone = False
    order: r.Order = "effect"
    basis: r.Basis = None
    show_unlearned: bool = False


@routes.answer("GET /traces/{trace_id}", "reading a position")
def get_trace(
    state: r.State,
    place: Annotated[Place, Depends()],
    top: r.Top = 5,
    memories: Annotated[int, Query(ge=0, le=50)] = 2,
    listed: Annotated[int | None, Query(ge=0, le=500, description="memories of all layers; as many as of each")] = None,
) -> TraceView:
    """All layers at one position: what `unembed trace --json` prints, without the grid over positions."""
    return _position_view(state, place, top, memories, memories if listed is None else listed)


@routes.answer("GET /traces/{trace_id}/layers/{layer}", "reading a layer")
def get_layer(
    state: r.State,
    place: Annotated[Place, Depends()],
    layer: r.LayerNumber,
    top: r.Top = 10,
    memories: Annotated[int, Query(ge=0, le=500)] = 10,
    heads: bool = False,
) -> TraceView:
    """One layer at one position: what `unembed trace --layer L --json` prints, without the grid.

    `heads` adds what each of the layer's heads writes.
    """
    return _position_view(state, place, top, memories, memories, layer, heads)


@routes.answer("GET /traces/{trace_id}/attribution", "attributing a logit", channel="attribution")
def get_attribution(
    state: r.State,
    place: Annotated[Place, Depends()],
    by: Literal["component", "head", "source", "memory"] | None = None,
    top: r.Top = 12,
) -> TraceView:
    """The lead of a token over another, or its logit alone, as the sum of its writers: `unembed explain --json`."""
    token, settings = r.parse_optional_token(place.token), _settings(state, place, 5)
    return explain_view(state.lm, settings, token=token, by=by, writers=top, tracing=state.trace, index=state.index)[0]


@routes.answer("GET /traces/{trace_id}/effects", "ablating writers", channel="attribution")
def get_effects(
    state: r.State,
    place: Annotated[Place, Depends()],
    by: Literal["component", "head", "memory"] = "component",
    top: r.Top = 12,
) -> dict[str, Any]:
    """The largest writers' direct and total effects, as a table: `unembed explain --effects --json`."""
    trace = state.registered_trace(place.trace_id)
    token, against = r.parse_optional_token(place.token), r.parse_optional_token(place.against)
    question = trace.question(token, against, place.position, alone=place.alone)
    found = trace.attribution(question.token, place.position, question.against, by)
    return found.with_effects(top).to_table().to_dict()


@routes.answer("GET /traces/{trace_id}/trajectories", "following tokens")
def get_trajectories(
    state: r.State,
    trace_id: r.TraceId,
    token: Annotated[list[str], Query(max_length=8)],
    position: r.Position | None = None,
) -> dict[str, Any]:
    """Rank, from 1, and probability of tokens at both stages of every layer, [layer][position].

    The positions are all of the prompt's, or only the one requested.
    """
    return trajectories(state.registered_trace(trace_id), [r.parse_token(text) for text in token], position)


def _whole_key(query: r.TraceRequest) -> str:
    """Return the key under which the answer to POST /traces is cached, also if its layers were streamed."""
    return cache_key(post_trace, {"query": query})


def _with_id(state: ServerState, query: r.TraceRequest, view: Emergence | Part) -> dict[str, Any]:
    """Return the fields of a trace's view, after the trace's id; with them, what is from a conversation in its prompt.

    `roles`: of each token of a conversation, None for the chat template's own; None where the prompt is a text.
    `without_chat`: whether the prompt is a text, but the model was trained on conversations.
    """
    vocabulary = None if state.lm.tokenizer is None else state.lm.vocabulary
    return {
        "id": state.trace_id(query.prompt, query.library_edits()),
        **vars(view),
        "roles": None if vocabulary is None else vocabulary.roles([token.id for token in view.tokens]),
        "without_chat": vocabulary is not None and vocabulary.is_without_chat([query.prompt]),
    }


def _parts(state: ServerState, query: r.TraceRequest) -> Iterator[bytes | dict[str, Any]]:
    """Yield the layers of a trace as they are read, from the top down, then the whole trace, encoded."""
    for part in emerging(state.lm, query.trace(state), query.prompt, query.top):
        view = _with_id(state, query, part)
        yield to_json(view) if isinstance(part, Emergence) else {"kind": "layers"} | view


def _trace_when_idle(state: ServerState, query: r.TraceRequest) -> None:
    """Trace the text that is being typed while the queue is idle, because it is likely to be requested next."""
    key, loop = _whole_key(query), asyncio.get_running_loop()

    def steps() -> Iterator[None]:
        if state.lm.encode(query.prompt).numel() * state.lm.n_layers * state.lm.d_vocab > MAX_IDLE_SCORES:
            return
        query.trace(state)
        yield
        for part in _parts(state, query):
            if isinstance(part, bytes):
                loop.call_soon_threadsafe(state.cache.put, key, part)
            yield

    if state.cache.get(key) is None:
        state.queue.run_when_idle(steps())


def _settings(state: ServerState, place: Place, top: int) -> TraceSettings:
    prompt, edits = state.registered_prompt(place.trace_id)
    against = None if place.alone else r.parse_optional_token(place.against)
    return TraceSettings(
        prompt, place.position, top, place.basis, place.show_unlearned, edits, None, against, place.alone, place.order
    )


def _position_view(
    state: ServerState,
    place: Place,
    top: int,
    memories: int,
    listed: int,
    layer: int | None = None,
    heads: bool = False,
) -> TraceView:
    """Return one position as the page shows it. The grid over positions is part of the trace itself."""
    view, _ = trace_view(
        state.lm,
        _settings(state, place, top),
        layer=layer,
        memories=listed,
        token=r.parse_optional_token(place.token),
        point=None,
        tracing=state.trace,
        index=state.index,
        heads=heads,
        dominant=memories,
    )
    return view
