"""Attention heads: scores of all heads, one head as a circuit, its pattern on a prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from unembed.attention import Progress, examples_of_heads
from unembed.schemas.heads import HeadsView, HeadView, InductionView, head_view, heads_view, induction_view
from unembed.schemas.prompt_head_scores import (
    HeadSourcesView,
    PatternsView,
    PatternView,
    PromptHeadsView,
    head_sources_view,
    pattern_view,
    patterns_view,
    prompt_heads_view,
    score_view,
)
from unembed.server import requests as r
from unembed.server.responses import json_response, ndjson_response, to_json

routes = APIRouter(tags=["heads"])


@routes.get("/heads", responses={200: {"model": HeadsView}})
async def get_heads(
    request: Request,
    state: r.State,
    sequences: Annotated[int, Query(ge=2, le=64)] = 16,
    length: Annotated[int, Query(ge=2, le=64)] = 32,
    seed: r.Seed = 0,
    client: r.Client = "",
) -> Response:
    """The scores of every head on random tokens repeated twice, with confidence intervals."""

    def work() -> HeadsView:
        return heads_view(state.circuits, sequences, length, seed)

    key = f"heads {sequences} {length} {seed}"
    body = await state.body(key, work, what="scoring heads", client=client, channel="heads", on="long")
    return json_response(request, body)


@routes.get("/heads/{layer}/{head}", responses={200: {"model": HeadView}})
async def get_head(
    request: Request,
    state: r.State,
    layer: r.LayerNumber,
    head: r.Index,
    source: r.RequiredToken = " the",
    destination: r.RequiredToken = " the",
    top: r.Top = 12,
    client: r.Client = "",
) -> Response:
    """What a head writes when it attends to the source token, and which sources the destination token attends to."""

    def work() -> HeadView:
        return head_view(state.circuits, layer, head, r.parse_token(source), r.parse_token(destination), top)

    key = f"head {layer} {head} {source} {destination} {top}"
    body = await state.body(key, work, what="reading a head", client=client, channel="head", on="long")
    return json_response(request, body)


@routes.get("/heads/{layer}/{head}/induction", responses={200: {"model": InductionView}})
async def get_induction(
    request: Request,
    state: r.State,
    layer: r.LayerNumber,
    head: r.Index,
    length: Annotated[int, Query(ge=2, le=64)] = 16,
    seed: r.Seed = 0,
    text: Annotated[str, Query(max_length=2000)] = "",
    client: r.Client = "",
) -> Response:
    """The repeated-token (induction) test: a head's pattern on random tokens, or a text, followed by themselves."""

    def work() -> InductionView:
        return induction_view(state.circuits, layer, head, length, seed, text)

    key = f"induction {layer} {head} {length} {seed} {text}"
    body = await state.body(key, work, what="repeating tokens", client=client, channel="induction")
    return json_response(request, body)


@routes.get("/traces/{trace_id}/attention/{layer}/{head}", responses={200: {"model": PatternView}})
async def get_pattern(
    request: Request,
    state: r.State,
    trace_id: r.TraceId,
    layer: r.LayerNumber,
    head: r.Index,
    client: r.Client = "",
) -> Response:
    """The attention weights of a head on a prompt, by destination and source, and the contribution of each."""
    prompt, edits = state.registered_prompt(trace_id)

    def work() -> PatternView:
        return pattern_view(state.lm, state.trace(prompt, edits), layer, head)

    key = f"pattern {trace_id} {layer} {head}"
    body = await state.body(key, work, what="reading attention", client=client, channel="pattern")
    return json_response(request, body)


@routes.post("/heads/{layer}/{head}/attention", responses={200: {"model": PatternView}})
async def post_pattern(
    request: Request,
    state: r.State,
    layer: r.LayerNumber,
    head: r.Index,
    query: r.PromptRequest,
    client: r.Client = "",
) -> Response:
    """The same on any text, which need not be traced first."""
    key = state.register_prompt(query.prompt, query.library_edits())
    return await get_pattern(request, state, key, layer, head, client)


