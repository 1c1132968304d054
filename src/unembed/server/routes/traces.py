"""Routes for the trace of a prompt: tokens, top tokens by layer and position, details, attributions."""

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
"""A text is traced while the user types only if its number of logits (layers * positions * d_vocab) is at most this."""
MAX_IDLE_MODEL = 2**22
"""A text is traced while the user types only if the model's W_U has at most this number of entries."""

routes = Routes("trace")


@routes.get("/tokenize")
async def tokenize(
    request: Request,
    state: r.State,
    text: Annotated[str, Query(max_length=MAX_PROMPT)],
    chat: Annotated[
        bool, Query(description="true if the text is a user's message, to be formatted by the chat template")
    ] = False,
    client: r.Client = "",
) -> Response:
    """The tokens of a prompt, as ids and texts. The prompt is the text, or with `chat`, the formatted conversation.

    `changed` is the index of the first character of the prompt that decoding the tokens does not reproduce, or null.
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
    """Trace a prompt: the top tokens and events at every layer and position, and an id for further requests."""
    return _with_id(state, query, emergence(state.lm, query.trace(state), query.prompt, query.top))


@routes.post("/traces/stream", response_class=StreamingResponse)
async def stream_trace(state: r.State, query: r.TraceRequest, client: r.Client = "") -> StreamingResponse:
    """The same as POST /traces, but streamed: layers as they are computed, last layer first, then the whole trace."""
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
    """The spread of the lens's distribution over tokens at every layer and position.

    It is given as the distribution's entropy and its KL divergence from the final prediction, both in nats.
    """
    return spread(state.registered_trace(trace_id))


@dataclass(frozen=True)
class Place:
    """A position of a trace, the tokens to explain and compare, and the basis of the logit lens."""

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
    listed: Annotated[
        int | None,
        Query(ge=0, le=500, description="number of memories of all layers together; default: as in `memories`"),
    ] = None,
) -> TraceView:
    """All layers at one position: what `unembed trace --json` prints, without the top tokens at other positions."""
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
    """One layer at one position: what `unembed trace --layer L --json` prints, without other positions.

    `heads` adds the output of each of the layer's heads.
    """
    return _position_view(state, place, top, memories, memories, layer, heads)


@routes.answer("GET /traces/{trace_id}/attribution", "attributing a logit", channel="attribution")
def get_attribution(
    state: r.State,
    place: Annotated[Place, Depends()],
    by: Literal["component", "head", "source", "memory"] | None = None,
    top: r.Top = 12,
) -> TraceView:
    """A logit or logit difference as a sum of contributions of components: what `unembed explain --json` prints."""
    token, settings = r.parse_optional_token(place.token), _settings(state, place, 5)
    return explain_view(state.lm, settings, token=token, by=by, writers=top, tracing=state.trace, index=state.index)[0]


@routes.answer("GET /traces/{trace_id}/effects", "ablating writers", channel="attribution")
def get_effects(
    state: r.State,
    place: Annotated[Place, Depends()],
    by: Literal["component", "head", "memory"] = "component",
    top: r.Top = 12,
) -> dict[str, Any]:
    """Direct and total effects of the largest contributors: what `unembed explain --effects --json` prints."""
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
    """Rank (from 1) and probability of tokens after attention and after the FFN of every layer, [layer][position].

    `position` restricts the result to one position of the prompt.
    """
    return trajectories(state.registered_trace(trace_id), [r.parse_token(text) for text in token], position)


def _whole_key(query: r.TraceRequest) -> str:
    """Return the cache key of a trace, which POST /traces and POST /traces/stream share."""
    return cache_key(post_trace, {"query": query})


def _with_id(state: ServerState, query: r.TraceRequest, view: Emergence | Part) -> dict[str, Any]:
    """Return a dict with a trace's id, the fields of its view, and two fields about chat.

    `roles` has the role of each token of a conversation ("user", ...), None for tokens that the chat template adds; it
    is None if the prompt is no conversation. `without_chat` is True if the prompt is no conversation, but the model was
    trained on conversations.
    """
    vocabulary = None if state.lm.tokenizer is None else state.lm.vocabulary
    return {
        "id": state.trace_id(query.prompt, query.library_edits()),
        **vars(view),
        "roles": None if vocabulary is None else vocabulary.roles([token.id for token in view.tokens]),
        "without_chat": vocabulary is not None and vocabulary.is_without_chat([query.prompt]),
    }


def _parts(state: ServerState, query: r.TraceRequest) -> Iterator[bytes | dict[str, Any]]:
    """Yield the layers of a trace as they are computed, last layer first, then the whole trace as JSON."""
    for part in emerging(state.lm, query.trace(state), query.prompt, query.top):
        view = _with_id(state, query, part)
        yield to_json(view) if isinstance(part, Emergence) else {"kind": "layers"} | view


def _trace_when_idle(state: ServerState, query: r.TraceRequest) -> None:
    """Trace the text that the user is typing while the model is not busy, as it will probably be requested next."""
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
    """Return the details of one position, without the top tokens at other positions."""
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
