"""Attention heads: scores of all, one as a circuit, its pattern on a prompt."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from unembed.server import asked as a
from unembed.server.answers import tagged
from unembed.server.session import Session
from unembed.views.heads import HeadsView, HeadView, InductionView, head_view, heads_view, induction_view


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

    @routes.get("/traces/{trace_id}/attention/{layer}/{head}")
    async def get_pattern(
        request: Request, trace_id: a.TraceId, layer: a.LayerNumber, head: a.Index, client: a.Client = ""
    ) -> Response:
        """The attention weights of a head on a prompt, by destination and source; each row adds up to one."""
        prompt, edits = session.asked(trace_id)

        def work() -> dict[str, Any]:
            lm = session.lm
            n, h = lm.layer(layer), lm.head(head)
            trace = session.tracing(prompt, edits)
            pattern = trace.run_with(("pattern",)).at("pattern", n)[0, h]
            return {
                "layer": n,
                "head": h,
                "tokens": trace.token_strings,
                "weights": [row[: i + 1].tolist() for i, row in enumerate(pattern)],
            }

        key = f"pattern {trace_id} {layer} {head}"
        return tagged(
            request, await session.body(key, work, what="reading attention", client=client, channel="pattern")
        )

    return routes
