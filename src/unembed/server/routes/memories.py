"""One memory: what its value promotes and suppresses, and what sets it off."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from unembed.server import asked as a
from unembed.server.answers import tagged
from unembed.server.session import Session
from unembed.views.memory import MemoryView, memory_view


def router(session: Session) -> APIRouter:
    """The routes, over what is open."""
    routes = APIRouter(tags=["memories"])

    @routes.get("/memories/{layer}/{index}", responses={200: {"model": MemoryView}})
    async def get_memory(
        request: Request,
        layer: a.LayerNumber,
        index: a.Index,
        top: a.Top = 20,
        hide_unlearned: bool = False,
        client: a.Client = "",
    ) -> Response:
        """The tokens at both ends of a value, as `unembed value L I --json` lists them."""
        key = f"memory {layer} {index} {top} {hide_unlearned}"

        def work() -> dict[str, Any]:
            return memory_view(session.lm, layer, index, top, hide_unlearned=hide_unlearned).to_dict()

        body = await session.body(key, work, what="reading a value", client=client, channel="memory")
        return tagged(request, body)

    @routes.post("/memories/{layer}/{index}/activations")
    async def activations(
        request: Request, layer: a.LayerNumber, index: a.Index, asked: a.PromptAsked, client: a.Client = ""
    ) -> Response:
        """The memory's coefficient at every token of a text."""
        edits = [e.edit() for e in asked.edits]
        key = f"activations {layer} {index} {session.remember(asked.prompt, edits)}"

        def work() -> dict[str, Any]:
            session.lm.memory(layer, index)
            trace = session.tracing(asked.prompt, edits)
            m = trace.run.at("coefficients", layer)[0, :, index]
            return {"layer": layer, "index": index, "tokens": trace.token_strings, "coefficients": m.tolist()}

        body = await session.body(key, work, what="trying a text", client=client, channel="activations")
        return tagged(request, body)

    return routes
