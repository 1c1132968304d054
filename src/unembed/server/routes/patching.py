"""Two prompts side by side, activations patched from one into the other, and the continuation of the patched run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

import unembed
from unembed.causality import align, continue_patched
from unembed.schemas.numbers import numbers
from unembed.schemas.patching import (
    ComparisonView,
    PatchingView,
    alignment_of,
    compared_tokens,
    comparison_view,
    patching_view,
)
from unembed.server import requests as r
from unembed.server.responses import json_response, ndjson_response
from unembed.server.state import ServerState

routes = APIRouter(tags=["compare"])


@routes.post("/comparison", responses={200: {"model": ComparisonView}})
async def post_prompts(request: Request, state: r.State, query: r.TwoPrompts, client: r.Client = "") -> Response:
    """Two prompts, which of their tokens correspond, and the logit difference in each."""

    def work() -> ComparisonView:
        clean, corrupted = (state.trace(text, ()) for text in (query.clean, query.corrupted))
        tokens = (r.parse_optional_token(query.token), r.parse_optional_token(query.against))
        return comparison_view(state.lm, clean, corrupted, (query.clean, query.corrupted), *tokens)

    key = f"comparison {query.model_dump_json()}"
    body = await state.body(key, work, what="comparing prompts", client=client, channel="comparison")
    return json_response(request, body)


@routes.post("/patching", responses={200: {"model": PatchingView}})
async def post_patching(request: Request, state: r.State, query: r.PatchingRequest, client: r.Client = "") -> Response:
    """Every activation of a kind patched by itself: what `unembed patch --json` computes."""

    def work() -> PatchingView:
        return _patched(state, query)

    key = f"patching {query.model_dump_json()}"
    body = await state.body(key, work, what="patching", client=client, channel=f"patching {query.point}")
    return json_response(request, body)


@routes.post("/patching/continuation")
async def post_continuation(
    state: r.State, query: r.PatchedContinuationRequest, client: r.Client = ""
) -> StreamingResponse:
    """Continuations of both prompts and of the patched one: lines with `side` clean, corrupted or patched."""

    def steps() -> Iterator[dict[str, Any]]:
        from unembed.stream import generate_steps

        lm, n = state.lm, query.max_new_tokens
        clean, corrupted = (state.trace(text, ()) for text in (query.clean, query.corrupted))
        yield {"kind": "start"}
        running: dict[str, Iterator[Any]] = {
            "clean": generate_steps(lm, query.clean, max_new_tokens=n),
            "corrupted": generate_steps(lm, query.corrupted, max_new_tokens=n),
            "patched": continue_patched(
                lm,
                query.clean,
                query.corrupted,
                query.point,
                query.layer,
                query.position,
                query.index,
                direction=query.direction,
                alignment=alignment_of(clean, corrupted),
                max_new_tokens=n,
            ),
        }
        while running:
            for side in list(running):
                step = next(running[side], None)
                if step is None:
                    del running[side]
                    continue
                token = lm.token_strings([step.id])[0]
                yield {"kind": "token", "side": side, "id": step.id, "token": token, "probability": step.probability}

    async def items() -> AsyncGenerator[dict[str, Any]]:
        async for item in state.queue.stream(steps, what="generating", client=client, channel="patched"):
            yield item
            await asyncio.sleep(0)

    return ndjson_response(items())


def _patched(state: ServerState, query: r.PatchingRequest) -> PatchingView:
    lm = state.lm
    clean, corrupted = (state.trace(text, ()) for text in (query.clean, query.corrupted))
    tokens = (r.parse_optional_token(query.token), r.parse_optional_token(query.against))
    target, other = compared_tokens(lm, clean, corrupted, *tokens)
    alignment = alignment_of(clean, corrupted)
    found = lm.patch(
        query.clean,
        query.corrupted,
        query.point,
        unembed.logit_difference(target, other),
        positions=None if query.position is None else [query.position],
        alignment=alignment,
        direction=query.direction,
        top=query.top,
    )
    if found.indices is None:
        return patching_view(found)
    pairs, _ = align(lm, clean.tokens, corrupted.tokens, alignment)
    other_of = {c: a for a, c in pairs} if query.direction == "denoising" else dict(pairs)
    source = clean if query.direction == "denoising" else corrupted
    given = [
        [
            numbers(source.run.at("coefficients", layer)[0, other_of[position], found.indices[layer, i]])
            for i, position in enumerate(found.positions)
        ]
        for layer in range(lm.n_layers)
    ]
    return patching_view(found, given)
