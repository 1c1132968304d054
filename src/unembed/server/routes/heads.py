"""Attention heads: scores of all, one as a circuit, its pattern on a prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from functools import cached_property
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from unembed.attention.head_examples import Progress, head_examples
from unembed.schemas.heads import HeadsView, HeadView, InductionView, head_view, heads_view, induction_view
from unembed.schemas.prompt_head_scores import HeadsHere, PatternView, heads_here, pattern_view, score_view
from unembed.server import requests as a
from unembed.server.responses import encoded, lines, tagged
from unembed.server.state import MAX_PROMPT, Session


class HereAsked(a.PromptAsked):
    """A prompt, a position of it, and a token whose logit is asked about; the prediction without it."""

    position: int = Field(-1, ge=-a.LARGEST, le=a.LARGEST)
    token: str | None = Field(None, max_length=200)


class TermsAsked(BaseModel):
    """A prompt and a pair of its positions; no edits, since the parts are proved on the model as it is."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(min_length=1, max_length=MAX_PROMPT)
    destination: int = Field(ge=0, le=a.LARGEST)
    source: int = Field(ge=0, le=a.LARGEST)


class ExamplesAsked(BaseModel):
    """How much of the corpus is read."""

    model_config = ConfigDict(extra="forbid")
    windows: int = Field(32, ge=1, le=64)
    length: int = Field(128, ge=2, le=256, description="tokens of a window, at most")