@routes.post("/heads/patterns", responses={200: {"model": PatternsView}})
async def post_patterns(request: Request, state: r.State, query: r.PromptRequest, client: r.Client = "") -> Response:
    """The patterns of all heads on a prompt, small: what their pictures are drawn from."""
    edits = query.library_edits()

    def work() -> PatternsView:
        return patterns_view(state.lm, state.trace(query.prompt, edits))

    key = f"patterns {state.register_prompt(query.prompt, edits)}"
    body = await state.body(key, work, what="reading attention", client=client, channel="patterns")
    return json_response(request, body)


@routes.post("/heads/{layer}/{head}/sources", responses={200: {"model": HeadSourcesView}})
async def post_sources(
    request: Request,
    state: r.State,
    layer: r.LayerNumber,
    head: r.Index,
    query: r.QuestionRequest,
    client: r.Client = "",
) -> Response:
    """What a head adds to a question's logits at a position, by the token that it attends to."""
    edits = query.library_edits()

    def work() -> HeadSourcesView:
        trace = state.trace(query.prompt, edits)
        return head_sources_view(state.lm, trace, layer, head, query.question(trace), query.position)

    key = f"sources {state.register_prompt(query.prompt, edits)} {layer} {head} {query.key()}"
    body = await state.body(key, work, what="reading a head", client=client, channel="sources")
    return json_response(request, body)


@routes.post("/heads/{layer}/{head}/examples")
async def post_examples(
    state: r.State, layer: r.LayerNumber, head: r.Index, query: r.HeadExamplesRequest, client: r.Client = ""
) -> StreamingResponse:
    """Windows of the corpus in which the head contributes most: lines of progress, then the examples.

    One pass over the corpus serves all heads of a layer; its results are cached.
    """
    state.lm.layer_and_head(layer, head)

    def key(n: int) -> str:
        return f"examples {layer} {n} {query.windows} {query.length}"

    def steps() -> Iterator[dict[str, Any]]:
        pieces = None if state.index is None else state.index.text_pieces()
        for found in examples_of_heads(state.lm, pieces, layer, query.windows, query.length):
            kind = "progress" if isinstance(found, Progress) else "examples"
            yield {"kind": kind, **dataclasses.asdict(found)}

    async def items() -> AsyncGenerator[bytes | dict[str, Any]]:
        if (known := state.cache.get(key(head))) is not None:
            yield known
            return
        async for item in state.queue.stream(steps, what="finding examples", client=client, channel="examples"):
            if item["kind"] == "examples":
                state.cache.put(key(item["head"]), to_json(item))
            if item.get("head", head) == head:
                yield item

    return ndjson_response(items())


@routes.post("/heads/{layer}/{head}/terms")
async def post_score_terms(
    request: Request,
    state: r.State,
    layer: r.LayerNumber,
    head: r.Index,
    query: r.ScoreTermsRequest,
    client: r.Client = "",
) -> Response:
    """The attention score of one pair of positions as a sum of terms: content, position and biases."""

    def work() -> dict[str, Any]:
        return score_view(state.circuits, query.prompt, layer, head, query.destination, query.source)

    key = f"terms {layer} {head} {query.destination} {query.source} {state.trace_id(query.prompt, ())}"
    body = await state.body(key, work, what="reading a score", client=client, channel="terms")
    return json_response(request, body)


@routes.post("/heads/prompt", responses={200: {"model": PromptHeadsView}})
async def post_prompt_heads(
    request: Request, state: r.State, query: r.QuestionRequest, client: r.Client = ""
) -> Response:
    """Every head on a prompt: its contribution to the question's logits, and the shape of its pattern."""
    edits = query.library_edits()

    def work() -> PromptHeadsView:
        trace = state.trace(query.prompt, edits)
        return prompt_heads_view(state.lm, trace, query.question(trace), query.position)

    key = f"prompt heads {state.register_prompt(query.prompt, edits)} {query.key()}"
    body = await state.body(key, work, what="reading heads", client=client, channel="prompt-heads")
    return json_response(request, body)
