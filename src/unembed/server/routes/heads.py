"""Routes for attention heads: scores of all heads, a head's QK and OV circuits, and its pattern on a prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import StreamingResponse

from unembed.attention import (
    HeadsView,
    HeadView,
    InductionView,
    PartnersView,
    Progress,
    RaisedView,
    examples_of_heads,
    head_view,
    heads_view,
    induction_view,
    partners_view,
    raised_view,
)
from unembed.server import requests as r
from unembed.server.handlers import Routes
from unembed.server.responses import ndjson_response, to_json
from unembed.trace import (
    HeadHereView,
    HeadSourcesView,
    PatternsView,
    PatternView,
    PromptHeadsView,
    head_here_view,
    head_sources_view,
    pattern_view,
    patterns_view,
    prompt_heads_view,
)

routes = Routes("heads")


@routes.answer("GET /heads", "scoring heads", on="long")
def get_heads(
    state: r.State,
    sequences: Annotated[int, Query(ge=2, le=64)] = 16,
    length: Annotated[int, Query(ge=2, le=64)] = 32,
    seed: r.Seed = 0,
) -> HeadsView:
    """The scores of every head on sequences of random tokens that are repeated once, with confidence intervals."""
    return heads_view(state.circuits, sequences, length, seed)


@routes.answer("GET /heads/{layer}/{head}", "reading a head")
def get_head(
    state: r.State,
    layer: r.LayerNumber,
    head: r.Index,
    source: r.RequiredToken = " the",
    destination: r.RequiredToken = " the",
    top: r.Top = 12,
) -> HeadView:
    """The tokens that a head promotes when it attends to `source`, and those to which `destination` attends."""
    return head_view(state.circuits, layer, head, r.parse_token(source), r.parse_token(destination), top)


@routes.answer("GET /heads/{layer}/{head}/partners", "composing heads", on="long")
def get_partners(state: r.State, layer: r.LayerNumber, head: r.Index) -> PartnersView:
    """The earlier heads whose output a head reads most. The first request computes all composition scores."""
    return partners_view(state.circuits, layer, head)


@routes.answer("GET /heads/{layer}/{head}/raised", "running common tokens", on="long")
def get_raised(state: r.State, layer: r.LayerNumber, head: r.Index, top: r.Top = 20) -> RaisedView:
    """For common source tokens, the words other than the source token whose logits a head raises most.

    Each source token is run alone, as a prompt of one token, through the layers before the head.
    """
    return raised_view(state.circuits, layer, head, top)


@routes.answer("GET /heads/{layer}/{head}/induction", "repeating tokens")
def get_induction(
    state: r.State,
    layer: r.LayerNumber,
    head: r.Index,
    length: Annotated[int, Query(ge=2, le=64)] = 16,
    seed: r.Seed = 0,
    text: Annotated[str, Query(max_length=2000)] = "",
) -> InductionView:
    """The induction test: a head's attention pattern on random tokens, or a text, followed by the same tokens again."""
    return induction_view(state.lm, layer, head, length, seed, text)


@routes.answer("POST /heads/{layer}/{head}/attention", "reading attention", channel="pattern")
def post_pattern(state: r.State, layer: r.LayerNumber, head: r.Index, query: r.PromptRequest) -> PatternView:
    """The attention weights of a head on a prompt, by destination and source position, and their contributions."""
    return pattern_view(query.trace(state), layer, head)


@routes.answer("POST /heads/patterns", "reading attention")
def post_patterns(state: r.State, query: r.PromptRequest) -> PatternsView:
    """The attention patterns of all heads on a prompt, in low resolution for small pictures."""
    return patterns_view(query.trace(state))


@routes.answer("POST /heads/{layer}/{head}/sources", "reading a head")
def post_sources(state: r.State, layer: r.LayerNumber, head: r.Index, query: r.QuestionRequest) -> HeadSourcesView:
    """What a head adds to the explained logit or logit difference at a position, by source token."""
    trace = query.trace(state)
    return head_sources_view(trace, layer, head, query.question(trace), query.position)


@routes.answer("POST /heads/{layer}/{head}/here", "reading a head")
def post_here(state: r.State, layer: r.LayerNumber, head: r.Index, query: r.QuestionRequest) -> HeadHereView:
    """A head's effect on the explained logit at a position of a prompt, and the tokens that it promotes there."""
    trace = query.trace(state)
    return head_here_view(trace, layer, head, query.question(trace), query.position)


@routes.post("/heads/{layer}/{head}/examples")
async def post_examples(
    state: r.State, layer: r.LayerNumber, head: r.Index, query: r.HeadExamplesRequest, client: r.Client = ""
) -> StreamingResponse:
    """Windows of the corpus in which the head contributes most. The response is lines of progress, then the examples.

    One pass over the corpus finds the examples of all heads in the layer; all of them are cached.
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


@routes.answer("POST /heads/{layer}/{head}/terms", "reading a score")
def post_score_terms(state: r.State, layer: r.LayerNumber, head: r.Index, query: r.ScoreTermsRequest) -> dict[str, Any]:
    """The attention score of a pair of positions, as a sum of terms from content, position and biases."""
    trace = state.trace(query.prompt)
    found = state.circuits.score_terms(trace.tokens[None], layer, head, seen=trace.layer_heads(layer))
    score, terms = found.at(query.destination, query.source)
    return {"score": score, "terms": terms, "error": found.error}


@routes.answer("POST /heads/prompt", "reading heads")
def post_prompt_heads(state: r.State, query: r.QuestionRequest) -> PromptHeadsView:
    """For every head: its contribution to the explained logit, and statistics of its pattern on the prompt."""
    trace = query.trace(state)
    return prompt_heads_view(trace, query.question(trace), query.position)