class _Held:
    """The circuits of the open model: their products are kept between questions."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @cached_property
    def circuits(self) -> Any:
        import unembed

        return unembed.circuits(self._session.lm)


def router(session: Session) -> APIRouter:
    """The routes, over what is open."""
    routes = APIRouter(tags=["heads"])
    held = _Held(session)

    @routes.get("/heads", responses={200: {"model": HeadsView}})
    async def get_heads(
        request: Request,
        sequences: Annotated[int, Query(ge=2, le=64)] = 16,
        length: Annotated[int, Query(ge=2, le=64)] = 32,
        seed: Annotated[int, Query(ge=0, le=a.LARGEST)] = 0,
        client: a.Client = "",
    ) -> Response:
        """What every head does on random tokens repeated twice, with confidence intervals."""
        body = await session.body(
            f"heads {sequences} {length} {seed}",
            lambda: heads_view(held.circuits, sequences, length, seed).to_dict(),
            what="scoring heads",
            client=client,
            channel="heads",
            on="long",
        )
        return tagged(request, body)

    @routes.get("/heads/{layer}/{head}", responses={200: {"model": HeadView}})
    async def get_head(
        request: Request,
        layer: a.LayerNumber,
        head: a.Index,
        source: Annotated[str, Query(min_length=1, max_length=200)] = " the",
        destination: Annotated[str, Query(min_length=1, max_length=200)] = " the",
        top: a.Top = 12,
        client: a.Client = "",
    ) -> Response:
        """What a head writes where it reads a source token, and which sources a destination token looks for."""

        def work() -> dict[str, Any]:
            src, dst = a.token_of(source), a.token_of(destination)
            assert src is not None and dst is not None
            return head_view(held.circuits, layer, head, src, dst, top).to_dict()

        key = f"head {layer} {head} {source} {destination} {top}"
        return tagged(
            request, await session.body(key, work, what="reading a head", client=client, channel="head", on="long")
        )

    @routes.get("/heads/{layer}/{head}/induction", responses={200: {"model": InductionView}})
    async def get_induction(
        request: Request,
        layer: a.LayerNumber,
        head: a.Index,
        length: Annotated[int, Query(ge=2, le=64)] = 16,
        seed: Annotated[int, Query(ge=0, le=a.LARGEST)] = 0,
        text: Annotated[str, Query(max_length=2000)] = "",
        client: a.Client = "",
    ) -> Response:
        """A head's pattern on random tokens, or a text, said twice, and its weight on what followed the first time."""

        def work() -> dict[str, Any]:
            return induction_view(held.circuits, layer, head, length, seed, text).to_dict()

        key = f"induction {layer} {head} {length} {seed} {text}"
        return tagged(
            request, await session.body(key, work, what="repeating a text", client=client, channel="induction")
        )

    @routes.get("/traces/{trace_id}/attention/{layer}/{head}", responses={200: {"model": PatternView}})
    async def get_pattern(
        request: Request, trace_id: a.TraceId, layer: a.LayerNumber, head: a.Index, client: a.Client = ""
    ) -> Response:
        """The attention weights of a head on a prompt, by destination and source, and how much each carries."""
        prompt, edits = session.asked(trace_id)

        def work() -> dict[str, Any]:
            return pattern_view(session.lm, session.tracing(prompt, edits), layer, head).to_dict()

        key = f"pattern {trace_id} {layer} {head}"
        return tagged(
            request, await session.body(key, work, what="reading attention", client=client, channel="pattern")
        )

    @routes.post("/heads/{layer}/{head}/attention", responses={200: {"model": PatternView}})
    async def post_pattern(
        request: Request, layer: a.LayerNumber, head: a.Index, asked: a.PromptAsked, client: a.Client = ""
    ) -> Response:
        """The same on any text, which need not be traced first."""
        key = session.remember(asked.prompt, [e.edit() for e in asked.edits])
        return await get_pattern(request, key, layer, head, client)

    @routes.post("/heads/{layer}/{head}/examples")
    async def post_examples(
        layer: a.LayerNumber, head: a.Index, asked: ExamplesAsked, client: a.Client = ""
    ) -> StreamingResponse:
        """Windows of the corpus in which the head does most: lines of progress, then the examples.

        One reading serves all heads of a layer; what it found is kept.
        """
        session.lm.layer(layer)
        session.lm.head(head)

        def key(n: int) -> str:
            return f"examples {layer} {n} {asked.windows} {asked.length}"

        def steps() -> Iterator[dict[str, Any]]:
            for found in head_examples(session.lm, session.index, layer, asked.windows, asked.length):
                kind = "progress" if isinstance(found, Progress) else "examples"
                yield {"kind": kind, **dataclasses.asdict(found)}

        async def items() -> AsyncIterator[Any]:
            if (known := session.cache.get(key(head))) is not None:
                yield known
                return
            async for item in session.worker.stream(steps, what="finding examples", client=client, channel="examples"):
                if item["kind"] == "examples":
                    session.cache.put(key(item["head"]), encoded(item))
                if item.get("head", head) == head:
                    yield item

        return lines(items())

    @routes.post("/heads/{layer}/{head}/terms")
    async def post_terms(
        request: Request, layer: a.LayerNumber, head: a.Index, asked: TermsAsked, client: a.Client = ""
    ) -> Response:
        """The attention score of one pair of positions as a sum: what is said by content, by position, by biases."""
        key = f"terms {layer} {head} {asked.destination} {asked.source} {session.trace_id(asked.prompt, ())}"

        def work() -> dict[str, Any]:
            return score_view(held.circuits, asked.prompt, layer, head, asked.destination, asked.source)

        return tagged(request, await session.body(key, work, what="reading a score", client=client, channel="terms"))

    @routes.post("/heads/here", responses={200: {"model": HeadsHere}})
    async def post_here(request: Request, asked: HereAsked, client: a.Client = "") -> Response:
        """What every head does on a prompt: its share of a token's logit, the shape of its pattern."""
        edits = [e.edit() for e in asked.edits]
        key = f"here {session.remember(asked.prompt, edits)} {asked.position} {asked.token}"

        def work() -> dict[str, Any]:
            trace = session.tracing(asked.prompt, edits)
            return heads_here(session.lm, trace, asked.position, a.token_of(asked.token)).to_dict()

        return tagged(request, await session.body(key, work, what="reading heads", client=client, channel="here"))

    return routes
